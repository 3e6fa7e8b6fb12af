"""The containers that are known, the CPUs they have and the CPUs they should have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dranode.driver.core.containers import Container, ContainerUpdate, Resources
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.held_claims import HeldClaim, HeldSnapshot


@dataclass(frozen=True, slots=True)
class Pinned:
    """A container that exists, without its environment.

    Attributes:
        container: what the runtime told of it.
        claims: UIDs of the claims that it has.
        cpus: the mask that it was last given; empty if it has none or if the mask was seen to be another one.
        mems: the memory nodes that it was last given by this driver; empty if none.
    """

    container: Container
    claims: tuple[str, ...] = ()
    cpus: CPUSet = field(default_factory=CPUSet)
    mems: str = ""

    def given(self, resources: Resources) -> Pinned:
        """The container after it was given these resources."""
        return replace(self, cpus=resources.cpus or self.cpus, mems=resources.mems or self.mems)


@dataclass(frozen=True, slots=True)
class Drift:
    """A container that runs on other CPUs than it should."""

    container: Container
    expected: CPUSet
    found: CPUSet

    def __str__(self) -> str:
        return f"{self.container} runs on CPUs {self.found}, but should run on {self.expected}"


Containers = Mapping[str, Pinned]
"""All containers that exist, by the runtime's id."""


def resources_for(claims: Iterable[HeldClaim], snapshot: HeldSnapshot) -> Resources:
    """What a container with these claims should have; without CPUs if there are none for it.

    CPUs that are offline are left out: no kernel takes them everywhere. Memory nodes are set if every claim asks for
    its own.
    """
    having = [claim for claim in claims if claim.cpus]
    if not having:
        return Resources(snapshot.shared)
    cpus = CPUSet.union(claim.cpus for claim in having) & snapshot.online
    mems = CPUSet()
    if all(claim.mems for claim in having):
        mems = CPUSet.union(CPUSet.parse(claim.mems) for claim in having)
    return Resources(cpus, str(mems), lift_quota=any(claim.lift_quota for claim in having))


def expected(pinned: Pinned, snapshot: HeldSnapshot) -> Resources:
    """What a container that exists should have. One whose claims were all unprepared belongs to the shared pool."""
    if not pinned.claims:
        return Resources(snapshot.shared)
    return resources_for((snapshot.claims[uid] for uid in pinned.claims if uid in snapshot.claims), snapshot)


def changes(containers: Containers, snapshot: HeldSnapshot) -> Iterator[tuple[Pinned, Resources]]:
    """The containers whose mask is not what it should be, with what they should have. No mask is ever empty."""
    shared = Resources(snapshot.shared)
    for pinned in containers.values():
        wanted = expected(pinned, snapshot) if pinned.claims else shared
        if wanted.cpus.mask == pinned.cpus.mask and wanted.mems == pinned.mems:
            continue
        if pinned.mems and not wanted.mems:
            # There is no way back to "anywhere" but to name every node.
            wanted = replace(wanted, mems=snapshot.mems)
            if wanted.cpus == pinned.cpus and wanted.mems in ("", pinned.mems):
                continue
        if wanted.cpus:
            yield pinned, wanted


def settle(
    containers: Containers, snapshot: HeldSnapshot, *, ignore_failure: bool = True
) -> tuple[Containers, tuple[ContainerUpdate, ...]]:
    """The updates that bring every container to what it should have, and the containers after them."""
    after = dict(containers)
    updates: list[ContainerUpdate] = []
    for pinned, wanted in changes(containers, snapshot):
        key = pinned.container.id
        after[key] = pinned.given(wanted)
        updates.append(ContainerUpdate(key, wanted, ignore_failure))
    return after, tuple(updates)


def drift(containers: Containers, snapshot: HeldSnapshot, effective: Mapping[str, CPUSet]) -> tuple[Drift, ...]:
    """The containers that do not run where they should, by what the kernel says (`cpuset.cpus.effective`)."""
    found: list[Drift] = []
    for key, cpus in effective.items():
        if key in containers:
            wanted = expected(containers[key], snapshot).cpus
            if wanted and cpus != wanted:
                found.append(Drift(containers[key].container, wanted, cpus))
    return tuple(found)


def with_drift(containers: Containers, drifts: Iterable[Drift]) -> Containers:
    """The containers with the masks that they were found to have, so that `settle` mends them."""
    after = dict(containers)
    for each in drifts:
        pinned = after.get(each.container.id)
        if pinned is not None:
            after[each.container.id] = replace(pinned, cpus=each.found)
    return after
