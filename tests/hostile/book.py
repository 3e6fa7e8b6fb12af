"""What kubelet was told of each claim, and what must hold of it whatever happens."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from dranode.api.cpuset import CPUSet
from dranode.show.ledger_reading import read_ledger
from tests.hostile.runtime import RunningContainer, Violation

VARIABLE: Final = "DRA_CPUSET_"
RESERVED: Final = CPUSet((0, 4))


class Stage(Enum):
    """How far a claim is, as kubelet knows: a call without an answer leaves it PREPARING or ENDING."""

    PREPARING = auto()
    TOLD = auto()
    ENDING = auto()


@dataclass
class BookedClaim:
    """A claim that kubelet has begun to prepare and not seen the end of.

    Attributes:
        name: in the namespace `default`.
        uid: of the claim.
        pod: the UID of the pod that it is reserved for.
        numa: the group of CPUs that it was allocated.
        count: its CPUs.
        stage: how far it is.
        devices: what kubelet was answered, serialized.
        cpus: what its CDI spec said when it was answered.
        instance: which one answered.
    """

    name: str
    uid: str
    pod: str
    numa: int
    count: int
    stage: Stage = Stage.PREPARING
    devices: tuple[bytes, ...] = ()
    cpus: CPUSet = field(default_factory=CPUSet)
    instance: str = ""


@dataclass
class Book:
    """The claims of a node.

    Attributes:
        data: the driver's folder.
        cdi: the folder of CDI specs.
        claims: by UID.
        offline: the CPUs that were offline at some time since all was right.
    """

    data: Path
    cdi: Path
    claims: dict[str, BookedClaim] = field(default_factory=dict)
    offline: CPUSet = field(default_factory=CPUSet)

    def told(self) -> list[BookedClaim]:
        """The claims that kubelet was told are prepared."""
        return [claim for claim in self.claims.values() if claim.stage is Stage.TOLD]

    def spec(self, uid: str) -> Path:
        """The claim's CDI spec."""
        return self.cdi / f"dra.k8s.io-cpu_claim-{uid}.json"

    def env(self, uid: str) -> list[str]:
        """The variables that the runtime injects into the claim's containers."""
        devices = json.loads(self.spec(uid).read_bytes())["devices"]
        return [entry for device in devices for entry in device["containerEdits"]["env"]]

    def prepared(self, claim: BookedClaim, devices: Iterable[Any], instance: str) -> None:
        """Take note of an instance's answer.

        Raises:
            Violation: it differs from what kubelet was told before, or gives a CPU twice.
        """
        answer = tuple(device.SerializeToString(deterministic=True) for device in devices)
        if claim.stage is Stage.TOLD and claim.devices != answer:
            raise Violation(f"claim {claim.name} is answered {answer}, and kubelet was told {claim.devices}")
        cpus = self.written(claim)
        if len(cpus) != claim.count:
            raise Violation(f"claim {claim.name} of {claim.count} CPUs was given {cpus}")
        if claim.stage is Stage.TOLD and cpus != claim.cpus:
            raise Violation(f"claim {claim.name} has {cpus}, and kubelet was told when it had {claim.cpus}")
        for other in self.told():
            if other is not claim and other.cpus & cpus:
                raise Violation(f"claims {claim.name} and {other.name} both have {other.cpus & cpus}")
        claim.stage, claim.devices, claim.cpus, claim.instance = Stage.TOLD, answer, cpus, instance

    def written(self, claim: BookedClaim) -> CPUSet:
        """The CPUs that the claim's spec says.

        Raises:
            Violation: it says none.
        """
        try:
            said = [entry for entry in self.env(claim.uid) if entry.startswith(f"{VARIABLE}{claim.uid}=")]
            return CPUSet.parse(said[0].partition("=")[2])
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise Violation(f"claim {claim.name} was answered, and its spec says nothing: {error!r}") from error

    def unprepared(self, claim: BookedClaim) -> None:
        """Take note that a claim was let go of.

        Raises:
            Violation: something is left of it.
        """
        del self.claims[claim.uid]
        # The UID of one claim is the beginning of another one's.
        own = re.compile(rf"{re.escape(claim.uid)}(?!\d)")
        if left := [path.name for path in self.cdi.iterdir() if own.search(path.name)]:
            raise Violation(f"claim {claim.name} was unprepared, and {left} are left")

    # --- masks ---

    def of(self, container: RunningContainer) -> CPUSet:
        """The CPUs of a container's claims; none without claims."""
        claims = [self.claims[uid] for uid in container.claims if uid in self.claims]
        return CPUSet.union(claim.cpus for claim in claims)

    def change(self, container: RunningContainer, cpus: CPUSet) -> None:
        """Look at a mask that a container is about to get.

        One that was created while nobody answered the runtime shares with others until kubelet vouches for it, and so
        does one whose CPUs may all have been offline when that was decided.

        Raises:
            Violation: a container that runs on its claims' CPUs alone would run on others.
        """
        own = self.of(container)
        pinned = own and container.cpus is not None and container.cpus <= own
        if pinned and not cpus <= own and not own <= self.offline:
            raise Violation(f"{container} was given {own} and is widened to {cpus}")

    def created(
        self, container: RunningContainer, containers: Collection[RunningContainer], *, alone: str | None = None
    ) -> None:
        """Look at a container that was created, and at the others.

        Of what another instance has prepared, which may have died since, an instance hears when it looks, or when a
        container has the claim: such CPUs count from then on, and those that the instance which is `alone` prepared.

        Raises:
            Violation: one runs on CPUs of another one's claims.
        """
        own = self.of(container)
        used = {uid for other in containers for uid in other.claims}
        known = (claim for claim in self.told() if claim.uid in used or claim.instance == alone)
        held = CPUSet.union(claim.cpus for claim in known)
        if container.cpus is None:
            raise Violation(f"{container} is not pinned")
        if own and not container.cpus <= own:
            raise Violation(f"{container} was given {own}")
        if not own and container.cpus & held:
            raise Violation(f"{container} has no claim, and claims hold {container.cpus & held}")
        for other in containers:
            if own and other is not container and (other.cpus is None or other.cpus & own):
                if other.claims & container.claims:
                    continue
                raise Violation(f"{container} has come to {own}, and {other} runs there")

    def wrong_masks(self, containers: Iterable[RunningContainer], online: CPUSet) -> list[str]:
        """The containers that are not where they should be."""
        held = CPUSet.union(claim.cpus for claim in self.told())
        wrong = []
        for container in containers:
            own = self.of(container)
            right = own & online or online - held - RESERVED
            if container.cpus is None or (container.cpus & online) != right:
                wrong.append(f"{container} should be on {right}")
        return wrong

    # --- what lies on disk ---

    def wrong_files(self) -> list[str]:
        """What ledger and specs say that is not so, once no call is without its answer."""
        contents = read_ledger(self.data / "ledger.db")
        wrong = [f"row of {row.uid} is damaged: {row.reason}" for row in contents.damaged]
        held = {record.uid: record.held for record in contents.records}
        told = {claim.uid: claim.cpus for claim in self.told()}
        if held != told:
            wrong.append(f"the ledger has {_differing(held, told)}, and kubelet was told {_differing(told, held)}")
        names = {path.name for path in self.cdi.iterdir() if path.suffix == ".json"}
        right = {self.spec(uid).name for uid in told}
        if names != right:
            wrong.append(f"specs {sorted(names - right)} are too many and {sorted(right - names)} are missing")
        else:
            wrong += [f"the spec of {claim.name} is wrong" for claim in self.told() if not self._said(claim)]
        return wrong

    def _said(self, claim: BookedClaim) -> bool:
        try:
            return self.written(claim) == claim.cpus
        except Violation:
            return False


def _differing(these: dict[str, CPUSet], those: dict[str, CPUSet]) -> dict[str, str]:
    return {uid: str(cpus) for uid, cpus in these.items() if those.get(uid) != cpus}
