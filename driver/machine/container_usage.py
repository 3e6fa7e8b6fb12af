"""Reads what a container uses: from its cgroup, and from its processes if the cgroup has no file for it.

cgroup v2: `cpu.stat`, `cpu.pressure`, `memory.numa_stat`, `hugetlb.<size>.current`
(Documentation/admin-guide/cgroup-v2.rst, accounting/psi.rst). v1: `cpuacct.usage`, `cpu.stat`, `memory.numa_stat`,
`hugetlb.<size>.usage_in_bytes` (cgroup-v1/cpuacct.rst, cgroup-v1/memory.rst, cgroup-v1/hugetlb.rst,
scheduler/sched-bwc.rst); there is no pressure. The time that tasks waited in a run queue is in neither version, but in
each task's `schedstat` (scheduler/sched-stats.rst). It is unknown if `/proc` does not show the container's processes.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import page_size_name
from dranode.driver.claims.usage import Figure, SourceValues
from dranode.driver.machine.cgroups import Cgroups, cgroup_of
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root, read_text

if TYPE_CHECKING:
    import psutil


class ContainerProcesses(msgspec.Struct, frozen=True):
    """The processes of a container.

    Attributes:
        cpu_seconds: CPU time in user and kernel mode, by process.
        started: the start of the oldest one, in seconds since 1970.
        threads: the number of their threads.
        affinity: the CPUs on which any of them may run.
    """

    cpu_seconds: dict[str, float]
    started: float
    threads: int
    affinity: CPUSet


def container_processes(root: Root, pids: Collection[int]) -> ContainerProcesses | None:
    """Return what these processes use; None if none of them still runs, or if one cannot be read."""
    # psutil uses this process's own `/proc` and process ids, so it knows nothing about any other machine.
    if not pids or not isinstance(root, HostRoot):
        return None
    import psutil  # noqa: PLC0415 - a megabyte that few nodes need

    alive: list[ContainerProcesses] = []
    for pid in pids:
        try:
            alive.append(_read(psutil.Process(pid)))
        except psutil.NoSuchProcess:
            # It has ended. Its time is lost, but the others are still right.
            continue
        except (psutil.Error, OSError):
            # A sum that lacks a running process would look like less use.
            return None
    if not alive:
        return None
    return ContainerProcesses(
        {name: seconds for process in alive for name, seconds in process.cpu_seconds.items()},
        min(process.started for process in alive),
        sum(process.threads for process in alive),
        CPUSet.union(process.affinity for process in alive),
    )


def _read(process: psutil.Process) -> ContainerProcesses:
    with process.oneshot():
        started, times = process.create_time(), process.cpu_times()
        return ContainerProcesses(
            # The start is part of the name, because the kernel reuses process ids.
            {f"process {process.pid} of {started}": times.user + times.system},
            started,
            process.num_threads(),
            CPUSet(process.cpu_affinity()),
        )


_MICRO: Final = 1e-6
_NANO: Final = 1e-9
# In the order of preference: cgroup v2, v1.
_PAGES_USED: Final = ("current", "usage_in_bytes")
# The kinds of memory in cgroup v2 that belong to programs. `file` includes shared memory, and `anon` transparent huge
# pages.
_KINDS: Final = ("anon", "file")
# In v1 the line that includes the cgroups below; in v2 every line does.
_V1_KIND: Final = "hierarchical_total"
_SIZE: Final = re.compile(r" N([0-9]+)=([0-9]+)", re.ASCII)
_CGROUP: Final = "cgroup"


class UsageReader(msgspec.Struct, frozen=True):
    """Reads containers of a machine.

    Attributes:
        root: the machine's files.
        cgroups: its cgroups.
    """

    root: Root
    cgroups: Cgroups

    def read(
        self, folder: str, local: Collection[int] | None, pids: Collection[int] | None = None
    ) -> Mapping[Figure, SourceValues]:
        """Return what can be read of a container; a figure that cannot be read is missing.

        Args:
            folder: its cgroup.
            local: the NUMA nodes of its CPUs; None if they are unknown.
            pids: its processes; None for those that its cgroup names.
        """
        pids = self._pids(folder) if pids is None else pids
        stat = self._pairs("cpu", folder, "cpu.stat")
        return {
            **dict(self._cpu_time(stat, folder, pids)),
            **dict(_throttling(stat)),
            **dict(self._pressure(folder)),
            **dict(self._memory(folder, local)),
            **dict(self._waiting(pids)),
        }

    def _cpu_time(
        self, stat: Mapping[str, int], folder: str, pids: Collection[int]
    ) -> Iterator[tuple[Figure, SourceValues]]:
        # In v1 `cpu.stat` exists too, but has only the figures of throttling; the time is in the hierarchy of cpuacct.
        if "usage_usec" in stat:
            yield Figure.CPU, {_CGROUP: stat["usage_usec"] * _MICRO}
        elif (nanoseconds := self.cgroups.text("cpuacct", folder, "cpuacct.usage") or "").isdecimal():
            yield Figure.CPU, {_CGROUP: int(nanoseconds) * _NANO}
        elif (seen := container_processes(self.root, pids)) is not None:
            yield Figure.CPU, seen.cpu_seconds

    def _pressure(self, folder: str) -> Iterator[tuple[Figure, SourceValues]]:
        for line in (self.cgroups.text("cpu", folder, "cpu.pressure") or "").splitlines():
            kind, _, rest = line.partition(" ")
            total = rest.rpartition("total=")[2]
            if kind in ("some", "full") and total.isdecimal():
                yield Figure.WAITING if kind == "some" else Figure.STALLED, {_CGROUP: int(total) * _MICRO}

    def _memory(self, folder: str, local: Collection[int] | None) -> Iterator[tuple[Figure, SourceValues]]:
        nodes = _nodes(self.cgroups.text("memory", folder, "memory.numa_stat") or "")
        if not nodes:
            return
        yield Figure.MEMORY, {_CGROUP: sum(nodes.values())}
        if local is not None:
            yield Figure.REMOTE_MEMORY, {_CGROUP: sum(size for node, size in nodes.items() if node not in local)}

    def _waiting(self, pids: Collection[int]) -> Iterator[tuple[Figure, SourceValues]]:
        tasks = dict(task for pid in pids for task in self._tasks(pid))
        # A kernel that does not count this writes zeros, which must not pass for "never waited".
        if any(ran for ran, _ in tasks.values()):
            yield Figure.WAIT, {f"task {task}": waited * _NANO for task, (_, waited) in tasks.items()}

    def _tasks(self, pid: int) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield how many nanoseconds each task of a process ran and waited; a task that has ended is omitted."""
        try:
            names = self.root.listdir(f"proc/{pid}/task")
        except OSError:
            return
        for name in names:
            try:
                ran, waited, _ = read_text(self.root, f"proc/{pid}/task/{name}/schedstat").split()
                yield name, (int(ran), int(waited))
            except (OSError, ValueError):
                continue

    def read_memory(
        self, folder: str, local: Collection[int] | None, page_sizes: Collection[int]
    ) -> Mapping[Figure, SourceValues]:
        """Return what can be read of a container's memory; a figure that cannot be read is missing.

        Args:
            folder: its cgroup.
            local: the NUMA nodes that it should be on; None if they are unknown.
            page_sizes: the sizes of huge pages to read, in bytes.
        """
        # A total with a size missing would look like less use.
        pages = {page_size_name(size): self.pages_used(folder, size) for size in page_sizes}
        known = {name: used for name, used in pages.items() if used is not None}
        hugepages = {Figure.HUGEPAGES: known} if len(known) == len(pages) else {}
        return {**dict(self._memory(folder, local)), **hugepages}

    def pages_used(self, folder: str, size: int) -> int | None:
        """Return how many bytes of huge pages of a size a container uses; None if unknown."""
        for name in _PAGES_USED:
            text = self.cgroups.text("hugetlb", folder, f"hugetlb.{page_size_name(size)}.{name}")
            if text is not None and text.isdecimal():
                return int(text)
        return None

    def _pids(self, folder: str) -> tuple[int, ...]:
        """Return the processes of a cgroup; none if `/proc` may not show all of them.

        `cgroup.procs` shows a process of another PID namespace as 0 in v2 and not at all in v1, and `/proc` may
        belong to yet another namespace.
        """
        # `cgroup.procs` does not list processes in cgroups below this one.
        if self._pairs("cpuset", folder, "cgroup.stat").get("nr_descendants"):
            return ()
        names = (self.cgroups.text("cpuset", folder, "cgroup.procs") or "").split()
        own = folder.rpartition("/")[2]
        # The ids belong to this namespace only if `/proc` shows each of them in this cgroup.
        if (
            "0" in names
            or not all(map(str.isdecimal, names))
            or any(own not in cgroup_of(self.root, pid).split("/") for pid in names)
        ):
            return ()
        return tuple(map(int, names))

    def _pairs(self, controller: str, folder: str, name: str) -> dict[str, int]:
        lines = (line.split() for line in (self.cgroups.text(controller, folder, name) or "").splitlines())
        return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdecimal()}  # noqa: PLR2004 - a pair


def _throttling(stat: Mapping[str, int]) -> Iterator[tuple[Figure, SourceValues]]:
    for figure, name, unit in (
        (Figure.PERIODS, "nr_periods", 1),
        (Figure.THROTTLED_PERIODS, "nr_throttled", 1),
        (Figure.THROTTLED, "throttled_usec", _MICRO),
        (Figure.THROTTLED, "throttled_time", _NANO),
    ):
        if name in stat:
            yield figure, {_CGROUP: stat[name] * unit}


def _nodes(numa_stat: str) -> dict[int, int]:
    """Return the bytes of a cgroup on each NUMA node; none if the file is not one.

    Lines are `anon N0=4096 N1=0` (bytes) in v2 and `hierarchical_total=1 N0=1 N1=0` (pages) in v1.
    """
    nodes: dict[int, int] = {}
    for line in numa_stat.splitlines():
        kind = line.partition(" ")[0]
        if kind in _KINDS or kind.startswith(f"{_V1_KIND}="):
            unit = 1 if kind in _KINDS else mmap.PAGESIZE
            for node, size in _SIZE.findall(line):
                nodes[int(node)] = nodes.get(int(node), 0) + int(size) * unit
    return nodes
