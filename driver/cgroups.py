"""What the kernel's cgroups say of a container: on which CPUs it may run, and whether it still has processes.

cgroup v2 has `cpuset.cpus.effective` and `cgroup.events`, v1 in its cpuset hierarchy `cpuset.effective_cpus` and
`cgroup.procs` (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cpusets.rst). A container's folder follows from
the OCI `cgroupsPath`: a path, or `slice:prefix:name` with the systemd driver, where a slice `a-b.slice` lies in
`a.slice` (systemd.slice(5)).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from dranode.driver.core.containers import Container
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.machine.root import Root, read_text

# The unified hierarchy, the v1 hierarchy of cpusets, and how it is mounted together with others on some distributions.
_MOUNTS: Final = ("sys/fs/cgroup", "sys/fs/cgroup/cpuset", "sys/fs/cgroup/cpuset,cpu,cpuacct")
_CPU_MOUNTS: Final = (
    "sys/fs/cgroup",
    "sys/fs/cgroup/cpu",
    "sys/fs/cgroup/cpu,cpuacct",
    "sys/fs/cgroup/cpuset,cpu,cpuacct",
)
# What the kernel says of a cgroup that is not there, or not any more while its files are being read.
_GONE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ENODEV))
_EFFECTIVE: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus")


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


def effective_cpus(root: Root, container: Container) -> CPUSet | None:
    """The CPUs on which a container may run; None if its cgroup is not there or cannot be read."""
    folder = cgroup_folder(container.cgroup)
    if not folder:
        return None
    for mount in _MOUNTS:
        for name in _EFFECTIVE:
            try:
                return CPUSet.parse(read_text(root, f"{mount}/{folder}/{name}"))
            except (OSError, ValueError):
                continue
    return None


def pod_cpu_limit(root: Root, container: Container) -> float | None:
    """How many CPUs' worth of time the cgroup of a container's pod allows; None if it has no limit or cannot be read.

    `cpu.max` in cgroup v2, `cpu.cfs_quota_us` and `cpu.cfs_period_us` in v1.
    """
    pod = cgroup_folder(container.cgroup).rpartition("/")[0]
    for folder in (f"{mount}/{pod}" for mount in _CPU_MOUNTS if pod):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            try:
                quota, period = " ".join(read_text(root, f"{folder}/{name}") for name in names).split()
                return None if quota in ("max", "-1") else int(quota) / int(period)
            except (OSError, ValueError, ZeroDivisionError):
                continue
    return None


def has_processes(root: Root, container: Container) -> bool:
    """Whether a container that was started still has processes; True where that cannot be found out."""
    folder = cgroup_folder(container.cgroup)
    mounts = [mount for mount in _MOUNTS if root.exists(f"{mount}/cgroup.procs")]
    if not folder or not mounts:
        return True
    return any(_populated(root, f"{mount}/{folder}") for mount in mounts)


def _populated(root: Root, folder: str) -> bool:
    try:
        if root.exists(f"{folder}/cgroup.events"):
            return "populated 1" in read_text(root, f"{folder}/cgroup.events").splitlines()
        if read_text(root, f"{folder}/cgroup.procs"):
            return True
        below = [f"{folder}/{name}" for name in root.listdir(folder)]
    except OSError as error:
        # Anything else (no file descriptor left, say) is no answer, and a claim must not go to a second container.
        return error.errno not in _GONE
    return any(_populated(root, each) for each in below if root.exists(f"{each}/cgroup.procs"))
