"""What the kernel's cgroups say of a container: on which CPUs it may run, and whether it still has processes.

cgroup v2 has `cpuset.cpus.effective` and `cgroup.events`, v1 in its cpuset hierarchy `cpuset.effective_cpus` and in
that of pids `pids.current` (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/cpusets.rst and cgroup-v1/pids.rst).
`cgroup.procs` names processes of the reader's own PID namespace alone, which in a pod are those of that pod: in v1 it
is empty for any other.
A container's folder follows from the OCI `cgroupsPath`: a path, or `slice:prefix:name` with the systemd driver, where a
slice `a-b.slice` lies in `a.slice` (systemd.slice(5)).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.machine.root import Root, read_text

_UNIFIED: Final = "sys/fs/cgroup"
# What the kernel says of a cgroup that is not there, or not any more while its files are being read.
_GONE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ENODEV))
_EFFECTIVE: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus")
_LIMITS: Final = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def cgroup_folder(path: str) -> str:
    """Where a container's cgroup lies in its hierarchy, without a leading slash; empty if the runtime did not say."""
    slice_name, colon, rest = path.partition(":")
    if not colon:
        return path.strip("/")
    prefix, _, name = rest.partition(":")
    unit = f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    if name.endswith(".slice"):
        unit = name
    return "/".join((*_slices(slice_name or "system.slice"), unit))


def _slices(name: str) -> Iterable[str]:
    if name == "-.slice":
        return ()
    parts = name.removesuffix(".slice").split("-")
    return ("-".join(parts[: index + 1]) + ".slice" for index in range(len(parts)))


class Cgroups:
    """A machine's cgroups, in the hierarchies that are mounted when this is made; it may be read from a pod.

    A cgroup is named by its folder in its hierarchy, without a leading slash.

    Attributes:
        cpuset: the folders below which there are cgroups with CPU sets: that of cgroup v2, and those of the v1
            hierarchies that have the controller, alone or together with others (`cpuset,cpu,cpuacct`).
    """

    def __init__(self, root: Root) -> None:
        """Look what is mounted."""
        self._root = root
        try:
            names = root.listdir(_UNIFIED)
        except OSError:
            names = []

        def hierarchies(controller: str) -> tuple[str, ...]:
            return tuple(f"{_UNIFIED}/{name}" for name in names if controller in name.split(","))

        self.cpuset: Final = (_UNIFIED, *hierarchies("cpuset"))
        self._cpu: Final = (_UNIFIED, *hierarchies("cpu"))
        self._pids: Final = hierarchies("pids")

    def effective_cpus(self, folder: str) -> CPUSet | None:
        """The CPUs on which what is in a cgroup may run; None if it is not there or cannot be read."""
        if not folder:
            return None
        for hierarchy in self.cpuset:
            for name in _EFFECTIVE:
                try:
                    return CPUSet.parse(read_text(self._root, f"{hierarchy}/{folder}/{name}"))
                except (OSError, ValueError):
                    continue
        return None

    def cpu_limit(self, folder: str) -> float | None:
        """How many CPUs' worth of time a cgroup allows; None if it has no limit or cannot be read.

        `cpu.max` in cgroup v2, `cpu.cfs_quota_us` and `cpu.cfs_period_us` in v1.
        """
        for place in (f"{hierarchy}/{folder}" for hierarchy in self._cpu if folder):
            for names in _LIMITS:
                try:
                    quota, period = " ".join(read_text(self._root, f"{place}/{name}") for name in names).split()
                    return None if quota in ("max", "-1") else int(quota) / int(period)
                except (OSError, ValueError, ZeroDivisionError):
                    continue
        return None

    def has_processes(self, folder: str) -> bool:
        """Whether there are processes in a container's cgroup or below; True where that cannot be found out."""
        told = [self._populated(hierarchy, folder) for hierarchy in self.cpuset if folder]
        return any(told) or False not in told

    def _populated(self, hierarchy: str, folder: str) -> bool | None:
        """Whether the cgroup has processes in this hierarchy; None if that is not to be seen there."""
        place = f"{hierarchy}/{folder}"
        try:
            if hierarchy == _UNIFIED:
                return "populated 1" in read_text(self._root, f"{place}/cgroup.events").splitlines()
            return True if read_text(self._root, f"{place}/cgroup.procs") else self._counted(folder)
        except OSError as error:
            # Anything else (no file descriptor left, say) is no answer, and a claim must not go to a second container.
            return False if error.errno in _GONE and self._shows(hierarchy, folder) else None

    def _counted(self, folder: str) -> bool | None:
        """The same by the number of processes, which the hierarchy of pids tells to every PID namespace."""
        for hierarchy in self._pids:
            try:
                return int(read_text(self._root, f"{hierarchy}/{folder}/pids.current")) > 0
            except (OSError, ValueError):
                continue
        return None

    def _shows(self, hierarchy: str, folder: str) -> bool:
        """Whether the cgroup would be seen if it was there: what is above all pods' cgroups, and outlives them, is.

        Where the host's cgroups are not mounted, a pod sees a tree in which there is nothing but itself.
        """
        top, slash, _ = folder.partition("/")
        return bool(slash) and self._root.exists(f"{hierarchy}/{top}")
