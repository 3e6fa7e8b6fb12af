"""The claims on record as enforcement sees them: one immutable snapshot, published whenever a claim comes or goes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.frozen_map import FrozenMap
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.on_record import Unread
from dranode.driver.core.claims.record import claim_device


@dataclass(frozen=True, slots=True)
class Part:
    """What one allocation result of a claim was given.

    Attributes:
        index: its number in the allocation.
        cpus: the CPUs on which containers run that have nothing else.
        held: the CPUs that nobody else gets.
        mems: `cpuset.mems` of such containers (list format); empty if they take memory from anywhere.
    """

    index: int
    cpus: CPUSet
    held: CPUSet
    mems: str = ""


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """One claim on record.

    Attributes:
        claim: its identity.
        cpus: the CPUs on which its containers run.
        held: the CPUs that nobody else gets; empty if it holds nothing (admin access), and then anybody may share it.
        pods: UIDs of the pods that it was reserved for at its last Prepare.
        shared_in_pod: every container of one pod may use it at a time; else one container.
        mems: `cpuset.mems` of its containers (list format); empty if they take memory from anywhere.
        lift_quota: its containers have no CFS quota.
        parts: what each allocation result was given, if containers can have some of them; else empty.
    """

    claim: ClaimRef
    cpus: CPUSet
    held: CPUSet
    pods: frozenset[str] = frozenset()
    shared_in_pod: bool = False
    mems: str = ""
    lift_quota: bool = False
    parts: tuple[Part, ...] = ()

    def of_parts(self, indexes: Collection[int]) -> HeldClaim:
        """The claim as a container has it that has these parts alone; all of it if it is not known to have any."""
        parts = tuple(part for part in self.parts if part.index in indexes)
        if not parts or parts == self.parts:
            return self
        local = all(part.mems for part in parts if part.cpus)
        return replace(
            self,
            cpus=CPUSet.union(part.cpus for part in parts),
            held=CPUSet.union(part.held for part in parts),
            mems=str(CPUSet.union(CPUSet.parse(part.mems) for part in parts)) if local else "",
            parts=parts,
        )


@dataclass(frozen=True, slots=True, eq=False)
class HeldClaims(Mapping[str, HeldClaim]):
    """Claims on record by UID, and what follows from all of them; `changed` costs what is changed.

    Attributes:
        by_uid: the claims.
        by_pod: the claims of every pod, by the pod's UID.
        held: the CPUs that they hold.
    """

    by_uid: FrozenMap[HeldClaim] = field(default_factory=FrozenMap)
    by_pod: FrozenMap[tuple[HeldClaim, ...]] = field(default_factory=FrozenMap)
    held: CPUSet = field(default_factory=CPUSet)
    # The CPUs that each holds, added up: more than there are in `held` where claims overlap.
    _total: int = 0

    @classmethod
    def of(cls, claims: Iterable[HeldClaim]) -> Self:
        """These claims."""
        return cls().changed(claims)

    def __getitem__(self, uid: str) -> HeldClaim:
        return self.by_uid[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_uid)

    def __len__(self) -> int:
        return len(self.by_uid)

    def changed(self, put: Iterable[HeldClaim] = (), drop: Iterable[str] = ()) -> Self:
        """The claims with these in place of those of the same UIDs, and without the claims of the UIDs in `drop`."""
        new = {claim.claim.uid: claim for claim in put}
        gone = set(drop)
        old = [self.by_uid[uid] for uid in new.keys() | gone if uid in self.by_uid]
        come = [claim for uid, claim in new.items() if uid not in gone]
        by_uid = self.by_uid.changed(new, gone)
        total = self._total - sum(len(claim.held) for claim in old)
        if self._total == len(self.held):
            rest = self.held - CPUSet.union(claim.held for claim in old)
        else:
            # Overlaps are never decided but can be found, and then what one claim leaves may be another's still.
            rest = CPUSet.union(claim.held for uid, claim in by_uid.items() if uid not in new)
        return type(self)(
            by_uid,
            self._by_pod(old, come),
            rest | CPUSet.union(claim.held for claim in come),
            total + sum(len(claim.held) for claim in come),
        )

    def _by_pod(self, old: Iterable[HeldClaim], come: Iterable[HeldClaim]) -> FrozenMap[tuple[HeldClaim, ...]]:
        pods: dict[str, tuple[HeldClaim, ...]] = {}
        for claim in old:
            for pod in claim.pods:
                others = pods.get(pod, self.by_pod.get(pod, ()))
                pods[pod] = tuple(each for each in others if each.claim.uid != claim.claim.uid)
        for claim in come:
            for pod in claim.pods:
                pods[pod] = (*pods.get(pod, self.by_pod.get(pod, ())), claim)
        return self.by_pod.changed(pods, [pod for pod, claims in pods.items() if not claims])


@dataclass(frozen=True)
class HeldSnapshot:
    """What is on record at one moment, and the machine that it is on record for.

    Attributes:
        claims: all claims on record by UID, those without a container included.
        online: the CPUs that are online.
        reserved: the CPUs that are never given to claims.
        mems: the machine's memory nodes (list format); empty if unknown.
        variable: the prefix of the variable that CDI injects, before the claim's UID; empty if there is none.
        part_variable: that of the variable of one allocation result, before `<UID>_<number>`; empty if there is none.
        cdi_kind: the kind of this driver's CDI devices; empty if there are none.
        unread: why other claims may be on record as well; None if these are all. Without the ledger nobody's mask is
            changed, and what is about to be created gets what is left as far as is known.
    """

    claims: Mapping[str, HeldClaim] = field(default_factory=HeldClaims)
    online: CPUSet = field(default_factory=CPUSet)
    reserved: CPUSet = field(default_factory=CPUSet)
    mems: str = ""
    variable: str = ""
    cdi_kind: str = ""
    part_variable: str = ""
    unread: Unread | None = None

    @cached_property
    def index(self) -> HeldClaims:
        """The claims, and what follows from all of them."""
        return self.claims if isinstance(self.claims, HeldClaims) else HeldClaims.of(self.claims.values())

    @property
    def held(self) -> CPUSet:
        """The CPUs that claims hold."""
        return self.index.held

    @cached_property
    def shared(self) -> CPUSet:
        """The CPUs of containers without a claim; the reserved ones if claims leave no other, and perhaps none.

        Where nobody knows what claims hold, it is the reserved ones, of which they can have none.
        """
        if self.unread is not None and self.unread.blind:
            return self.reserved & self.online
        free = self.online - self.held
        return (free - self.reserved) or free

    @property
    def by_pod(self) -> Mapping[str, tuple[HeldClaim, ...]]:
        """The claims of every pod, by the pod's UID."""
        return self.index.by_pod

    def claims_of_devices(self, devices: Iterable[str]) -> Iterator[str]:
        """The UIDs of the claims whose CDI devices these are; other drivers' devices are passed over.

        A claim's devices are `<kind>=claim-<uid>` and `<kind>=claim-<uid>-<index>`.
        """
        return (uid for uid, _ in self._of_devices(devices))

    def parts_of(self, uid: str, devices: Iterable[str], env: Iterable[str]) -> frozenset[int]:
        """The numbers of the claim's results whose CDI devices a container has; none if it is told of none.

        Where the runtime tells CDI devices they count alone; else the variables that CDI injected for them do.
        """
        told = [index for whose, index in self._of_devices(devices) if whose == uid]
        if told:
            return frozenset(index for index in told if index is not None)
        prefix = f"{self.part_variable}{uid}_"
        numbers = (entry.removeprefix(prefix).partition("=")[0] for entry in env if entry.startswith(prefix))
        return frozenset(int(number) for number in numbers if self.part_variable and number.isdecimal())

    def _of_devices(self, devices: Iterable[str]) -> Iterator[tuple[str, int | None]]:
        prefix = f"{self.cdi_kind}={claim_device('')}"
        if not self.cdi_kind:
            return
        for device in devices:
            if not device.startswith(prefix):
                continue
            uid = device.removeprefix(prefix)
            whole, _, index = uid.rpartition("-")
            if uid not in self.claims and index.isdecimal() and whole in self.claims:
                yield whole, int(index)
            else:
                yield uid, None
