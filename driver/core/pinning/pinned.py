"""A container that exists, the CPUs and the memory that it has, and those that it should have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dranode.driver.core.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.core.claims.expected_cpus import expected_cpus
from dranode.driver.core.pinning.containers import Container, Resources
from dranode.driver.core.pinning.effective import Effective
from dranode.driver.core.pinning.hugepages import (
    NO_LIMITS,
    HugepageLimits,
    limit_sums,
    limits_held_to,
    limits_over,
)
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot

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


def resources_for(claims: Iterable[HeldClaim], snapshot: HeldSnapshot, own: HugepageLimits = NO_LIMITS) -> Resources:
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


def _pages(claims: Iterable[HeldClaim], snapshot: HeldSnapshot, own: HugepageLimits) -> HugepageLimits:
    claimed = limit_sums(claim.hugepages for claim in claims if claim.hugepages)
    return limits_held_to(claimed, own, snapshot.page_sizes, exclusive=snapshot.exclusive_pages)


def _for_pods(nodes: CPUSet, snapshot: HeldSnapshot) -> CPUSet:
    """Return those of a container's memory nodes that pods may use, or all that they may use if these are none."""
    return (nodes & snapshot.mems or snapshot.mems) if nodes and snapshot.mems else nodes


def _cpus(having_cpus: Iterable[HeldClaim], snapshot: HeldSnapshot) -> CPUSet:
    having_cpus = tuple(having_cpus)
    cpus = expected_cpus((claim.cpus for claim in having_cpus), snapshot.online)
    if cpus is None:
        return snapshot.shared
    return cpus | snapshot.shared if any(claim.with_pool for claim in having_cpus) else cpus


def bound_nodes(claims: Iterable[HeldClaim]) -> CPUSet:
    """Return the nodes of the memory that a container holds, if it takes memory from these alone; else none."""
    having_memory = [claim for claim in claims if claim.nodes]
    binds = any(claim.binds for claim in having_memory)
    return CPUSet.union(claim.nodes for claim in having_memory) if binds else CPUSet()


def nodes_near_cpus(claims: Iterable[HeldClaim]) -> CPUSet:
    """Return the nodes of a container's CPUs, if each of its claims that hold CPUs asks for memory from there."""
    having_cpus = [claim for claim in claims if claim.cpus]
    if not all(claim.mems for claim in having_cpus):
        return CPUSet()
    return CPUSet.union(claim.mems for claim in having_cpus)


def expected(pinned: Pinned, snapshot: HeldSnapshot) -> Resources:
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


def keeps_memory(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    """Return whether a container keeps its memory, because what its claims hold of that is not known."""
    return pinned.unsure or pinned.memory_unsure or snapshot.lacks_claims


def _on_held(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    return bool(pinned.cpus) and pinned.cpus <= snapshot.held


def pooled(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    """Return whether a container runs on the shared pool: no claim of it has CPUs online, or one wants both."""
    with_cpus = [claim for claim in having(pinned, snapshot) if claim.cpus & snapshot.online]
    return not with_cpus or any(claim.with_pool for claim in with_cpus)


def having(pinned: Pinned, snapshot: HeldSnapshot) -> tuple[HeldClaim, ...]:
    """Return the claims on record that a container has, each with the parts that it has."""
    records = ((key, snapshot.claims.get(key)) for key in pinned.claims)
    return tuple(
        claim if not pinned.parts else claim.of_parts([index for of, index in pinned.parts if of == key])
        for key, claim in records
        if claim is not None
    )


def stays_on(pinned: Pinned, snapshot: HeldSnapshot) -> CPUSet:
    """Return the mask that a container keeps where the shared pool that it should run on has no CPU."""
    if not snapshot.pins_cpus:
        return CPUSet()
    return pinned.cpus or CPUSet.union(claim.cpus for claim in having(pinned, snapshot))


def some_of(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> frozenset[tuple[str, int]]:
    """Return `Pinned.parts` of a container that has these claims."""
    return frozenset(
        (claim.key, part.index)
        for claim in claims
        if claim.parts != snapshot.claims[claim.key].parts
        for part in claim.parts
    )
