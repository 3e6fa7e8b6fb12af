"""The claims on record as enforcement sees them: an immutable snapshot, replaced whenever a claim changes.

The NRI thread answers the container runtime, which gives up after a while (2 s by default in containerd). So the thread
must not wait for a Prepare that holds the lock on decisions. It reads the latest snapshot instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record, Unread, claim_device
from dranode.driver.pinning.given_cpus import parts_of_container

# Limits of huge pages: page size in bytes and limit in bytes, sorted by size, each size once.
HugepageLimits: TypeAlias = tuple[tuple[int, int], ...]

NO_LIMITS: Final[HugepageLimits] = ()


def limit_sums(limits: Iterable[HugepageLimits]) -> HugepageLimits:
    """Return the sum of several limits by page size."""
    sums: dict[int, int] = {}
    for size, amount in (pair for pairs in limits for pair in pairs):
        sums[size] = sums.get(size, 0) + amount
    return tuple(sorted(sums.items()))


def limits_over(before: HugepageLimits, after: HugepageLimits) -> HugepageLimits:
    """Return `before`, with the limits of the page sizes in `after` replaced."""
    return tuple(sorted({**dict(before), **dict(after)}.items())) if after else before


def limits_held_to(
    claimed: HugepageLimits, own: HugepageLimits, sizes: Iterable[int], *, exclusive: bool
) -> HugepageLimits:
    """Return the limits that a container should have. Page sizes that are left out are not changed.

    Args:
        claimed: the amounts that its claims hold.
        own: the limits in its configuration.
        sizes: the page sizes for which containers can be limited.
        exclusive: whether it may have only the pages of its claims. Otherwise a limit is raised to the claimed amount,
            but never lowered: with the feature gate DRANodeAllocatableResources, kubelet has already added the claims.
    """
    given, before = dict(claimed), dict(own)
    if exclusive:
        return tuple((size, given.get(size, 0)) for size in sizes)
    return tuple((size, max(given[size], before.get(size, 0))) for size in sizes if size in given)


# An index of an allocation result has at most this many digits; a longer number is part of a UID.
_DIGITS: Final = 9


def claim_key(driver: str, uid: str) -> str:
    """Return a claim's key in a snapshot: its UID, or `<driver>/<UID>` in a snapshot of several drivers."""
    return f"{driver}/{uid}" if driver else uid


class ClaimNames(msgspec.Struct, frozen=True):
    """How containers name the claims of one driver: by CDI devices, and by the variables that these inject.

    Attributes:
        driver: the driver, in a snapshot of several drivers; otherwise empty.
        cdi_kind: the kind of its CDI devices; empty if it has none.
        variable: the prefix of the variable that CDI injects, before the claim's UID; empty if there is none.
        part_variable: the prefix of the variable of one allocation result, before `<UID>_<number>`; empty if there is
            none.
        pins_cpus: whether the driver holds containers to CPUs.
    """

    driver: str = ""
    cdi_kind: str = ""
    variable: str = ""
    part_variable: str = ""
    pins_cpus: bool = True

    def key(self, uid: str) -> str:
        """Return the key of the claim with this UID."""
        return claim_key(self.driver, uid)

    def of_devices(self, devices: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, int | None]]:
        """Yield the key of each device's claim, and the number of the allocation result, None for the whole claim.

        Args:
            devices: CDI devices: `<kind>=claim-<uid>` and `<kind>=claim-<uid>-<index>`. Others are ignored.
            known: the keys of the claims on record. A UID may end like an index, so they decide what the end is.
        """
        prefix = f"{self.cdi_kind}={claim_device('')}"
        if not self.cdi_kind:
            return
        for device in devices:
            if not device.startswith(prefix):
                continue
            # `claim-<uid>-<index>` is ambiguous, because the last group of a UID may consist of digits only. The
            # records decide what the end means; without a record, the whole text is taken for the UID.
            uid = device.removeprefix(prefix)
            whole, _, index = uid.rpartition("-")
            if self.key(uid) not in known and _is_index(index) and self.key(whole) in known:
                yield self.key(whole), int(index)
            else:
                yield self.key(uid), None

    def in_env(self, env: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the key and the value of each variable that names a claim."""
        if not self.variable:
            return
        for entry in env:
            if entry.startswith(self.variable):
                name, _, value = entry.partition("=")
                yield self.key(name.removeprefix(self.variable)), value

    def parts_in_env(self, key: str, env: Iterable[str]) -> Iterator[int]:
        """Yield the numbers of the claim's allocation results that variables name."""
        uid = key.removeprefix(self.key(""))
        if not self.part_variable or self.key(uid) != key:
            return
        prefix = f"{self.part_variable}{uid}_"
        numbers = (entry.removeprefix(prefix).partition("=")[0] for entry in env if entry.startswith(prefix))
        yield from (int(number) for number in numbers if _is_index(number))


def _is_index(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS


class Part(msgspec.Struct, frozen=True):
    """The share of one allocation result in what its claim holds.

    Attributes:
        index: its number in the allocation.
        cpus: the CPUs on which a container with only this result runs.
        held: the CPUs that no other claim gets.
        mems: `cpuset.mems` of such containers; empty if they take memory from anywhere.
        with_pool: whether such containers also run on the shared pool.
        nodes, binds, memory, hugepages: as in `PinnedClaim`.
    """

    index: int
    cpus: CPUSet = NO_CPUS
    held: CPUSet = NO_CPUS
    mems: CPUSet = NO_CPUS
    with_pool: bool = False
    nodes: CPUSet = NO_CPUS
    binds: bool = False
    memory: int = 0
    hugepages: HugepageLimits = NO_LIMITS

    @property
    def exclusive(self) -> bool:
        """Return whether it holds CPUs or memory, so that only one container at a time may use it."""
        return bool(self.held) or bool(self.nodes)


class PinnedClaim(msgspec.Struct, frozen=True):
    """One claim on record, with the CPUs and the memory that it holds.

    A claim that holds neither (admin access) may be shared by any containers.

    Attributes:
        claim: its identity.
        cpus: the CPUs on which its containers run.
        held: the CPUs that no other claim gets.
        pods: UIDs of the pods that it was reserved for at its last Prepare.
        shared_in_pod: whether all containers of one pod may use it at the same time; else only one container may.
        mems: for a claim that holds CPUs, the `cpuset.mems` that is local to them; empty if its containers take memory
            from anywhere.
        lift_quota: whether its containers have no CFS quota.
        parts: the share of each allocation result, if containers can have single results; else empty.
        with_pool: whether its containers also run on the shared pool.
        nodes: the NUMA nodes of the memory that it holds.
        binds: whether its containers take memory only from these nodes.
        memory: the ordinary memory that it holds, in bytes.
        hugepages: how much its containers may have in huge pages.
        driver: the driver that prepared it, in a snapshot of several drivers; else empty.
    """

    claim: ClaimRef
    cpus: CPUSet = NO_CPUS
    held: CPUSet = NO_CPUS
    pods: frozenset[str] = frozenset()
    shared_in_pod: bool = False
    mems: CPUSet = NO_CPUS
    lift_quota: bool = False
    parts: tuple[Part, ...] = ()
    with_pool: bool = False
    nodes: CPUSet = NO_CPUS
    binds: bool = False
    memory: int = 0
    hugepages: HugepageLimits = NO_LIMITS
    driver: str = ""

    @property
    def key(self) -> str:
        """Return the claim's key in its snapshot, which contains the driver if several drivers share the snapshot."""
        return claim_key(self.driver, self.claim.uid)

    @property
    def exclusive(self) -> bool:
        """Return whether the claim holds CPUs or memory, which only some containers may use at the same time."""
        return bool(self.held) or bool(self.nodes)

    def of_parts(self, indexes: Collection[int]) -> PinnedClaim:
        """Return the claim reduced to the parts that a container has; the whole claim if the parts are unknown."""
        indexes = parts_of_container(indexes, (part.index for part in self.parts))
        if len(indexes) == len(self.parts):
            return self
        return self.with_parts(tuple(part for part in self.parts if part.index in indexes))

    def with_parts(self, parts: tuple[Part, ...]) -> PinnedClaim:
        """Return the claim reduced to these parts, with their sums in place of the whole claim's."""
        local = all(part.mems for part in parts if part.cpus)
        return replace(
            self,
            cpus=CPUSet.union(part.cpus for part in parts),
            held=CPUSet.union(part.held for part in parts),
            mems=CPUSet.union(part.mems for part in parts) if local else NO_CPUS,
            parts=parts,
            with_pool=any(part.with_pool for part in parts),
            nodes=CPUSet.union(part.nodes for part in parts),
            binds=any(part.binds for part in parts),
            memory=sum(part.memory for part in parts),
            hugepages=limit_sums(part.hugepages for part in parts),
        )


class PinnedClaims(Mapping[str, PinnedClaim]):
    """Claims on record by their keys, with sums that a change updates without visiting all claims.

    Attributes:
        by_key: the claims.
        by_pod: the claims of every pod, by the pod's UID.
        held: the CPUs that they hold.
    """

    __slots__ = ("_total", "by_key", "by_pod", "held")

    def __init__(
        self,
        by_key: Mapping[str, PinnedClaim] | None = None,
        by_pod: Mapping[str, tuple[PinnedClaim, ...]] | None = None,
        held: CPUSet | None = None,
        total: int = 0,
    ) -> None:
        """Make an empty mapping; use `of` and `changed` for others."""
        self.by_key: Mapping[str, PinnedClaim] = by_key or {}
        self.by_pod: Mapping[str, tuple[PinnedClaim, ...]] = by_pod or {}
        self.held = held or CPUSet()
        # The sum over all claims of the number of CPUs that they hold; larger than the size of `held` if claims
        # overlap.
        self._total = total

    @classmethod
    def of(cls, claims: Iterable[PinnedClaim]) -> Self:
        """Make the mapping of these claims."""
        return cls().changed(claims)

    def __getitem__(self, key: str) -> PinnedClaim:
        return self.by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_key)

    def __len__(self) -> int:
        return len(self.by_key)

    def differing(self, other: PinnedClaims) -> frozenset[str]:
        """Return the keys of claims that differ, or that only one of the two has."""
        # Most claims are the same object in both, and comparing identity is faster than comparing fields.
        return frozenset(other.by_key.keys() - self.by_key.keys()) | {
            key for key, claim in self.by_key.items() if (new := other.by_key.get(key)) is not claim and new != claim
        }

    def changed(self, put: Iterable[PinnedClaim] = (), drop: Iterable[str] = ()) -> Self:
        """Return a copy with the claims of `put` set, and those of `drop` removed."""
        # This mapping stays unchanged: the NRI thread may still be deciding with a snapshot that has it.
        new = {claim.key: claim for claim in put}
        gone = set(drop)
        old = [self.by_key[key] for key in new.keys() | gone if key in self.by_key]
        added = [claim for key, claim in new.items() if key not in gone]
        by_key = {**self.by_key, **new}
        for key in gone:
            by_key.pop(key, None)
        total = self._total - sum(len(claim.held) for claim in old)
        # Every CPU has one holder, so the CPUs of the old claims can simply be taken out.
        if self._total == len(self.held):
            rest = self.held - CPUSet.union(claim.held for claim in old)
        else:
            # No decision makes claims overlap, but recovered records may. Then another claim may still hold the CPUs of
            # the dropped one, so the union is computed from all claims.
            rest = CPUSet.union(claim.held for key, claim in by_key.items() if key not in new)
        return type(self)(
            by_key,
            self._by_pod(old, added),
            rest | CPUSet.union(claim.held for claim in added),
            total + sum(len(claim.held) for claim in added),
        )

    def _by_pod(self, old: Iterable[PinnedClaim], added: Iterable[PinnedClaim]) -> dict[str, tuple[PinnedClaim, ...]]:
        pods: dict[str, tuple[PinnedClaim, ...]] = {}
        for claim in old:
            for pod in claim.pods:
                others = pods.get(pod, self.by_pod.get(pod, ()))
                # An empty tuple stays until the end, so that the pod is then removed from the copy as well.
                pods[pod] = tuple(other for other in others if other.key != claim.key)
        for claim in added:
            for pod in claim.pods:
                pods[pod] = (*pods.get(pod, self.by_pod.get(pod, ())), claim)
        by_pod = {**self.by_pod, **pods}
        for pod in (pod for pod, claims in pods.items() if not claims):
            del by_pod[pod]
        return by_pod


class PinSnapshot(msgspec.Struct, frozen=True, dict=True):
    """All claims on record at one moment, and the machine.

    Attributes:
        claims: all claims on record by key, also those without a container; see `claim_key`.
        online: the CPUs that are online.
        reserved: the CPUs that no claim gets.
        mems: the machine's memory nodes; empty if unknown.
        variable: the prefix of the variable that CDI injects, before the claim's UID; empty if there is none.
        part_variable: the prefix of the variable of one allocation result, before `<UID>_<number>`; empty if there is
            none.
        cdi_kind: the kind of this driver's CDI devices; empty if it has none.
        unread: why there may be other claims or other CPUs than these; None if the snapshot is complete. While ledger
            or hardware cannot be read, no mask is changed, and a new container gets the CPUs that no known claim holds.
        pins_cpus: whether containers are held to CPUs; False for a driver that only limits memory.
        page_sizes: the sizes of huge pages for which containers can be limited, in bytes, ascending.
        exclusive_pages: whether containers may have no other huge pages than those of their claims.
        unified_pages: whether these limits are set through files of cgroup v2.
        memory_unread: like `unread`, in a snapshot of several drivers, for those that only limit memory. Meanwhile
            memory nodes and huge pages of containers are not changed; their CPUs are.
        names: how containers name the claims of each of several drivers.
    """

    claims: PinnedClaims = msgspec.field(default_factory=PinnedClaims)
    online: CPUSet = msgspec.field(default_factory=CPUSet)
    reserved: CPUSet = msgspec.field(default_factory=CPUSet)
    mems: CPUSet = NO_CPUS
    variable: str = ""
    cdi_kind: str = ""
    part_variable: str = ""
    unread: Unread | None = None
    pins_cpus: bool = True
    page_sizes: tuple[int, ...] = ()
    exclusive_pages: bool = False
    unified_pages: bool = False
    memory_unread: Unread | None = None
    names: tuple[ClaimNames, ...] = ()

    @cached_property
    def claim_names(self) -> tuple[ClaimNames, ...]:
        """Return how containers name the claims of each driver."""
        return self.names or (ClaimNames("", self.cdi_kind, self.variable, self.part_variable),)

    @property
    def held(self) -> CPUSet:
        """Return the CPUs that claims hold."""
        return self.claims.held

    @property
    def machine(self) -> tuple[object, ...]:
        """Return the fields that concern all containers: if one changes, every container has to be compared."""
        return self.online, self.mems, self.page_sizes, self.exclusive_pages, self.unified_pages

    @property
    def lacks_claims(self) -> bool:
        """Return whether there may be claims on record that the snapshot lacks."""
        return self.unread is not None or self.memory_unread is not None

    def unread_of(self, key: str) -> Unread | None:
        """Return why the snapshot may lack claims of the driver in a claim's key; None if it has all."""
        driver = key.partition("/")[0]
        # If the ledger of the memory driver cannot be read, the CPUs of all claims are still known, and vice versa.
        memory_alone = any(names.driver == driver and not names.pins_cpus for names in self.names)
        return self.memory_unread if memory_alone else self.unread

    @cached_property
    def shared(self) -> CPUSet:
        """Return the CPUs of containers without a claim: online CPUs that are not reserved and that no claim holds.

        If claims hold all of these, it is the reserved CPUs, as far as no claim holds them either: a claim that was
        prepared with other options may hold some. If the records have never been read, it is only the reserved CPUs,
        because claims do not get these.
        """
        # Blind means that unknown claims may hold any CPU. Only the reserved CPUs are safe then.
        if self.unread is not None and self.unread.blind:
            return (self.reserved & self.online) - self.held
        # A container has to run somewhere. If nothing else is left, it runs on the reserved CPUs, which no claim holds.
        free = self.online - self.held
        return (free - self.reserved) or free

    @property
    def by_pod(self) -> Mapping[str, tuple[PinnedClaim, ...]]:
        """Return the claims of every pod, by the pod's UID."""
        return self.claims.by_pod

    def claims_of_devices(self, devices: Iterable[str]) -> Iterator[str]:
        """Yield the keys of the claims that these CDI devices belong to; devices of other drivers are ignored."""
        devices = tuple(devices)
        return (key for names in self.claim_names for key, _ in names.of_devices(devices, self.claims))

    def parts_of(self, key: str, devices: Iterable[str], env: Iterable[str]) -> frozenset[int]:
        """Return the numbers of the claim's allocation results that a container has; none if nothing names a result.

        If the runtime reports CDI devices, only these count. Otherwise the variables count that CDI has injected.
        """
        devices = tuple(devices)
        for names in self.claim_names:
            numbers = [index for claim, index in names.of_devices(devices, self.claims) if claim == key]
            if numbers:
                return frozenset(index for index in numbers if index is not None)
        return frozenset(index for names in self.claim_names for index in names.parts_in_env(key, env))


class Pins(ABC):
    """A driver whose claims hold CPUs or NUMA nodes, so that containers have to be pinned to them.

    A driver implements this in addition to `Plugin`. The framework then asks the container runtime, through NRI, to run
    the containers of a claim on the claim's CPUs and memory nodes. If the driver hands out CPUs, all other containers
    are moved to the CPUs that are left.
    """

    @abstractmethod
    def pool(self, inventory: Inventory) -> PinSnapshot:
        """Return a snapshot without claims: the machine's CPUs or NUMA nodes, and the reserved CPUs.

        Called after `discover` has returned another inventory, under the lock on decisions. The framework adds a
        `PinnedClaim` for each record and enforces the result.

        Example:
            return PinSnapshot(online=inventory.hardware.online, cdi_kind="example.com/cpu", variable="EXAMPLE_CPUS_")
        """

    def unread_pool(self) -> PinSnapshot:
        """Return what is known about the machine while `discover` has never succeeded.

        Called instead of `pool` if the hardware cannot be read at start-up. If no online CPU is known, containers with
        claims get the CPUs of their claims, and all others the reserved CPUs.
        """
        return PinSnapshot()

    @abstractmethod
    def pinned(self, record: Record) -> PinnedClaim:
        """Return what a record means for the containers of its claim.

        Called when a claim is prepared, and for every record at start-up, perhaps before `discover` has succeeded. So
        the answer must follow from the record alone; the driver's grants are in `record.grants`.

        Example:
            return PinnedClaim(record.ref, cpus=record.cpus, held=record.held)
        """


class JoinedSnapshots(msgspec.Struct):
    """The snapshots of several drivers joined into one, which one NRI plug-in enforces.

    Two drivers may each have prepared a part of the same claim, so the keys begin with the driver.
    """

    _latest: dict[str, PinSnapshot] = msgspec.field(default_factory=dict)
    _claims: PinnedClaims = msgspec.field(default_factory=PinnedClaims)

    def put(self, driver: str, snapshot: PinSnapshot) -> PinSnapshot:
        """Replace a driver's snapshot, and return the joined one."""
        before = self._latest.get(driver, PinSnapshot())
        self._latest[driver] = snapshot
        new = snapshot.claims.by_key
        changed = before.claims.differing(snapshot.claims)
        if changed:
            put = [replace(new[key], driver=driver) for key in changed if key in new]
            drop = [claim_key(driver, key) for key in changed if key not in new]
            self._claims = self._claims.changed(put, drop)
        return self._joined()

    def _joined(self) -> PinSnapshot:
        snapshots = tuple(self._latest.values())
        with_cpus = [snapshot for snapshot in snapshots if snapshot.pins_cpus]
        others = [snapshot for snapshot in snapshots if not snapshot.pins_cpus]
        return PinSnapshot(
            claims=self._claims,
            online=CPUSet.union(snapshot.online for snapshot in with_cpus),
            reserved=CPUSet.union(snapshot.reserved for snapshot in with_cpus),
            mems=next((snapshot.mems for snapshot in snapshots if snapshot.mems), NO_CPUS),
            unread=_first(with_cpus or snapshots),
            memory_unread=_first(others) if with_cpus else None,
            pins_cpus=bool(with_cpus),
            page_sizes=tuple(sorted({size for snapshot in snapshots for size in snapshot.page_sizes})),
            exclusive_pages=any(snapshot.exclusive_pages for snapshot in snapshots),
            unified_pages=any(snapshot.unified_pages for snapshot in snapshots),
            names=tuple(
                replace(names, driver=driver, pins_cpus=snapshot.pins_cpus or not with_cpus)
                for driver, snapshot in self._latest.items()
                for names in snapshot.claim_names
            ),
        )


def _first(snapshots: Iterable[PinSnapshot]) -> Unread | None:
    return next((snapshot.unread for snapshot in snapshots if snapshot.unread is not None), None)
