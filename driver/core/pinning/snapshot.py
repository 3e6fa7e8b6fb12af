"""The claims on record as enforcement sees them: an immutable snapshot, published whenever a claim comes or goes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.frozen_map import FrozenMap
from dranode.driver.core.claims.expected_cpus import parts_of_container
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.on_record import Unread
from dranode.driver.core.claims.record import claim_device


@dataclass(frozen=True, slots=True)
class Part:
    """The CPUs of one allocation result of a claim.

    Attributes:
        index: its number in the allocation.
        cpus: the CPUs on which a container with only this result runs.
        held: the CPUs that no other claim gets.
        mems: `cpuset.mems` of such containers (list format); empty if they take memory from anywhere.
        with_pool: whether such containers run on the shared pool besides.
    """

    index: int
    cpus: CPUSet
    held: CPUSet
    mems: str = ""
    with_pool: bool = False


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """One claim on record, with the CPUs that it holds.

    Attributes:
        claim: its identity.
        cpus: the CPUs on which its containers run.
        held: the CPUs that no other claim gets; empty if it holds none (admin access), and then any container may share
            it.
        pods: UIDs of the pods that it was reserved for at its last Prepare.
        shared_in_pod: whether all containers of one pod may use it at the same time; else only one container may.
        mems: `cpuset.mems` of its containers (list format); empty if they take memory from anywhere.
        lift_quota: whether its containers have no CFS quota.
        parts: the CPUs of each allocation result, if containers can have only some results; else empty.
        with_pool: whether its containers run on the shared pool besides.
    """

    claim: ClaimRef
    cpus: CPUSet
    held: CPUSet
    pods: frozenset[str] = frozenset()
    shared_in_pod: bool = False
    mems: str = ""
    lift_quota: bool = False
    parts: tuple[Part, ...] = ()
    with_pool: bool = False

    def of_parts(self, indexes: Collection[int]) -> HeldClaim:
        """Return the claim reduced to the parts that a container has; the whole claim if the parts are unknown."""
        mine = parts_of_container(indexes, (part.index for part in self.parts))
        if len(mine) == len(self.parts):
            return self
        parts = tuple(part for part in self.parts if part.index in mine)
        local = all(part.mems for part in parts if part.cpus)
        return replace(
            self,
            cpus=CPUSet.union(part.cpus for part in parts),
            held=CPUSet.union(part.held for part in parts),
            mems=str(CPUSet.union(CPUSet.parse(part.mems) for part in parts)) if local else "",
            parts=parts,
            with_pool=any(part.with_pool for part in parts),
        )


@dataclass(frozen=True, slots=True, eq=False)
class HeldClaims(Mapping[str, HeldClaim]):
    """Claims on record by UID, with sums over all of them. The cost of `changed` grows with the change only.

    Attributes:
        by_uid: the claims.
        by_pod: the claims of every pod, by the pod's UID.
        held: the CPUs that they hold.
    """

    by_uid: FrozenMap[HeldClaim] = field(default_factory=FrozenMap)
    by_pod: FrozenMap[tuple[HeldClaim, ...]] = field(default_factory=FrozenMap)
    held: CPUSet = field(default_factory=CPUSet)
    # The sum of the numbers of held CPUs; larger than the size of `held` if claims overlap.
    _total: int = 0

    @classmethod
    def of(cls, claims: Iterable[HeldClaim]) -> Self:
        """Make the mapping of these claims."""
        return cls().changed(claims)

    def __getitem__(self, uid: str) -> HeldClaim:
        return self.by_uid[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_uid)

    def __len__(self) -> int:
        return len(self.by_uid)

    def changed(self, put: Iterable[HeldClaim] = (), drop: Iterable[str] = ()) -> Self:
        """Return a copy with the claims of `put` set, and those of `drop` removed."""
        new = {claim.claim.uid: claim for claim in put}
        gone = set(drop)
        old = [self.by_uid[uid] for uid in new.keys() | gone if uid in self.by_uid]
        come = [claim for uid, claim in new.items() if uid not in gone]
        by_uid = self.by_uid.changed(new, gone)
        total = self._total - sum(len(claim.held) for claim in old)
        if self._total == len(self.held):
            rest = self.held - CPUSet.union(claim.held for claim in old)
        else:
            # No decision makes claims overlap, but records may; another claim may still hold a dropped one's CPUs.
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
    """All claims on record at one moment, and the machine.

    Attributes:
        claims: all claims on record by UID, those without a container included.
        online: the CPUs that are online.
        reserved: the CPUs that no claim ever gets.
        mems: the machine's memory nodes (list format); empty if unknown.
        variable: the prefix of the variable that CDI injects, before the claim's UID; empty if there is none.
        part_variable: the prefix of the variable of one allocation result, before `<UID>_<number>`; empty if there is
            none.
        cdi_kind: the kind of this driver's CDI devices; empty if there are none.
        unread: why there may be records of other claims, or other CPUs; None if these are all. Without ledger or
            hardware no mask is changed, and a new container gets the CPUs that no known claim holds.
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
        """Return the claims with the sums over all of them."""
        return self.claims if isinstance(self.claims, HeldClaims) else HeldClaims.of(self.claims.values())

    @property
    def held(self) -> CPUSet:
        """Return the CPUs that claims hold."""
        return self.index.held

    @cached_property
    def shared(self) -> CPUSet:
        """Return the CPUs of containers without a claim; only the reserved ones, or none, if claims hold all others.

        While records cannot be read, it is the reserved CPUs alone, which no claim can hold.
        """
        if self.unread is not None and self.unread.blind:
            return self.reserved & self.online
        free = self.online - self.held
        return (free - self.reserved) or free

    @property
    def by_pod(self) -> Mapping[str, tuple[HeldClaim, ...]]:
        """Return the claims of every pod, by the pod's UID."""
        return self.index.by_pod

    def claims_of_devices(self, devices: Iterable[str]) -> Iterator[str]:
        """Yield the UIDs of the claims with these CDI devices; devices of other drivers are ignored.

        A claim's devices are `<kind>=claim-<uid>` and `<kind>=claim-<uid>-<index>`.
        """
        return (uid for uid, _ in self._of_devices(devices))

    def parts_of(self, uid: str, devices: Iterable[str], env: Iterable[str]) -> frozenset[int]:
        """Return the numbers of the claim's results that a container has; none if nothing names a result.

        If the runtime reports CDI devices, only they count; else the variables count that CDI injected for them.
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
