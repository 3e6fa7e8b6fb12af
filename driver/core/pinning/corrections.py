"""Which containers do not run on the CPUs that they should, and the updates that correct that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.pinning.container_index import ContainerChange, Containers
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.core.pinning.pinned import Pinned, expected
from dranode.driver.core.pinning.snapshot import HeldSnapshot


@dataclass(frozen=True, slots=True)
class Drift:
    """A container that does not run on the CPUs that it should."""

    container: Container
    expected: CPUSet
    actual: CPUSet

    def __str__(self) -> str:
        return f"{self.container} runs on CPUs {self.actual}, but should run on {self.expected}"


def changes(containers: Containers, snapshot: HeldSnapshot) -> Iterator[tuple[Pinned, Resources]]:
    """Yield the containers with a wrong mask, and the resources that they should have; no mask is ever empty."""
    if snapshot.unread is not None:
        return
    shared = Resources(snapshot.shared)
    for pinned in containers.concerned(snapshot):
        resources = expected(pinned, snapshot) if pinned.claims or pinned.unsure or pinned.unheard else shared
        if resources.cpus.mask == pinned.cpus.mask and resources.mems == pinned.mems:
            continue
        if pinned.mems and not resources.mems:
            # NRI cannot clear `cpuset.mems`, so memory from anywhere means naming every node.
            resources = replace(resources, mems=snapshot.mems)
            if resources.cpus == pinned.cpus and resources.mems in ("", pinned.mems):
                continue
        if resources.cpus:
            yield pinned, resources


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
    for pinned, wanted in due:
        put.append(pinned.updated(wanted))
        updates.append(ContainerUpdate(pinned.container.id, wanted, ignore_failure))
    return ContainerChange(tuple(put), drop, snapshot), tuple(updates)


def drift(containers: Containers, snapshot: HeldSnapshot, effective: Mapping[str, CPUSet]) -> tuple[Drift, ...]:
    """Return the containers that do not run where they should, by the kernel's masks (`cpuset.cpus.effective`).

    A container without a certain mask does not drift.
    """
    drifts: list[Drift] = []
    for key, cpus in effective.items():
        pinned = containers.get(key)
        if pinned is not None and not (pinned.unsure or pinned.unheard) and snapshot.unread is None:
            cpus_expected = expected(pinned, snapshot).cpus
            if cpus_expected and cpus != cpus_expected:
                drifts.append(Drift(pinned.container, cpus_expected, cpus))
    return tuple(drifts)


def drifted(containers: Containers, drifts: Iterable[Drift]) -> ContainerChange:
    """Enter the real masks of drifting containers, so that `settle` corrects them."""
    put = ((containers.get(each.container.id), each.actual) for each in drifts)
    return ContainerChange(tuple(replace(pinned, cpus=found) for pinned, found in put if pinned is not None))
