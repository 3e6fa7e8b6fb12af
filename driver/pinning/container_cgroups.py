"""The containers of pods as the kernel's files show them, and which container a cgroup's folder belongs to.

Containers are found by a pod's cgroups and by the node's processes. Both ways lead through this module, so that all
callers see the same containers of a pod.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet

_MONITOR: Final = "conmon-"
# The UID of a static pod may be any text that its manifest says. The folder `kubepods` is not a pod's.
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
        processes: its processes in `/proc`, including those in cgroups below its own.
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
        """Return the CPUs on which it runs: its cgroup's, or the union of its processes' masks if that is unknown."""
        # A process may narrow its own mask (sched_setaffinity(2)), so the cgroup is the better source.
        return CPUSet.union(process.cpus for process in self.processes) if self.cpus is None else self.cpus

    @property
    def pids(self) -> frozenset[int]:
        """Return the ids of its processes."""
        return frozenset(process.pid for process in self.processes)

    @property
    def env(self) -> frozenset[str]:
        """Return the names of the environment variables of its processes, as far as these can be read."""
        return frozenset(name for process in self.processes for name in process.env or ())

    @property
    def hidden(self) -> bool:
        """Return whether the environment of one of its processes cannot be read, so that variables may be missing."""
        return any(process.env is None for process in self.processes)


def with_processes(
    containers: Iterable[ContainerCgroup], processes: Iterable[Process], pods: Iterable[str] | None
) -> tuple[ContainerCgroup, ...]:
    """Return these containers with their processes, and those of the pods that only processes show.

    Args:
        containers: the containers whose cgroups were found.
        processes: the processes of the node.
        pods: the UIDs of the pods; None for all pods.
    """
    # The key is the pod and the name of the container's folder, not the whole path: `/proc/<pid>/cgroup` is relative to
    # the reader's cgroup namespace, so the folders above may look different (cgroup_namespaces(7)).
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
    """Return whether a folder is a pod's cgroup: its name contains the UID, perhaps with `_` for `-` (systemd)."""
    # A `-` in the name of a systemd slice separates the levels of nesting, so kubelet writes the UID with `_`.
    return bool(pod_uid) and (pod_uid in name or pod_uid.replace("-", "_") in name)


def pod_of_folder(name: str) -> str:
    """Return the UID of the pod whose cgroup has this name; empty if it is not a pod's.

    kubelet names them `pod<UID>`, or `kubepods-burstable-pod<UID>.slice` with `_` for `-` in the UID (systemd).
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
    """Return the container's cgroup in the path of a process's cgroup; empty if it is not in one of the pod's.

    CRI-O's monitor has a cgroup beside the container's, and does not belong to the container.
    """
    # Only the first folder below the pod's counts: a container with its own cgroup namespace may have cgroups below it.
    parts = cgroup.split("/")
    for index, part in enumerate(parts[:-1]):
        if is_pod_folder(part, pod_uid):
            return "" if _MONITOR in parts[index + 1] else "/".join(parts[: index + 2])
    return ""
