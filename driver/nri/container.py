"""NRI's messages into the core's containers and back. Protobuf goes no further than this package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.page_sizes import page_size_name, page_size_of
from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.core.pinning.hugepages import HugepageLimits
from dranode.driver.machine.cgroups import NO_LIMIT
from dranode.proto import nri_v1alpha1_pb2 as nri

NO_QUOTA = -1
"""`cpu.cfs_quota_us` of a container without a limit (runtime-spec, config-linux.md)."""

_STARTED = frozenset((nri.CONTAINER_RUNNING, nri.CONTAINER_PAUSED))


def pod_of(message: nri.PodSandbox) -> PodSandbox:
    """A pod sandbox."""
    return PodSandbox(id=message.id, uid=message.uid, namespace=message.namespace, name=message.name)


def container_of(message: nri.Container, pod: PodSandbox) -> Container:
    """A container of the pod."""
    linux = message.linux
    cpu = linux.resources.cpu
    return Container(
        id=message.id,
        name=message.name,
        pod=pod,
        env=tuple(message.env),
        cdi_devices=tuple(device.name for device in message.CDI_devices),
        cpus=cpus_of(cpu.cpus),
        mems=cpus_of(cpu.mems),
        quota=cpu.quota.value,
        started=message.state in _STARTED,
        cgroup=linux.cgroups_path,
        hugepages=page_limits_of(linux.resources),
    )


def page_limits_of(resources: nri.LinuxResources) -> HugepageLimits:
    """The limits of huge pages that resources set; a size that cannot be read is left out."""
    sizes = ((page_size_of(each.page_size), each.limit) for each in resources.hugepage_limits)
    return tuple(sorted({size: min(limit, NO_LIMIT) for size, limit in sizes if size is not None}.items()))


def cpus_of(text: str) -> CPUSet:
    """A cpu-list that comes from anywhere; one that cannot be read is as good as none, and is replaced."""
    try:
        return CPUSet.parse(text)
    except ValueError:
        return CPUSet()


def adjustment_to(resources: Resources) -> nri.ContainerAdjustment | None:
    """Return what a container that is being created gets; None if nothing."""
    if not resources:
        return None
    linux = _linux(resources)
    # The runtime passes the limit itself on; older versions of runc (1.1) leave what is only promised unlimited.
    _set_files(linux, resources, ("rsvd.max",))
    return nri.ContainerAdjustment(linux=nri.LinuxContainerAdjustment(resources=linux))


def updates_to(updates: Iterable[ContainerUpdate]) -> Iterator[nri.ContainerUpdate]:
    """New resources for containers that exist."""
    # After a change of the shared pool hundreds of containers get the same resources: they are written once.
    resources, linux = Resources(), None
    for update in updates:
        if update.resources is not resources:
            resources = update.resources
            linux = nri.LinuxContainerUpdate(resources=_changed(resources)) if resources else None
        yield nri.ContainerUpdate(container_id=update.container_id, linux=linux, ignore_failure=update.ignore_failure)


def _linux(resources: Resources) -> nri.LinuxResources:
    cpu = nri.LinuxCPU(cpus=str(resources.cpus), mems=str(resources.mems))
    if resources.lift_quota:
        cpu.quota.value = NO_QUOTA
    limits = (nri.HugepageLimit(page_size=page_size_name(size), limit=limit) for size, limit in resources.hugepages)
    return nri.LinuxResources(cpu=cpu, hugepage_limits=limits)


def _changed(resources: Resources) -> nri.LinuxResources:
    """New resources for a container that exists.

    `runc update` leaves limits of huge pages alone but for files of cgroup v2, and refuses these with v1. Both limits
    are set, as at creation: a page counts when it is promised (`rsvd`), and when it is used.
    """
    linux = _linux(resources)
    _set_files(linux, resources, ("max", "rsvd.max"))
    return linux


def _set_files(linux: nri.LinuxResources, resources: Resources, names: Iterable[str]) -> None:
    """Set the limits of huge pages as files of cgroup v2 of these names, where the node has that."""
    for size, limit in resources.hugepages if resources.unified else ():
        for name in names:
            linux.unified[f"hugetlb.{page_size_name(size)}.{name}"] = str(limit) if limit < NO_LIMIT else "max"
