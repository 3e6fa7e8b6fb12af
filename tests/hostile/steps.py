"""What kubelet, the runtime and people do at a node, chosen at random.

A fault of one kind is repaired before a fault of another kind comes: what the ledger and its copy hold is also in a CDI
spec, and nothing can be promised when all three are gone (docs/upgrade.md).
"""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.hostile.book import BookedClaim, Stage
from tests.hostile.kubelet import MOODS
from tests.hostile.node import CPUS, STARTING, Node
from tests.hostile.runtime import Violation

NAMES: Final = tuple(f"c{number}" for number in range(8))
# Two of each NUMA node's eight CPUs, beside the reserved ones, are left to containers without claims.
ROOM: Final = 5
INSTANCES: Final = ("a", "b", "c")
# How long kubelet waits for a driver that is killed meanwhile.
_DEAD_SECONDS: Final = 0.2


@dataclass
class Steps:
    """Steps at one node.

    Attributes:
        node: the node.
        dice: the random source.
        fault: the kind of the fault that is not repaired yet; empty for none.
        past: the steps so far, the latest one last.
        counts: how often each step was taken.
        newer: whether a newer version has written the ledger.
    """

    node: Node
    dice: random.Random
    fault: str = ""
    past: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    newer: bool = False

    def say(self, text: str) -> None:
        self.past[-1] += f" {text}"

    def _instance(self) -> str | None:
        return self.dice.choice(sorted(self.node.instances)) if self.node.instances else None

    def may_fault(self, kind: str) -> bool:
        """Whether a fault of this kind may come now; if so, it counts as planted."""
        if self.fault not in ("", kind):
            return False
        self.fault = kind
        self.say("(fault)")
        return True

    # --- kubelet ---

    def prepare(self) -> None:
        if (name := self._instance()) is not None and (claim := self._allocate()) is not None:
            self._prepare(name, [claim])

    def prepare_pod(self) -> None:
        claims = [claim for _ in range(3) if (claim := self._allocate()) is not None]
        if (name := self._instance()) is not None and claims:
            self._prepare(name, claims)

    def prepare_again(self) -> None:
        claims = [claim for claim in self.node.book.claims.values() if claim.stage is not Stage.ENDING]
        if (name := self._instance()) is not None and claims:
            self._prepare(name, [self.dice.choice(claims)])

    def _allocate(self) -> BookedClaim | None:
        used = {claim.name for claim in self.node.book.claims.values()}
        free = [name for name in NAMES if name not in used]
        numa, count = self.dice.randrange(2), self.dice.randint(1, 3)
        taken = sum(claim.count for claim in self.node.book.claims.values() if claim.numa == numa)
        if not free or taken + count > ROOM + (self.dice.random() < 0.05):
            return None
        return self.node.allocate(self.dice.choice(free), numa, count)

    def _prepare(self, name: str, claims: list[BookedClaim]) -> None:
        self.say(f"{name}: {[(claim.uid, claim.numa, claim.count) for claim in claims]}")
        told = [claim for claim in claims if claim.stage is Stage.TOLD]
        for reason in self.node.prepare(name, claims):
            self.say(f"refused: {reason}")
            if STARTING in reason:
                continue
            self.node.refused(f"prepare ({self.fault or 'no fault'})", reason)
            if not self.fault:
                was = "kubelet was told that it is prepared" if told else "there is room for it"
                raise Violation(f"claim {claims[0].name} is refused, and {was}: {reason}")
        self.say(f"-> {[str(claim.cpus) for claim in claims]}")

    def unprepare(self) -> None:
        claims = list(self.node.book.claims.values())
        if (name := self._instance()) is not None and claims:
            claim = self.dice.choice(claims)
            self.say(f"{name}: {claim.uid}")
            if reason := self.node.unprepare(name, claim):
                self.say(f"refused: {reason}")
                self.node.refused(f"unprepare ({self.fault or 'no fault'})", reason)
                if not self.fault and reason != "no answer":
                    raise Violation(f"claim {claim.name} cannot be unprepared: {reason}")

    def unprepare_unknown(self) -> None:
        if (name := self._instance()) is not None:
            claim = BookedClaim("c0", "uid-unknown", "", 0, 1)
            answer = self.node.call(name, "NodeUnprepareResources", [claim])
            if answer is not None and (error := answer.claims[claim.uid].error) and not self.fault:
                raise Violation(f"an unknown claim cannot be unprepared: {error}")

    def give_up(self) -> None:
        """Make a call that kubelet gives up at once."""
        if (name := self._instance()) is not None and (claim := self._allocate()) is not None:
            self.say(f"{name}: {claim.uid}")
            self.node.prepare(name, [claim], 0.001)

    def kill_during_prepare(self) -> None:
        if (name := self._instance()) is not None and (claim := self._allocate()) is not None:
            self.say(f"{name}: {claim.uid}")
            with self._killed_soon(name):
                self.node.prepare(name, [claim], _DEAD_SECONDS)

    def kill_during_unprepare(self) -> None:
        claims = list(self.node.book.claims.values())
        if (name := self._instance()) is not None and claims:
            claim = self.dice.choice(claims)
            self.say(f"{name}: {claim.uid}")
            with self._killed_soon(name):
                self.node.unprepare(name, claim, _DEAD_SECONDS)

    @contextlib.contextmanager
    def _killed_soon(self, name: str) -> Iterator[None]:
        instance = self.node.instances[name]

        def kill() -> None:
            instance.process.kill()
            instance.close_at_end()

        timer = threading.Timer(self.dice.uniform(0.0, 0.006), kill)
        timer.start()
        try:
            yield
        finally:
            timer.join()
            self.node.kill(name)

    def change_mood(self) -> None:
        self.node.pods.mood = self.dice.choice(MOODS)
        self.say(self.node.pods.mood)

    # --- containers ---

    def run_with_claim(self) -> None:
        claims = self.node.book.told()
        if claims:
            claim = self.dice.choice(claims)
            name = self.dice.choice(("main", "main", "side"))
            self.say(f"{claim.uid} {name}")
            self._run(claim, name)

    def run_shared(self) -> None:
        if len(self.node.runtime.containers) < 12:
            self._run(None)

    def _run(self, claim: BookedClaim | None, name: str = "main") -> None:
        reason = self.node.run(claim, name)
        if reason:
            self.say(f"refused: {reason}")
            self.node.refused(f"container {'with a claim' if claim else ''} ({self.fault or 'no fault'})", reason)

    def stop_container(self) -> None:
        containers = list(self.node.runtime.containers.values())
        if containers:
            container = self.dice.choice(containers)
            self.say(str(container))
            self.node.runtime.stop(container)

    def update_container(self) -> None:
        containers = list(self.node.runtime.containers.values())
        if containers and self.node.runtime.plugins:
            container = self.dice.choice(containers)
            self.say(str(container))
            plugins, own = len(self.node.runtime.plugins), self.node.book.of(container)
            pinned = own and container.cpus is not None and container.cpus <= own
            self.node.runtime.update(container, str(CPUS))
            # As in `Book.change`: if all of its CPUs are offline, it shares CPUs with others.
            kept = (container.cpus or CPUS) <= own or own <= self.node.book.offline
            if len(self.node.runtime.plugins) == plugins and pinned and not kept:
                raise Violation(f"kubelet asked for all CPUs, and {container} was given {own}")

    def restart_runtime(self) -> None:
        self.node.runtime.close()
        if self.dice.random() < 0.5:
            self.node.runtime.version = self.dice.choice(("", "v0.12.1"))
            self.node.runtime.open()

    def open_runtime(self) -> None:
        if not self.node.runtime.running:
            self.node.runtime.open()

    def refuse_updates(self) -> None:
        self.node.runtime.refuse(self.dice.choice(("", "the runtime is busy")))

    # --- the driver ---

    def start(self) -> None:
        if len(self.node.instances) < 2:
            self._start()

    def start_if_none(self) -> None:
        if not self.node.instances:
            self._start()

    def _start(self) -> None:
        name = next(each for each in INSTANCES if each not in self.node.instances)
        self.say(name)
        self.node.start(name)

    def kill(self) -> None:
        if (name := self._instance()) is not None:
            self.say(name)
            self.node.kill(name)

    def terminate(self) -> None:
        if (name := self._instance()) is not None:
            self.say(name)
            self.node.terminate(name)

    def wait(self) -> None:
        ends = time.monotonic() + self.dice.uniform(0.0, 0.3)
        while (left := ends - time.monotonic()) > 0:
            self.node.runtime.attend(left)
