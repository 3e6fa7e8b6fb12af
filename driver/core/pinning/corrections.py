"""Finds the containers that have other CPUs or other memory than they should, and the updates that correct that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from dranode.driver.core.pinning.container_index import ContainerChange, Containers
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.core.pinning.effective import Effective, difference
from dranode.driver.core.pinning.hugepages import limits_over
from dranode.driver.core.pinning.pinned import Pinned, expected, keeps_memory, pooled, resources_for
from dranode.driver.core.pinning.snapshot import HeldSnapshot


class Drift(msgspec.Struct, frozen=True):
    """A container that may use something else than it should.

    Attributes:
        container: the container.
        expected: what it should, as far as that differs.
        actual: what it may.
    """

    container: Container
    expected: Effective
    actual: Effective

    def __str__(self) -> str:
        return f"{self.container} {difference(self.expected, self.actual)}"


def changes(containers: Containers, snapshot: HeldSnapshot) -> Iterator[tuple[Pinned, Resources]]:
    """Yield the containers that have not what they should, and the resources for them; no mask is ever empty."""
    if snapshot.unread is not None:
        return
    unclaimed = resources_for((), snapshot)
    for pinned in containers.concerned(snapshot):
        certain = not (pinned.claims or pinned.unsure or pinned.unheard or pinned.memory_unsure)
        resources = unclaimed if certain and snapshot.memory_unread is None else expected(pinned, snapshot)
        if pinned.mems and not resources.mems:
            # NRI cannot clear `cpuset.mems`, so memory from anywhere means naming every node.
            resources = replace(resources, mems=snapshot.mems)
        if snapshot.pins_cpus and not resources.cpus:
            continue
        if resources and not has_what_it_should(pinned, resources):
            yield pinned, resources


def has_what_it_should(pinned: Pinned, resources: Resources) -> bool:
    """Return whether a container has been given these resources; empty ones may be anything."""
    return (
        (not resources.cpus or resources.cpus.mask == pinned.cpus.mask)
        and (not resources.mems or resources.mems.mask == pinned.mems.mask)
        and (not resources.hugepages or set(resources.hugepages) <= set(pinned.hugepages))
        and not (pinned.doubtful and resources)
    )


def settle(
    containers: Containers, snapshot: HeldSnapshot, drop: Iterable[str] = (), *, ignore_failure: bool = True
) -> tuple[ContainerChange, tuple[ContainerUpdate, ...]]:
    """Return the updates that correct the mask of every container except those of `drop`, and the change they make."""
    drop = tuple(drop)
    due = [each for each in changes(containers, snapshot) if each[0].container.id not in drop]
    return settled(due, snapshot, drop, ignore_failure=ignore_failure)


def settled(
    due: Iterable[tuple[Pinned, Resources]],
    snapshot: HeldSnapshot,
    drop: tuple[str, ...] = (),
    *,
    ignore_failure: bool,
) -> tuple[ContainerChange, tuple[ContainerUpdate, ...]]:
    """Return the updates that make these changes, and the change of the known containers."""
    put: list[Pinned] = []
    updates: list[ContainerUpdate] = []
    for pinned, resources in due:
        put.append(pinned.updated(resources))
        updates.append(ContainerUpdate(pinned.container.id, resources, ignore_failure))
    return ContainerChange(tuple(put), drop, snapshot), tuple(updates)


def by_configuration(container: Container) -> Effective:
    """Return what the kernel should say of a container, by its configuration."""
    return Effective(container.cpus or None, container.mems or None, container.hugepages)


def effective_of(resources: Resources) -> Effective:
    """Return what the kernel should say of a container that has been given these resources."""
    return Effective(resources.cpus or None, resources.mems or None, resources.hugepages)


def drift(containers: Containers, snapshot: HeldSnapshot, effective: Mapping[str, Effective]) -> tuple[Drift, ...]:
    """Return the containers that may use something else than they should, by what the kernel says of them.

    A container of which nothing is certain does not drift.
    """
    drifts: list[Drift] = []
    for key, actual in effective.items():
        pinned = containers.get(key)
        if pinned is not None and not (pinned.unsure or pinned.unheard) and snapshot.unread is None:
            should, does = effective_of(expected(pinned, snapshot)).beside(_counting(actual, pinned, snapshot))
            if does:
                drifts.append(Drift(pinned.container, should, does))
    return tuple(drifts)


def _counting(actual: Effective, pinned: Pinned, snapshot: HeldSnapshot) -> Effective:
    """Leave out limits of huge pages that kubelet or somebody has raised, where claims alone do not decide them."""
    if snapshot.exclusive_pages:
        return actual
    given = dict(pinned.hugepages)
    return replace(actual, hugepages=tuple(pair for pair in actual.hugepages if pair[1] < given.get(pair[0], 0)))


def drifted(containers: Containers, drifts: Iterable[Drift]) -> ContainerChange:
    """Enter what drifting containers have, so that `settle` corrects them, even if they should have just that by then.

    The kernel was asked a while ago: an update that the runtime took its time for may have been carried out since.
    """
    put = ((containers.get(each.container.id), each.actual) for each in drifts)
    return ContainerChange(tuple(_with(pinned, actual) for pinned, actual in put if pinned is not None))


def to_compare(containers: Containers, snapshot: HeldSnapshot) -> Iterator[tuple[Container, Effective]]:
    """Yield the containers that another instance may have moved, with what this one knows them to have been given.

    Those with claims come first: one that is left out keeps what it has, and one of the shared pool gets it again.
    """
    for pinned in sorted(containers, key=lambda each: not each.claims):
        last = _last_given(pinned, snapshot)
        if last:
            yield pinned.container, last


def overruled(containers: Containers, snapshot: HeldSnapshot, limits: Mapping[str, Effective]) -> ContainerChange:
    """Enter that another instance may have given containers something else than this one knows of.

    It may have decided by other records or settings, or out of turn. Those of which the kernel says another thing get
    what they should have again. So do those of the shared pool of whose CPUs it says nothing, because every claim that
    comes or goes moves them; what else a container has follows from its own claims, so silence shows nothing amiss.

    Args:
        containers: those that are known.
        snapshot: what is on record.
        limits: the kernel's limits by container id, as far as they were asked for by `to_compare`.
    """
    after = ((each, _overruled(each, snapshot, limits.get(each.container.id, Effective()))) for each in containers)
    return ContainerChange(tuple(new for pinned, new in after if new is not pinned))


def _overruled(pinned: Pinned, snapshot: HeldSnapshot, actual: Effective) -> Pinned:
    if pinned.mems and actual.nodes is not None and actual.nodes != pinned.mems and keeps_memory(pinned, snapshot):
        # The other one may have read the records that this one lacks.
        pinned = replace(pinned, mems=actual.nodes)
    silent = actual.cpus is None and snapshot.pins_cpus and pooled(pinned, snapshot)
    differing = _last_given(pinned, snapshot).beside(_counting(actual, pinned, snapshot))[1]
    if not (silent or differing):
        return pinned
    if pinned.unheard:
        # The other one may have had kubelet's word, so that it stays on a claim's CPUs where it is on such.
        return replace(pinned, cpus=pinned.cpus if actual.cpus is None else actual.cpus, doubtful=True)
    return pinned.in_doubt()


def _last_given(pinned: Pinned, snapshot: HeldSnapshot) -> Effective:
    """Return what the kernel should say of a container, by what it was given and as far as that is decided here."""
    sizes = {size for size, _ in expected(pinned, snapshot).hugepages}
    return Effective(
        pinned.cpus if snapshot.pins_cpus else None,
        pinned.mems or None,
        tuple(pair for pair in pinned.hugepages if pair[0] in sizes),
    )


def _with(pinned: Pinned, actual: Effective) -> Pinned:
    return replace(
        pinned,
        cpus=pinned.cpus if actual.cpus is None else actual.cpus,
        mems=pinned.mems if actual.nodes is None else actual.nodes,
        hugepages=limits_over(pinned.hugepages, actual.hugepages),
        doubtful=True,
    )
