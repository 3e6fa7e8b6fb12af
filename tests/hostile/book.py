"""Keeps book of what was reported to kubelet about each claim, and checks the invariants."""

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
    """How far a claim is, from kubelet's view: a call without an answer leaves it PREPARING or ENDING."""

    PREPARING = auto()
    TOLD = auto()
    ENDING = auto()


@dataclass
class BookedClaim:
    """A claim that kubelet has begun to prepare and has not finished unpreparing.

    Attributes:
        name: its name in the namespace `default`.
        uid: its UID.
        pod: the UID of the pod that it is reserved for.
        numa: the group of CPUs that it was allocated from.
        count: the number of its CPUs.
        stage: how far it is.
        devices: the answer to kubelet, serialized.
        cpus: the CPUs in its CDI spec when the call was answered.
        instance: the instance that answered.
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
        claims: the claims by UID.
        offline: every CPU that was offline since the node was last settled.
    """

    data: Path
    cdi: Path
    claims: dict[str, BookedClaim] = field(default_factory=dict)
    offline: CPUSet = field(default_factory=CPUSet)

    def told(self) -> list[BookedClaim]:
        """The claims that were reported to kubelet as prepared."""
        return [claim for claim in self.claims.values() if claim.stage is Stage.TOLD]

    def spec(self, uid: str) -> Path:
        """The claim's CDI spec."""
        return self.cdi / f"dra.k8s.io-cpu_claim-{uid}.json"

    def env(self, uid: str) -> list[str]:
        """The variables that the runtime injects into the claim's containers."""
        devices = json.loads(self.spec(uid).read_bytes())["devices"]
        return [entry for device in devices for entry in device["containerEdits"]["env"]]

    def prepared(self, claim: BookedClaim, devices: Iterable[Any], instance: str) -> None:
        """Record an instance's answer.

        Raises:
            Violation: it differs from an earlier answer, or a CPU belongs to two claims.
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
        """Return the CPUs in the claim's spec.

        Raises:
            Violation: the spec names none.
        """
        try:
            said = [entry for entry in self.env(claim.uid) if entry.startswith(f"{VARIABLE}{claim.uid}=")]
            return CPUSet.parse(said[0].partition("=")[2])
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise Violation(f"claim {claim.name} was answered, and its spec says nothing: {error!r}") from error

    def unprepared(self, claim: BookedClaim) -> None:
        """Record that a claim was unprepared.

        Raises:
            Violation: something of it is left.
        """
        del self.claims[claim.uid]
        # One claim's UID may be a prefix of another's.
        own = re.compile(rf"{re.escape(claim.uid)}(?!\d)")
        if left := [path.name for path in self.cdi.iterdir() if own.search(path.name)]:
            raise Violation(f"claim {claim.name} was unprepared, and {left} are left")

    # --- masks ---

    def of(self, container: RunningContainer) -> CPUSet:
        """The CPUs of a container's claims; none without claims."""
        claims = [self.claims[uid] for uid in container.claims if uid in self.claims]
        return CPUSet.union(claim.cpus for claim in claims)

    def change(self, container: RunningContainer, cpus: CPUSet) -> None:
        """Check a mask that a container is about to get.

        A container that was created while no plug-in answered the runtime shares CPUs until kubelet confirms its claim.
        So does one whose CPUs may all have been offline when its mask was decided.

        Raises:
            Violation: a container that runs only on its claims' CPUs would be widened to others.
        """
        own = self.of(container)
        pinned = own and container.cpus is not None and container.cpus <= own
        if pinned and not cpus <= own and not own <= self.offline:
            raise Violation(f"{container} was given {own} and is widened to {cpus}")

    def created(
        self, container: RunningContainer, containers: Collection[RunningContainer], *, alone: str | None = None
    ) -> None:
        """Check a container that was just created, and all others.

        An instance learns what another one has prepared, which may have died since, when it reads the ledger again or
        when a container uses the claim. So CPUs count if a container uses their claim, or if the instance `alone`
        prepared it.

        Raises:
            Violation: a container runs on CPUs of another container's claims.
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
        """The containers whose masks are wrong."""
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
        """What is wrong in the ledger and the specs when every call has been answered."""
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
