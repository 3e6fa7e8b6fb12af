"""A container that exists, the CPUs that it has, and the CPUs that it should have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.expected_cpus import expected_cpus
from dranode.driver.core.pinning.containers import Container, Resources
from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A container that exists, without its environment.

    Attributes:
        container: the container as the runtime described it.
        claims: the UIDs of its claims.
        cpus: the mask that it was last given; empty if it has none, or if its real mask was seen to differ.
        mems: the memory nodes that this driver last gave it; empty if none.
        parts: for claims of which it has only some allocation results, the UID and the number of each result.
        provisional: it got its resources between its creation and its start. The runtime may have read its
            configuration before the update, so its real mask is unknown until it gets the resources again.
        unsure: it was added while the ledger could not be read. It may have other claims than these, so its mask
            stays unchanged until the runtime reports it again.
        unresolved: it names an unknown claim, and may have it.
        unheard: it names a claim on record, and kubelet did not answer whether it has it; `container` is whole, so that
            it can be looked at again. Meanwhile it stays on CPUs that claims hold, where only a driver puts anybody.
        denied: it names a claim on record that kubelet says it has not; `container` is whole as well, since a kubelet
            that has just started may not know of it yet.
    """

    container: Container
    claims: tuple[str, ...] = ()
    cpus: CPUSet = field(default_factory=CPUSet)
    mems: str = ""
    provisional: bool = False
    parts: frozenset[tuple[str, int]] = frozenset()
    unsure: bool = False
    unresolved: bool = False
    unheard: bool = False
    denied: bool = False

    def given(self, resources: Resources) -> Pinned:
        """Return the container after it was given these resources."""
        return replace(self, cpus=resources.cpus or self.cpus, mems=resources.mems or self.mems)

    def updated(self, resources: Resources) -> Pinned:
        """Return the container after an update with these resources."""
        return replace(self.given(resources), provisional=not self.container.started)

    def started(self) -> Pinned:
        """Return the container after its start."""
        running = replace(self, container=replace(self.container, started=True), provisional=False)
        return replace(running, cpus=CPUSet()) if self.provisional else running


def resources_for(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> Resources:
    """Return the resources that a container with these claims should have; without CPUs if there are none for it.

    Memory nodes are set if every claim asks for local memory. With a claim that asks for the shared pool as well, the
    CPUs are those of the claims and of the pool.
    """
    having_cpus = [claim for claim in claims if claim.cpus]
    cpus = expected_cpus((claim.cpus for claim in having_cpus), snapshot.online)
    if cpus is None:
        return Resources(snapshot.shared)
    if cpus and any(claim.with_pool for claim in having_cpus):
        cpus |= snapshot.shared
    mems = CPUSet()
    if all(claim.mems for claim in having_cpus):
        mems = CPUSet.union(CPUSet.parse(claim.mems) for claim in having_cpus)
    return Resources(cpus, str(mems), lift_quota=any(claim.lift_quota for claim in having_cpus))


def expected(pinned: Pinned, snapshot: HeldSnapshot) -> Resources:
    """Return the resources that an existing container should have.

    If all its claims were unprepared, it belongs to the shared pool. It keeps its resources while it is uncertain which
    claims it has, or while records cannot be read.
    """
    claims = having(pinned, snapshot)
    if pinned.unsure or snapshot.unread is not None or (pinned.unheard and _on_held(pinned, snapshot)):
        return Resources(pinned.cpus, pinned.mems, lift_quota=any(claim.lift_quota for claim in claims))
    return resources_for(claims, snapshot)


def _on_held(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    return bool(pinned.cpus) and pinned.cpus <= snapshot.held


def pooled(pinned: Pinned, snapshot: HeldSnapshot) -> bool:
    """Return whether a container runs on the shared pool: no claim of it holds CPUs (any more), or one wants both."""
    with_cpus = [claim for claim in having(pinned, snapshot) if claim.cpus]
    return not with_cpus or any(claim.with_pool for claim in with_cpus)


def having(pinned: Pinned, snapshot: HeldSnapshot) -> tuple[HeldClaim, ...]:
    """Return the claims on record that a container has, each with the parts that it has."""
    records = ((uid, snapshot.claims.get(uid)) for uid in pinned.claims)
    return tuple(
        claim if not pinned.parts else claim.of_parts([index for of, index in pinned.parts if of == uid])
        for uid, claim in records
        if claim is not None
    )


def some_of(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> frozenset[tuple[str, int]]:
    """Return `Pinned.parts` of a container that has these claims."""
    return frozenset(
        (claim.claim.uid, part.index)
        for claim in claims
        if claim.parts != snapshot.claims[claim.claim.uid].parts
        for part in claim.parts
    )
