"""Containers and pods as a container runtime describes them, and the changes that a node driver asks it for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.api.quantity import Quantity, page_size_name
from dranode.driver.claims.record import expected_cpus
from dranode.driver.claims.uses import PodSandbox
from dranode.driver.pinning.snapshot import (
    NO_LIMITS,
    HugepageLimits,
    PinnedClaim,
    PinSnapshot,
    limit_sums,
    limits_held_to,
    limits_over,
)


class Container(msgspec.Struct, frozen=True):
    """A container that exists or is about to be created.

    Attributes:
        id: the runtime's id.
        env: entries as in its OCI configuration (`NAME=value`), those that CDI injected included.
        cdi_devices: the CDI devices that kubelet asked for, where the runtime reports them (containerd from 2.3).
        cpus: the configured `cpuset.cpus`; empty if none is.
        mems: the configured `cpuset.mems`; empty if none is.
        quota: the configured `cpu.cfs_quota_us`; 0 or less is no limit.
        hugepages: the configured limits of huge pages.
        started: whether its process has been started.
        cgroup: the OCI `cgroupsPath`: a path, or `slice:prefix:name` with the systemd driver.
    """

    id: str
    name: str
    pod: PodSandbox
    env: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    cpus: CPUSet = NO_CPUS
    mems: CPUSet = NO_CPUS
    quota: int = 0
    started: bool = False
    cgroup: str = ""
    hugepages: HugepageLimits = NO_LIMITS

    def __str__(self) -> str:
        return f'container "{self.name}" of pod {self.pod}'


class Resources(msgspec.Struct, frozen=True):
    """Resources to set on a container. An empty or False field leaves its resource unchanged.

    NRI cannot clear a cpuset.

    Attributes:
        cpus: `cpuset.cpus`.
        mems: `cpuset.mems`.
        lift_quota: remove the CFS quota.
        hugepages: limits of huge pages; sizes that are left out stay unchanged.
        unified: whether limits of huge pages are files of cgroup v2, by which alone runc changes those of a container
            that exists.
    """

    cpus: CPUSet = NO_CPUS
    mems: CPUSet = NO_CPUS
    lift_quota: bool = False
    hugepages: HugepageLimits = NO_LIMITS
    unified: bool = False

    def __bool__(self) -> bool:
        return bool(self.cpus) or bool(self.mems) or self.lift_quota or bool(self.hugepages)


class ContainerUpdate(msgspec.Struct, frozen=True):
    """New resources for a container that exists.

    Attributes:
        ignore_failure: whether the operation that carries this update succeeds if the runtime cannot apply it.
    """

    container_id: str
    resources: Resources
    ignore_failure: bool = False


# Compares what the kernel lets a container use with what it should, in words where they differ.


class Effective(msgspec.Struct, frozen=True):
    """The kernel's limits of a container; what could not be read, or was not asked for, is None or missing.

    Attributes:
        cpus: the CPUs (`cpuset.cpus.effective`).
        nodes: the NUMA nodes that its memory comes from (`cpuset.mems.effective`).
        hugepages: the limits of huge pages (`hugetlb.<size>.max`).
    """

    cpus: CPUSet | None = None
    nodes: CPUSet | None = None
    hugepages: HugepageLimits = NO_LIMITS

    def beside(self, other: Effective) -> tuple[Effective, Effective]:
        """Return the parts of this and of `other` that both have and that differ."""
        theirs = dict(other.hugepages)
        pages = tuple(pair for pair in self.hugepages if pair[0] in theirs and theirs[pair[0]] != pair[1])
        cpus = None not in (self.cpus, other.cpus) and self.cpus != other.cpus
        nodes = None not in (self.nodes, other.nodes) and self.nodes != other.nodes
        return (
            Effective(self.cpus if cpus else None, self.nodes if nodes else None, pages),
            Effective(
                other.cpus if cpus else None,
                other.nodes if nodes else None,
                tuple((size, theirs[size]) for size, _ in pages),
            ),
        )

    def __bool__(self) -> bool:
        return self != Effective()


def difference(expected: Effective, actual: Effective) -> str:
    """Say how what a container may use differs from what it should."""
    return ", and ".join(_differences(expected, actual))


def words(effective: Effective) -> str:
    """Say which memory a container gets."""
    parts = [] if effective.nodes is None else [f"takes memory from NUMA nodes {effective.nodes}"]
    parts += [f"may have {_amount(limit)} in pages of {page_size_name(size)}" for size, limit in effective.hugepages]
    return " and ".join(parts) or "cannot be seen"


def _differences(expected: Effective, actual: Effective) -> Iterator[str]:
    if actual.cpus is not None:
        yield f"runs on CPUs {actual.cpus}, but should run on {expected.cpus}"
    if actual.nodes is not None:
        yield f"takes memory from NUMA nodes {actual.nodes}, but should from {expected.nodes}"
    wanted = dict(expected.hugepages)
    for size, limit in actual.hugepages:
        yield f"may have {_amount(limit)} in pages of {page_size_name(size)}, but should have {_amount(wanted[size])}"


def _amount(limit: int) -> str:
    # The kernel's largest limit of a page counter is no limit (hugetlb.<size>.max reads "max").
    return "any amount" if limit >= 1 << 62 else str(Quantity.binary(limit))


# A container that exists, the CPUs and the memory that it has, and those that it should have.

K = TypeVar("K")


class Pinned(msgspec.Struct, frozen=True):
    """A container that exists, without its environment.

    Attributes:
        container: the container as the runtime described it.
        claims: the keys of its claims.
        cpus: the mask that it was last given; empty if it has none, or if its real mask was seen to differ.
        mems: the memory nodes that this driver last gave it; empty if none.
        hugepages: the limits of huge pages that it has.
        parts: for claims of which it has only some allocation results, the key and the number of each result.
        provisional: it got its resources between its creation and its start. The runtime may have read its
            configuration before the update, so its real mask is unknown until it gets the resources again.
        unsure: it was added while the ledger could not be read. It may have other claims than these, so its mask
            stays unchanged until the runtime reports it again.
        unresolved: it names an unknown claim, and may have it.
        unheard: it names a claim on record, and kubelet did not answer whether it has it; `container` is whole, so that
            it can be looked at again. Meanwhile it stays on CPUs that claims hold, where only a driver puts anybody.
        denied: it names a claim on record that kubelet says it has not; `container` is whole as well, since a kubelet
            that has just started may not know of it yet.
        memory_unsure: as `unsure`, of claims that hold memory alone.
        doubtful: it may have other resources than these, because an update did not arrive, or because it had others
            when the kernel was last asked; so it gets them again whatever they are.
    """

    container: Container
    claims: tuple[str, ...] = ()
    cpus: CPUSet = NO_CPUS
    mems: CPUSet = NO_CPUS
    provisional: bool = False
    parts: frozenset[tuple[str, int]] = frozenset()
    unsure: bool = False
    unresolved: bool = False
    unheard: bool = False
    denied: bool = False
    hugepages: HugepageLimits = NO_LIMITS
    memory_unsure: bool = False
    doubtful: bool = False

    @property
    def effective(self) -> Effective:
        """Return what the kernel should say of the container, by what it was given."""
        return Effective(self.cpus, self.mems or None, self.hugepages)

    def given(self, resources: Resources) -> Pinned:
        """Return the container after it was given these resources."""
        return replace(
            self,
            cpus=resources.cpus or self.cpus,
            mems=resources.mems or self.mems,
            hugepages=limits_over(self.hugepages, resources.hugepages),
            doubtful=False,
        )

    def updated(self, resources: Resources) -> Pinned:
        """Return the container after an update with these resources."""
        return replace(self.given(resources), provisional=not self.container.started)

    def started(self) -> Pinned:
        """Return the container after its start."""
        running = replace(self, container=replace(self.container, started=True), provisional=False)
        return running.in_doubt() if self.provisional else running

    def in_doubt(self) -> Pinned:
        """Return the container when it may have other resources than it was given."""
        return replace(self, cpus=CPUSet(), doubtful=True)


def resources_for(claims: Iterable[PinnedClaim], snapshot: PinSnapshot, own: HugepageLimits = NO_LIMITS) -> Resources:
    """Return the resources that a container with these claims should have; without CPUs if the shared pool has none.

    Memory comes from the nodes of claims that hold memory, or else from those that are local to its CPUs, if every
    claim with CPUs asks for that. With a claim that asks for the shared pool as well, the CPUs are those of the claims
    and of the pool. `own` are the limits of huge pages that it has.
    """
    claims = tuple(claims)
    having_cpus = [claim for claim in claims if claim.cpus]
    return Resources(
        _cpus(having_cpus, snapshot) if snapshot.pins_cpus else CPUSet(),
        _for_pods(bound_nodes(claims) or nodes_near_cpus(claims), snapshot),
        lift_quota=any(claim.lift_quota for claim in having_cpus),
        hugepages=_pages(claims, snapshot, own) if snapshot.page_sizes else NO_LIMITS,
        unified=snapshot.unified_pages,
    )


def _pages(claims: Iterable[PinnedClaim], snapshot: PinSnapshot, own: HugepageLimits) -> HugepageLimits:
    claimed = limit_sums(claim.hugepages for claim in claims if claim.hugepages)
    return limits_held_to(claimed, own, snapshot.page_sizes, exclusive=snapshot.exclusive_pages)


def _for_pods(nodes: CPUSet, snapshot: PinSnapshot) -> CPUSet:
    """Return those of a container's memory nodes that pods may use, or all that they may use if these are none."""
    return (nodes & snapshot.mems or snapshot.mems) if nodes and snapshot.mems else nodes


def _cpus(having_cpus: Iterable[PinnedClaim], snapshot: PinSnapshot) -> CPUSet:
    having_cpus = tuple(having_cpus)
    cpus = expected_cpus((claim.cpus for claim in having_cpus), snapshot.online)
    if cpus is None:
        return snapshot.shared
    return cpus | snapshot.shared if any(claim.with_pool for claim in having_cpus) else cpus


def bound_nodes(claims: Iterable[PinnedClaim]) -> CPUSet:
    """Return the nodes of the memory that a container holds, if it takes memory from these alone; else none."""
    having_memory = [claim for claim in claims if claim.nodes]
    binds = any(claim.binds for claim in having_memory)
    return CPUSet.union(claim.nodes for claim in having_memory) if binds else CPUSet()


def nodes_near_cpus(claims: Iterable[PinnedClaim]) -> CPUSet:
    """Return the nodes of a container's CPUs, if each of its claims that hold CPUs asks for memory from there."""
    having_cpus = [claim for claim in claims if claim.cpus]
    if not all(claim.mems for claim in having_cpus):
        return CPUSet()
    return CPUSet.union(claim.mems for claim in having_cpus)


def expected(pinned: Pinned, snapshot: PinSnapshot) -> Resources:
    """Return the resources that an existing container should have.

    If all its claims were unprepared, it belongs to the shared pool. It keeps its resources while it is uncertain which
    claims it has, or while records cannot be read.
    """
    claims = having(pinned, snapshot)
    if pinned.unsure or snapshot.unread is not None or (pinned.unheard and _on_held(pinned, snapshot)):
        return Resources(pinned.cpus, pinned.mems, lift_quota=any(claim.lift_quota for claim in claims))
    right = resources_for(claims, snapshot, pinned.hugepages)
    if keeps_memory(pinned, snapshot):
        return replace(right, mems=pinned.mems, hugepages=NO_LIMITS)
    return right


def keeps_memory(pinned: Pinned, snapshot: PinSnapshot) -> bool:
    """Return whether a container keeps its memory, because what its claims hold of that is not known."""
    return pinned.unsure or pinned.memory_unsure or snapshot.lacks_claims


def _on_held(pinned: Pinned, snapshot: PinSnapshot) -> bool:
    return bool(pinned.cpus) and pinned.cpus <= snapshot.held


def pooled(pinned: Pinned, snapshot: PinSnapshot) -> bool:
    """Return whether a container runs on the shared pool: no claim of it has CPUs online, or one wants both."""
    with_cpus = [claim for claim in having(pinned, snapshot) if claim.cpus & snapshot.online]
    return not with_cpus or any(claim.with_pool for claim in with_cpus)


def having(pinned: Pinned, snapshot: PinSnapshot) -> tuple[PinnedClaim, ...]:
    """Return the claims on record that a container has, each with the parts that it has."""
    records = ((key, snapshot.claims.get(key)) for key in pinned.claims)
    return tuple(
        claim if not pinned.parts else claim.of_parts([index for of, index in pinned.parts if of == key])
        for key, claim in records
        if claim is not None
    )


def stays_on(pinned: Pinned, snapshot: PinSnapshot) -> CPUSet:
    """Return the mask that a container keeps where the shared pool that it should run on has no CPU."""
    if not snapshot.pins_cpus:
        return CPUSet()
    return pinned.cpus or CPUSet.union(claim.cpus for claim in having(pinned, snapshot))


def some_of(claims: Iterable[PinnedClaim], snapshot: PinSnapshot) -> frozenset[tuple[str, int]]:
    """Return `Pinned.parts` of a container that has these claims."""
    return frozenset(
        (claim.key, part.index)
        for claim in claims
        if claim.parts != snapshot.claims[claim.key].parts
        for part in claim.parts
    )
