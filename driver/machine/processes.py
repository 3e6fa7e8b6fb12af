"""The processes of a machine and where they may run, from `/proc` (proc(5)) and the cgroup file system.

Read as files below a root and not with psutil, so that a pod with its own PID namespace sees the host's processes where
the host's `/proc` is mounted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import MachineError
from dranode.driver.core.diagnosis.container_cgroups import ContainerCgroup, Process, with_processes
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.pod_cgroups import containers_of
from dranode.driver.machine.root import Root, read_text

# The parent of all kernel threads, which cannot be moved to other CPUs.
_KTHREADD: Final = "2"
_PROCESSOR: Final = 36
_ONLINE: Final = "sys/devices/system/cpu/online"


def processes(root: Root) -> Iterator[Process]:
    """Yield every process except the kernel's own; a process that ends meanwhile is left out."""
    try:
        names = root.listdir("proc")
    except OSError:
        return
    for pid in sorted(int(name) for name in names if name.isdecimal()):
        process = _process(root, str(pid))
        if process is not None:
            yield process


def _process(root: Root, pid: str) -> Process | None:
    try:
        lines = read_text(root, f"proc/{pid}/status").splitlines()
        status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        cpus = CPUSet.parse(status["Cpus_allowed_list"])
    except (OSError, KeyError, ValueError):
        return None
    # A process that has ended, but is not reaped yet, runs nowhere.
    if _KTHREADD in (pid, status.get("PPid")) or status.get("State", "").startswith(("Z", "X")):
        return None
    return Process(int(pid), status.get("Name", ""), cpus, cgroup_of(root, pid), _env(root, pid))


def cgroup_of(root: Root, pid: str) -> str:
    """Return a process's cgroup in the hierarchy that has cpusets, one of v1 or the unified one; empty if unknown."""
    try:
        lines = [line.split(":", 2) for line in read_text(root, f"proc/{pid}/cgroup").splitlines()]
    except OSError:
        return ""
    found = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    return found.get("cpuset", found.get("", "")).strip("/")


def _env(root: Root, pid: str) -> frozenset[str] | None:
    try:
        entries = root.read_bytes(f"proc/{pid}/environ").decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    return frozenset(entry.partition("=")[0] for entry in entries if entry)


def threads_last_on(root: Root, pid: int, cpus: CPUSet) -> int | None:
    """Return how many threads of a process ran last on one of these CPUs (`processor` in `stat`, proc_pid_stat(5)).

    None if the process's threads cannot be listed.
    """
    try:
        names = root.listdir(f"proc/{pid}/task")
    except OSError:
        return None
    count = 0
    for name in names:
        try:
            # The name before may have spaces and brackets; field 39 is the 37th after it.
            words = read_text(root, f"proc/{pid}/task/{name}/stat").rpartition(")")[2].split()
        except OSError:
            continue
        count += len(words) > _PROCESSOR and words[_PROCESSOR].isdecimal() and int(words[_PROCESSOR]) in cpus
    return count


class PodsSeen(msgspec.Struct, frozen=True):
    """One look at the containers of some pods.

    Attributes:
        containers: theirs.
        processes: every process of the node except the kernel's own, whoever it belongs to.
    """

    containers: tuple[ContainerCgroup, ...]
    processes: tuple[Process, ...]


def pods_seen(root: Root, pods: Iterable[str]) -> PodsSeen:
    """Return the containers of the pods with these UIDs, by their cgroups and by the node's processes.

    Raises:
        MachineError: the cgroups cannot be looked into.
        PermissionError: they may not be.
    """
    cgroups, pods = Cgroups(root), tuple(dict.fromkeys(pods))
    return _seen(root, cgroups, _listed(root, cgroups, pods), pods)


def require_visible(root: Root, pods: Iterable[str]) -> PodsSeen:
    """Return the containers of the pods with these UIDs; check that `/proc` shows the processes of those that run.

    Raises:
        MachineError: it does not, because it is missing or belongs to another PID namespace, such as that of a pod;
            or the cgroups cannot be looked into.
        PermissionError: the cgroups may not be looked into.
    """
    cgroups, pods = Cgroups(root), tuple(dict.fromkeys(pods))
    listed = _listed(root, cgroups, pods)
    # A container that starts or ends during the look proves nothing, so both sides of it count.
    running = {each.path for each in listed if cgroups.has_processes(each.cgroup)}
    seen = _seen(root, cgroups, listed, pods)
    for container in seen.containers:
        if container.path in running and not container.processes and cgroups.has_processes(container.cgroup):
            raise MachineError(
                f"the processes of the container in {container.path} are not to be seen in /proc, which is that of "
                "another PID namespace: run this on the node, in a pod with hostPID: true, or with --machine DIR where "
                "the node's root is mounted"
            )
    return seen


def _listed(root: Root, cgroups: Cgroups, pods: Iterable[str]) -> list[ContainerCgroup]:
    return [each for uid in pods for each in containers_of(root, cgroups, uid)]


def _seen(root: Root, cgroups: Cgroups, listed: Iterable[ContainerCgroup], pods: Iterable[str]) -> PodsSeen:
    """Read the processes, after the cgroups: those of a container that runs are then among them."""
    seen = tuple(processes(root))
    containers = tuple(
        # A cgroup that is not named by a container's id, as some sandboxed runtimes have it, is known by its processes.
        replace(each, cpus=cgroups.effective_cpus(each.cgroup)) if each.cpus is None else each
        for each in with_processes(listed, seen, pods)
    )
    return PodsSeen(containers, seen)


def online(root: Root) -> CPUSet:
    """Return the online CPUs.

    Raises:
        MachineError: the kernel does not report them.
    """
    try:
        return CPUSet.parse(read_text(root, _ONLINE))
    except (OSError, ValueError) as error:
        raise MachineError(f"/{_ONLINE} does not say which CPUs are online: {error}") from error
