"""The processes of a machine and where they may run, from `/proc` (proc(5)) and the cgroup file system.

They are read as files below a root, not with psutil, so that a pod with its own PID namespace sees the host's processes
if the host's `/proc` is mounted. A process that ends meanwhile is left out. A process that cannot be read is an error:
with `hidepid=1`, `/proc` lists other users' processes, but only root and one group can read them. With `hidepid=2`,
these processes and the kernel's threads are missing.
"""

import errno
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.driver.machine.cgroups import Cgroups, cgroup_of
from dranode.driver.machine.kubepods import containers_of, pods_on, read_pods_cgroup
from dranode.driver.machine.root import Root, read_text
from dranode.driver.pinning.container_cgroups import ContainerCgroup, Process, with_processes

# The parent of all kernel threads, which cannot be moved to other CPUs.
_KTHREADD: Final = "2"
_USER: Final = 11
_SYSTEM: Final = 12
_PROCESSOR: Final = 36
# 1 / USER_HZ, the unit of times in /proc on all current architectures.
_TICK: Final = 0.01
_ONLINE: Final = "sys/devices/system/cpu/online"
# The kernel's errors for a process or thread that has ended, perhaps while it is read.
_ENDED: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ESRCH))


def processes(root: Root, *, by_thread: bool = False) -> Iterator[Process]:
    """Yield every process except the kernel's own; a process that ends meanwhile is left out.

    Args:
        root: the machine's files.
        by_thread: whether to add the CPUs of all threads, which may differ from those of the process's first thread.

    Raises:
        MachineError: `/proc` cannot be listed, or a process in it cannot be read.
    """
    for pid in _pids(root):
        process = _process(root, str(pid))
        if process is not None:
            yield replace(process, cpus=process.cpus | _of_threads(root, pid)) if by_thread else process


NO_KERNEL: Final = (
    "/proc shows no kernel threads, so it belongs to another PID namespace, hides other users' processes (hidepid), or "
    "is missing"
)


def shows_kernel(root: Root) -> bool:
    """Return whether `/proc` shows the kernel's threads, and so is the node's own and shows all processes."""
    status = _status(root, f"proc/{_KTHREADD}")
    return status is not None and status.name == "kthreadd"


def _of_threads(root: Root, pid: int) -> CPUSet:
    statuses = (_status(root, f"proc/{pid}/task/{tid}") for tid in _threads(root, pid))
    return CPUSet.union(status.cpus for status in statuses if status is not None)


def _pids(root: Root) -> list[int]:
    """Return the processes of a machine; none if there is no `/proc`, as in captures."""
    return sorted(int(name) for name in _names(root, "proc") if name.isdecimal())


def _threads(root: Root, pid: int) -> list[str]:
    """Return the threads of a process; none if it has ended."""
    return _names(root, f"proc/{pid}/task")


def _names(root: Root, folder: str) -> list[str]:
    try:
        return root.listdir(folder)
    except OSError as error:
        if error.errno in _ENDED:
            return []
        raise _unseen(f"/{folder} cannot be listed", error) from error


def _text(root: Root, path: str) -> str | None:
    """Return a file of a process or thread; None if the process or thread has ended."""
    try:
        return read_text(root, path)
    except OSError as error:
        if error.errno in _ENDED:
            return None
        raise _unseen(f"/{path} cannot be read", error) from error


def _unseen(what: str, error: OSError) -> MachineError:
    reason = error.strerror or error
    return MachineError(
        f"{what}, so it is unknown which processes run where: {reason}; try as root, on the node itself"
    )


class _Status(msgspec.Struct, frozen=True):
    """The `status` of a process or thread that has not ended (proc_pid_status(5))."""

    name: str
    cpus: CPUSet
    kernel: bool


def _status(root: Root, folder: str) -> _Status | None:
    lines = (_text(root, f"{folder}/status") or "").splitlines()
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    try:
        cpus = CPUSet.parse(fields["Cpus_allowed_list"])
    except (KeyError, ValueError):
        return None
    # Zombies and dead processes do not run.
    if fields.get("State", "").startswith(("Z", "X")):
        return None
    return _Status(fields.get("Name", ""), cpus, _KTHREADD in (folder.split("/")[1], fields.get("PPid")))


def _process(root: Root, pid: str) -> Process | None:
    status = _status(root, f"proc/{pid}")
    if status is None or status.kernel:
        return None
    cgroup, env = cgroup_of(root, pid), _env(root, pid)
    # If both are missing because the process has ended meanwhile, nothing is hidden.
    if not (cgroup and env) and _status(root, f"proc/{pid}") is None:
        return None
    return Process(int(pid), status.name, status.cpus, cgroup, env)


def _env(root: Root, pid: str) -> frozenset[str] | None:
    try:
        entries = root.read_bytes(f"proc/{pid}/environ").decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    return frozenset(entry.partition("=")[0] for entry in entries if entry)


def allowed_cpus(root: Root, pid: int) -> CPUSet | None:
    """Return the CPUs on which a process may run (`Cpus_allowed_list`); None if it has ended or cannot be read."""
    try:
        status = _status(root, f"proc/{pid}")
    except MachineError:
        return None
    return None if status is None else status.cpus


def threads_last_on(root: Root, pid: int, cpus: CPUSet) -> int | None:
    """Return how many threads of a process ran last on one of these CPUs (`processor` in `stat`, proc_pid_stat(5)).

    Returns None if the process has ended or cannot be read.
    """
    try:
        threads = _threads(root, pid)
        return sum(_last_run(root, pid, tid).cpu in cpus for tid in threads) if threads else None
    except MachineError:
        return None


class _LastRun(msgspec.Struct, frozen=True):
    """The CPU on which a thread ran last, -1 if unknown, and how many seconds it has run on all CPUs."""

    cpu: int = -1
    seconds: float = 0.0


def _last_run(root: Root, pid: int, tid: str) -> _LastRun:
    # The second field, the name in brackets, may contain spaces and brackets; field 39 is the 37th after it.
    words = (_text(root, f"proc/{pid}/task/{tid}/stat") or "").rpartition(")")[2].split()
    try:
        return _LastRun(int(words[_PROCESSOR]), sum(map(int, words[_USER : _SYSTEM + 1])) * _TICK)
    except (IndexError, ValueError):
        return _LastRun()


class ThreadSeen(msgspec.Struct, frozen=True):
    """A thread, as `/proc` shows it.

    Attributes:
        pid: its process.
        name: its short name.
        cpus: the CPUs on which it may run, which may differ from those of its process.
        seconds: how long it has run, on any CPU.
        kernel: whether it is a kernel thread.
        cgroup: its process's cgroup, without a leading slash; empty if unknown.
    """

    pid: int
    name: str
    cpus: CPUSet
    seconds: float = 0.0
    kernel: bool = False
    cgroup: str = ""


def threads_seen_on(root: Root, cpus: CPUSet) -> Iterator[ThreadSeen]:
    """Yield every thread, including kernel threads, that ran last on one of these CPUs and may run there.

    Kernel threads that are bound to a single CPU belong there and are left out.

    Raises:
        MachineError: `/proc` cannot be listed, or a process in it cannot be read.
    """
    for pid in _pids(root):
        for tid in _threads(root, pid):
            last = _last_run(root, pid, tid)
            status = _status(root, f"proc/{pid}/task/{tid}") if last.cpu in cpus else None
            if status is None or not status.cpus & cpus or (status.kernel and len(status.cpus) == 1):
                continue
            cgroup = "" if status.kernel else cgroup_of(root, str(pid))
            # A thread that has ended meanwhile has no cgroup either.
            if not (cgroup or status.kernel) and _status(root, f"proc/{pid}/task/{tid}") is None:
                continue
            yield ThreadSeen(pid, status.name, status.cpus, last.seconds, status.kernel, cgroup)


class PodsSeen(msgspec.Struct, frozen=True):
    """The containers of some pods at one moment.

    Attributes:
        containers: the containers.
        processes: every process of the node except the kernel's own.
    """

    containers: tuple[ContainerCgroup, ...]
    processes: tuple[Process, ...]


def pods_seen(root: Root, pods: Iterable[str] | None) -> PodsSeen:
    """Return the containers of the pods with these UIDs, or of all pods for None, from cgroups and processes.

    Raises:
        MachineError: the cgroups or the processes cannot be read.
    """
    cgroups, pods = Cgroups(root), None if pods is None else tuple(dict.fromkeys(pods))
    return _seen(root, cgroups, _listed(root, cgroups, pods), pods)


def require_visible(root: Root, pods: Iterable[str] | None) -> PodsSeen:
    """Return the containers of the pods with these UIDs, or of all pods for None, if `/proc` shows their processes.

    Raises:
        MachineError: `/proc` does not show them, because it is missing, hides processes or belongs to another PID
            namespace, such as that of a pod; or a process or the cgroups cannot be read.
    """
    cgroups, pods = Cgroups(root), None if pods is None else tuple(dict.fromkeys(pods))
    listed = _listed(root, cgroups, pods)
    # Only containers with processes both before and after reading /proc count: others may have started or ended.
    running = {container.path for container in listed if cgroups.has_processes(container.cgroup)}
    seen = _seen(root, cgroups, listed, pods)
    for container in seen.containers:
        if container.path in running and not container.processes and cgroups.has_processes(container.cgroup):
            raise MachineError(
                f"/proc does not show the processes of the container in {container.path}, so it belongs to another PID "
                "namespace or hides other users' processes (hidepid); run this as root on the node, in a pod with "
                "hostPID: true, or with --machine DIR where the node's root is mounted"
            )
    return seen


def _listed(root: Root, cgroups: Cgroups, pods: Iterable[str] | None) -> list[ContainerCgroup]:
    uids = pods_on(root) if pods is None else pods
    return [container for uid in uids for container in containers_of(root, cgroups, uid)]


def _seen(
    root: Root,
    cgroups: Cgroups,
    listed: Iterable[ContainerCgroup],
    pods: Iterable[str] | None,
) -> PodsSeen:
    """Read the processes after the cgroups, so that those of a running container are among them."""
    seen = tuple(processes(root, by_thread=True))
    containers = tuple(
        # Some sandboxed runtimes use cgroups that are not named after container ids; these are found by processes.
        replace(container, cpus=cgroups.effective_cpus(container.cgroup)) if container.cpus is None else container
        for container in with_processes(listed, seen, pods)
    )
    return PodsSeen(containers, seen)


def online_for_pods(root: Root) -> CPUSet:
    """Return the online CPUs on which pods may run.

    Raises:
        MachineError: the kernel does not report them.
    """
    try:
        online = CPUSet.parse(read_text(root, _ONLINE))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MachineError(f"/{_ONLINE} does not say which CPUs are online: {reason}") from error
    return online - read_pods_cgroup(root).lacks(online)
