"""The containers of pods as the kernel's files show them, and which container a cgroup's folder belongs to.

What starts from a pod's cgroups and what starts from the node's processes meets here, so all who ask for a pod's
containers are given the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet

_MONITOR: Final = "conmon-"
# The UID of a static pod may be any text of its manifest; `pods` is a part of other folders' names.
_POD: Final = re.compile(r"(?:.*-)?pod(?!s(?:[-.]|$))(.+?)(?:\.slice)?")
_CONTAINER: Final = re.compile(rf"(?!.*{_MONITOR})(?:.*-)?([0-9a-f]{{64}})(?:\.scope)?")


class Process(msgspec.Struct, frozen=True):
    """A process, as `/proc` shows it.

    Attributes:
        name: its short name.
        cpus: the CPUs on which it may run.
        cgroup: its cgroup, without a leading slash.
        env: the names of its environment variables; None if they cannot be read.
    """

    pid: int
    name: str
    cpus: CPUSet
    cgroup: str = ""
    env: frozenset[str] | None = None


class ContainerCgroup(msgspec.Struct, frozen=True):
    """A container of a pod.

    Attributes:
        pod: the UID of its pod.
        cgroup: its cgroup, without a leading slash.
        hierarchy: the folder of the hierarchy that has this cgroup; empty if it is known only by its processes.
        cpus: the CPUs on which its cgroup may run; None if that cannot be read.
        processes: those of it that `/proc` shows, with those of cgroups below.
    """

    pod: str
    cgroup: str
    hierarchy: str = ""
    cpus: CPUSet | None = None
    processes: tuple[Process, ...] = ()

    @property
    def id(self) -> str:
        """Return the runtime's id of the container; empty if its cgroup is not named by one."""
        return container_id(self.folder)

    @property
    def folder(self) -> str:
        """Return the name of its cgroup below that of the pod."""
        return self.cgroup.rpartition("/")[2]

    @property
    def path(self) -> str:
        """Return its cgroup's folder on the machine."""
        return f"/{self.hierarchy}/{self.cgroup}"

    @property
    def actual(self) -> CPUSet:
        """Return the CPUs on which it runs: its cgroup's, else those that its processes did not give up."""
        return CPUSet.union(process.cpus for process in self.processes) if self.cpus is None else self.cpus

    @property
    def pids(self) -> frozenset[int]:
        """Return the ids of its processes."""
        return frozenset(process.pid for process in self.processes)

    @property
    def env(self) -> frozenset[str]:
        """Return the names of all environment variables that can be read of its processes."""
        return frozenset(name for process in self.processes for name in process.env or ())

    @property
    def hidden(self) -> bool:
        """Return whether a process of it cannot be looked into, so that variables may be missing."""
        return any(process.env is None for process in self.processes)


def with_processes(
    containers: Iterable[ContainerCgroup], processes: Iterable[Process], pods: Iterable[str] | None
) -> tuple[ContainerCgroup, ...]:
    """Return these containers with their processes, and the containers of pods that are known only by processes.

    Those of every pod if `pods` is None.

    A container is known by its pod and its folder's name: the folders above may look different to a process, whose
    cgroup is given as this process's own cgroup namespace sees it.
    """
    known = {(container.pod, container.folder): container for container in containers}
    members: dict[tuple[str, str], list[Process]] = {}
    pods = None if pods is None else tuple(pods)
    for process in processes:
        for pod in filter(None, map(pod_of_folder, process.cgroup.split("/"))) if pods is None else pods:
            cgroup = container_cgroup(process.cgroup, pod)
            if cgroup:
                key = (pod, cgroup.rpartition("/")[2])
                known.setdefault(key, ContainerCgroup(pod, cgroup))
                members.setdefault(key, []).append(process)
    return tuple(replace(container, processes=tuple(members.get(key, ()))) for key, container in known.items())


def is_pod_folder(name: str, pod_uid: str) -> bool:
    """Return whether a folder is a pod's cgroup: its name has the UID as it is, or with `_` for `-` (systemd)."""
    return bool(pod_uid) and (pod_uid in name or pod_uid.replace("-", "_") in name)


def pod_of_folder(name: str) -> str:
    """Return the UID of the pod whose cgroup a folder is, by kubelet's names for them; empty if it is not a pod's.

    The names are `pod<UID>`, and `kubepods-burstable-pod<UID>.slice` with `_` for `-` in the UID (systemd).
    """
    match = _POD.fullmatch(name)
    return match[1].replace("_", "-") if match is not None else ""


def container_id(folder: str) -> str:
    """Return the runtime's id of the container whose cgroup has this name; empty if it is not a container's.

    The names are `cri-containerd-<id>.scope`, `crio-<id>.scope` or the id alone, of 64 hexadecimal digits;
    `crio-conmon-<id>.scope` holds the container's monitor.
    """
    match = _CONTAINER.fullmatch(folder)
    return match[1] if match is not None else ""


def container_cgroup(cgroup: str, pod_uid: str) -> str:
    """Return the container's cgroup, a folder of its pod's, that a process is in; empty if the pod has no such.

    A monitor of CRI-O has a cgroup beside its container's, and is in none.
    """
    # Only the first folder below the pod's counts: a container with its own cgroup namespace may have cgroups below it.
    parts = cgroup.split("/")
    for index, part in enumerate(parts[:-1]):
        if is_pod_folder(part, pod_uid):
            return "" if _MONITOR in parts[index + 1] else "/".join(parts[: index + 2])
    return ""
