"""Reads a container's processes on the running machine with psutil: since when they run, how long, and where they may.

psutil sees the processes of this process's own `/proc` and asks the kernel by its own process ids, so it is not used
for any other machine.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root

if TYPE_CHECKING:
    import psutil


class ContainerProcesses(msgspec.Struct, frozen=True):
    """The processes of a container.

    Attributes:
        cpu_seconds: CPU time of each process in user and kernel mode, by process.
        started: when the first of them was started, in seconds since 1970.
        threads: how many threads they have.
        affinity: the CPUs on which any of them may run.
    """

    cpu_seconds: dict[str, float]
    started: float
    threads: int
    affinity: CPUSet


def container_processes(root: Root, pids: Collection[int]) -> ContainerProcesses | None:
    """Return what these processes do; None if none of them can be looked at. One that ends meanwhile is left out."""
    if not pids or not isinstance(root, HostRoot):
        return None
    import psutil  # noqa: PLC0415 - a megabyte that few nodes need

    seen: list[ContainerProcesses] = []
    for pid in pids:
        try:
            seen.append(_look(psutil.Process(pid)))
        except psutil.NoSuchProcess:
            continue
        except (psutil.Error, OSError):
            return None
    if not seen:
        return None
    return ContainerProcesses(
        {name: seconds for each in seen for name, seconds in each.cpu_seconds.items()},
        min(each.started for each in seen),
        sum(each.threads for each in seen),
        CPUSet.union(each.affinity for each in seen),
    )


def _look(process: psutil.Process) -> ContainerProcesses:
    with process.oneshot():
        started, times = process.create_time(), process.cpu_times()
        return ContainerProcesses(
            # With its start, since process ids come again.
            {f"process {process.pid} of {started}": times.user + times.system},
            started,
            process.num_threads(),
            CPUSet(process.cpu_affinity()),
        )
