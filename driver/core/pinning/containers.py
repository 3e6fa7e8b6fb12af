"""Containers and pods as a container runtime describes them, and the changes that a node driver asks it for."""

from __future__ import annotations

import msgspec

from dranode.driver.core.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.pinning.hugepages import NO_LIMITS, HugepageLimits


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
