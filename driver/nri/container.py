"""NRI's messages into the core's containers and back. Protobuf goes no further than this package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
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
        mems=cpu.mems,
        quota=cpu.quota.value,
        started=message.state in _STARTED,
        cgroup=linux.cgroups_path,
    )


def cpus_of(text: str) -> CPUSet:
    """A cpu-list that comes from anywhere; one that cannot be read is as good as none, and is replaced."""
    try:
        return CPUSet.parse(text)
    except ValueError:
        return CPUSet()


def adjustment_to(resources: Resources) -> nri.ContainerAdjustment | None:
    """What a container that is being created gets; None if nothing."""
    if not resources:
        return None
    return nri.ContainerAdjustment(linux=nri.LinuxContainerAdjustment(resources=_linux(resources)))


def updates_to(updates: Iterable[ContainerUpdate]) -> Iterator[nri.ContainerUpdate]:
    """New resources for containers that exist."""
    # After a change of the shared pool hundreds of containers get the same resources: they are written once.
    resources, linux = Resources(), None
    for update in updates:
        if update.resources is not resources:
            resources = update.resources
            linux = nri.LinuxContainerUpdate(resources=_linux(resources)) if resources else None
        yield nri.ContainerUpdate(container_id=update.container_id, linux=linux, ignore_failure=update.ignore_failure)


def _linux(resources: Resources) -> nri.LinuxResources:
    cpu = nri.LinuxCPU(cpus=str(resources.cpus), mems=resources.mems)
    if resources.lift_quota:
        cpu.quota.value = NO_QUOTA
    return nri.LinuxResources(cpu=cpu)
