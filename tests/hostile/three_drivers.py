"""A random run over the CPU, memory and GPU drivers together: `python -m tests.hostile.three_drivers --steps 10000`.

One process serves all three; it is killed and started again, CDI specs and metadata are removed or emptied, ledgers and
their copies are lost one at a time. What must hold is read from raw files (JSON specs, SQLite rows) by this file alone:

- a claim that was reported as prepared has its CDI devices in a spec, and its row in the ledger;
- no CPU, no GPU and no byte of memory is given to two claims;
- a claim that is prepared again gets the same answer;
- nothing is left of a claim that was reported as unprepared.
"""

import argparse
import json
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dranode.proto import dra_v1_pb2 as api
from tests.hostile.kubelet import DriverConnection
from tests.hostile.launch import CLOCK
from tests.hostile.runtime import Violation

DRIVERS: Final = ("dra.cpu", "dra.memory", "dra.gpu")
MACHINE: Final = "sockets=2,numa=1,cores=8,threads=2,gpus=4:nvidia,memory=8Gi,hugepages-1Gi=4"
_GIB: Final = 1 << 30
# The amount of each device. The run allocates within it, and now and then more, which must be refused.
CPUS: Final = {"cpudevnuma000": 16, "cpudevnuma001": 16}
GPUS: Final = tuple(f"gpu-0000-{bus}-00-0" for bus in (11, 21, 31, 41))
MEMORY: Final = {"hugepages-1g-numa0": 4 * _GIB, "hugepages-1g-numa1": 4 * _GIB}
_CPUSET: Final = re.compile(r"DRA_CPUSET_[^=]*=([0-9,-]+)")
_LAUNCH: Final = Path(__file__).with_name("launch.py")


@dataclass
class Claim:
    """A claim of one driver, and what was reported to kubelet about it."""

    name: str
    uid: str
    driver: str
    device: str
    amount: int
    told: list[tuple[str, ...]] | None = None


@dataclass
class Run:
    """The node and its claims."""

    folder: Path
    dice: random.Random
    claims: dict[str, Claim] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    process: subprocess.Popen[bytes] | None = None
    connections: dict[str, DriverConnection] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        for part in ("kubelet/plugins_registry", "cdi", "store/resourceclaims"):
            (self.folder / part).mkdir(parents=True)
        (self.folder / "clock").write_bytes(CLOCK.pack(0))

    # --- the driver's process ---

    def start(self) -> None:
        arguments = [
            "clock", "serve", "--drivers", "cpu,memory,gpu", "--machine", MACHINE, "--node-name", "node",
            "--store", "store", "--http-address", "none", "--kubelet-root", "kubelet", "--cdi-dir", "cdi",
            "--nri-socket", "none",
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(_LAUNCH), *arguments], cwd=self.folder, stdout=log, stderr=log
            )
        for driver in DRIVERS:
            self.connections[driver] = DriverConnection(self.folder / "kubelet" / "plugins" / driver / "dra.sock")

    def stop(self, *, kill: bool) -> None:
        if self.process is None:
            return
        self.process.kill() if kill else self.process.terminate()
        status = self.process.wait()
        if not kill and status not in (0, -15):
            raise Violation(f"the driver ended with status {status}")
        for connection in self.connections.values():
            connection.close()
        self.process = None

    def require_running(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            raise Violation(f"the driver has ended with status {self.process.returncode}")

    def call(self, method: str, claim: Claim) -> Any:
        asked = api.Claim(namespace="default", name=claim.name, uid=claim.uid)
        answer = self.connections[claim.driver].call(method, [asked])
        return None if answer is None else answer.claims[claim.uid]

    # --- steps ---

    def prepare_new(self) -> None:
        claim = self._allocate()
        self._prepare(claim)

    def prepare_again(self) -> None:
        prepared = [claim for claim in self.claims.values() if claim.told is not None]
        if prepared:
            self._prepare(self.dice.choice(prepared))

    def unprepare(self) -> None:
        if self.claims:
            self._unprepare(self.dice.choice(tuple(self.claims.values())))

    def _unprepare(self, claim: Claim) -> None:
        answer = self.call("NodeUnprepareResources", claim)
        if answer is None or answer.error:
            self.counts["unprepare refused"] += 1
            return
        del self.claims[claim.uid]
        (self.folder / "store/resourceclaims" / f"default.{claim.name}.yaml").unlink()
        left = [path for path in self.folder.glob("cdi/*") if claim.uid in path.name]
        left += [path for path in self.folder.glob("kubelet/plugins/*/metadata/*") if claim.uid in path.name]
        if left or claim.uid in self.rows(claim.driver):
            raise Violation(f"claim {claim.uid} was unprepared, and these are left: {left or 'its row'}")

    def kill(self) -> None:
        self.stop(kill=True)
        self.start()

    def terminate(self) -> None:
        self.stop(kill=False)
        self.start()

    def damage_a_spec(self) -> None:
        specs = sorted(self.folder.glob("cdi/*.json"))
        if specs:
            spec = self.dice.choice(specs)
            self.dice.choice((spec.unlink, lambda: spec.write_text(""), lambda: spec.write_text('{"devices": []}')))()

    def lose_a_ledger(self) -> None:
        """Lose a ledger or its copy, never both, while the driver is down."""
        self.stop(kill=True)
        folder = self.folder / "kubelet/plugins" / self.dice.choice(DRIVERS)
        for name in self.dice.choice((("ledger.db", "ledger.db-wal", "ledger.db-shm"), ("ledger.db-copy",))):
            (folder / name).unlink(missing_ok=True)
        self.start()

    def forget_lost(self, driver: str) -> None:
        """Drain a driver that may not know all claims any more, then run `forget-lost`, as its message asks."""
        self.counts["forget_lost"] += 1
        for claim in [each for each in self.claims.values() if each.driver == driver]:
            self._unprepare(claim)
        self.stop(kill=False)
        program = str(Path(sys.executable).with_name("dranode"))
        command = [program, "forget-lost", "--drivers", driver, "--machine", MACHINE, "--kubelet-root", "kubelet"]
        done = subprocess.run(
            [*command, "--cdi-dir", "cdi"], cwd=self.folder, check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise Violation(f"what was lost cannot be forgotten: {done.stderr}")
        self.start()

    def _allocate(self) -> Claim:
        driver = self.dice.choice(DRIVERS)
        # Now and then ignore what is free: such a claim must be refused if its device is held.
        careless = self.dice.random() < 0.1
        device, amount = self._pick(driver, careless=careless)
        self.made += 1
        claim = Claim(f"c{self.made}", f"uid-{self.made:06d}", driver, device, amount)
        result: dict[str, Any] = {"request": "r", "driver": driver, "pool": "node", "device": device}
        if driver != "dra.gpu":
            name, size = ("dra.cpu/cpu", str(amount)) if driver == "dra.cpu" else ("size", str(amount))
            share = f"00000000-0000-4000-8000-{self.made:012d}"
            result = {**result, "consumedCapacity": {name: size}, "shareID": share}
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": claim.name, "uid": claim.uid},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        (self.folder / "store/resourceclaims" / f"default.{claim.name}.yaml").write_text(json.dumps(document))
        self.claims[claim.uid] = claim
        return claim

    def _pick(self, driver: str, *, careless: bool) -> tuple[str, int]:
        if driver == "dra.gpu":
            free = [gpu for gpu in GPUS if careless or not self._held(gpu)]
            return self.dice.choice(free or GPUS), 1
        sizes, unit = (CPUS, 1) if driver == "dra.cpu" else (MEMORY, _GIB)
        device = self.dice.choice(tuple(sizes))
        most = sizes[device] if careless else sizes[device] - self._held(device)
        return device, unit * self.dice.randint(1, max(1, min(4, most // unit)))

    def _held(self, device: str) -> int:
        return sum(claim.amount for claim in self.claims.values() if claim.device == device and claim.told is not None)

    def _prepare(self, claim: Claim) -> None:
        answer = self.call("NodePrepareResources", claim)
        if answer is None or answer.error:
            self.counts["prepare refused" if answer else "prepare unanswered"] += 1
            if answer is not None and "forget-lost" in answer.error:
                self.forget_lost(claim.driver)
            return
        told = [(each.device_name, *each.cdi_device_ids) for each in answer.devices]
        if claim.told is not None and told != claim.told:
            raise Violation(f"claim {claim.uid} was answered {claim.told} and then {told}")
        claim.told = told
        self.check(claim)

    # --- what must hold, from raw files ---

    def rows(self, driver: str) -> set[str]:
        path = self.folder / "kubelet/plugins" / driver / "ledger.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return {uid for (uid,) in connection.execute("SELECT uid FROM claims")}
        finally:
            connection.close()

    def specs(self) -> dict[str, Any]:
        """The devices of all specs by CDI id."""
        found: dict[str, Any] = {}
        for path in self.folder.glob("cdi/*.json"):
            try:
                spec = json.loads(path.read_text())
                found |= {f"{spec['kind']}={device['name']}": device for device in spec["devices"]}
            except (OSError, ValueError, KeyError):
                continue  # damaged by a step and not repaired yet
        return found

    def check(self, claim: Claim) -> None:
        """Check a claim that was just answered, and everything that other claims hold.

        Raises:
            Violation: an invariant is broken.
        """
        specs = self.specs()
        ids = [name for told in claim.told or () for name in told[1:]]
        if missing := [name for name in ids if name not in specs]:
            raise Violation(f"claim {claim.uid} was told {missing}, which no CDI spec has")
        if claim.uid not in self.rows(claim.driver):
            raise Violation(f"claim {claim.uid} was told that it is prepared, and the ledger has no row of it")
        prepared = [each for each in self.claims.values() if each.told is not None]
        cpus: dict[int, str] = {}
        for each in prepared:
            texts = [text for told in each.told or () for name in told[1:] for text in _env(specs.get(name))]
            own = {cpu for text in texts for found in _CPUSET.findall(text) for cpu in _cpus(found)}
            for cpu in own:
                if cpus.setdefault(cpu, each.uid) != each.uid:
                    raise Violation(f"CPU {cpu} is given to {cpus[cpu]} and to {each.uid}")
            if each is claim and claim.driver == "dra.cpu" and len(own) != claim.amount:
                raise Violation(f"claim {claim.uid} has the CPUs {sorted(own)} and asked for {claim.amount}")
        for device, size in {**CPUS, **MEMORY, **dict.fromkeys(GPUS, 1)}.items():
            if self._held(device) > size:
                raise Violation(f"device {device} has {size}, and {self._held(device)} of it are given to claims")


def _env(device: Any) -> list[str]:
    return [] if device is None else list(device.get("containerEdits", {}).get("env", []))


def _cpus(text: str) -> set[int]:
    parts = [part.partition("-") for part in text.split(",")]
    return {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}


STEPS: Final = {
    Run.prepare_new: 40, Run.prepare_again: 25, Run.unprepare: 33, Run.damage_a_spec: 4,
    Run.kill: 1, Run.terminate: 1, Run.lose_a_ledger: 1,
}  # fmt: skip


def run(steps: int, seed: int) -> Counter[str]:
    """Take `count` steps; return how often each was taken.

    Raises:
        Violation: an invariant is broken; the message has the steps before it.
    """
    folder = Path(tempfile.mkdtemp(prefix="three-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    taken = Run(folder, random.Random(seed))
    past: list[str] = []
    try:
        taken.start()
        for _ in range(steps):
            (step,) = taken.dice.choices(tuple(STEPS), tuple(STEPS.values()))
            past = [*past[-30:], step.__name__]
            taken.counts[step.__name__] += 1
            step(taken)
            taken.require_running()
        taken.stop(kill=False)
    except Violation as violation:
        log = (folder / "log").read_text(errors="replace")[-4000:]
        raise Violation(f"seed {seed}: {violation}\n  {' '.join(past)}\nthe log ends:\n{log}") from violation
    finally:
        if taken.process is not None:
            taken.stop(kill=True)
        shutil.rmtree(folder, ignore_errors=True)
    return taken.counts


def main() -> int:
    """Take the steps and print the result; the exit status is 1 after a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.three_drivers")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.steps} steps", flush=True)  # noqa: T201
    try:
        counts = run(options.steps, options.seed)
    except Violation as violation:
        print(violation)  # noqa: T201
        return 1
    for name, count in sorted(counts.items()):
        print(f"{count:8} {name}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
