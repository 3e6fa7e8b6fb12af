"""Reads from cgroups which CPUs and memory a container may use, and whether it still has processes.

cgroup v2 has `cpuset.cpus.effective`, `cpuset.mems.effective`, `hugetlb.<size>.max` and `cgroup.events`
(Documentation/admin-guide/cgroup-v2.rst). In v1 the cpuset hierarchy has `cpuset.effective_cpus` and
`cpuset.effective_mems`, the hugetlb hierarchy `hugetlb.<size>.limit_in_bytes` and the pids hierarchy `pids.current`
(cpusets.rst, hugetlb.rst and pids.rst below cgroup-v1/ there).

`cgroup.procs` only lists processes of the reader's own PID namespace. In a pod these are the processes of that pod, so
in v1 the file is empty for any other pod.

crun with the systemd driver runs a container in a cgroup `container` below its scope. Limits of huge pages are only set
there, and before crun 1.18 a change of its CPUs or memory nodes too (crun(1), `run.oci.systemd.subgroup`).

A container's folder follows from the OCI `cgroupsPath`: a path, or `slice:prefix:name` with the systemd driver, where a
slice `a-b.slice` is inside `a.slice` (systemd.slice(5)).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import page_size_name
from dranode.driver.machine.root import GONE, Root, read_text
from dranode.driver.pinning.containers import Effective

_UNIFIED: Final = "sys/fs/cgroup"
# Each pair has the name in v2 first, then the name in v1.
_EFFECTIVE: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus")
_EFFECTIVE_NODES: Final = ("cpuset.mems.effective", "cpuset.effective_mems")
_PAGE_LIMITS: Final = ("max", "limit_in_bytes")
_CONTROLLERS: Final = ("cpu", "cpuacct", "cpuset", "hugetlb", "memory")
NO_LIMIT: Final = (1 << 63) - 1
"""The value for "no limit" of huge pages."""
_LIMITS: Final = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def cgroup_folder(path: str) -> str:
    """Return the folder of a container's cgroup in its hierarchy, without a leading slash; empty if it is unknown."""
    # Only the form of the systemd driver has colons and no slash.
    slice_name, colon, rest = path.partition(":")
    if "/" in path or not colon:
        return path.strip("/")
    prefix, _, name = rest.partition(":")
    unit = f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    # As in runc (cgroups, systemd): a name that is a slice is the unit itself, and the default slice is system.slice.
    if name.endswith(".slice"):
        unit = name
    return "/".join((*_slices(slice_name or "system.slice"), unit))


def _slices(name: str) -> Iterable[str]:
    # The root slice is the top of the hierarchy and has no folder of its own.
    if name == "-.slice":
        return ()
    parts = name.removesuffix(".slice").split("-")
    return ("-".join(parts[: index + 1]) + ".slice" for index in range(len(parts)))


def cgroup_of(root: Root, pid: str) -> str:
    """Return a process's cgroup in the v1 hierarchy with cpusets, else in the unified one; empty if unknown."""
    try:
        lines = [line.split(":", 2) for line in read_text(root, f"proc/{pid}/cgroup").splitlines()]
        # A line is `4:cpuset,cpu:/path` in v1. The unified hierarchy is `0::/path`, also on a hybrid system.
        paths = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    except (OSError, ValueError):
        return ""
    return paths.get("cpuset", paths.get("", "")).strip("/")


def _places(hierarchies: Iterable[str], folder: str) -> Iterator[str]:
    """Yield where a cgroup's limits may be, the nearest to its processes first; nothing for an empty folder."""
    for hierarchy in hierarchies if folder else ():
        if folder.endswith(".scope"):
            yield f"{hierarchy}/{folder}/container"
        yield f"{hierarchy}/{folder}"


class Cgroups:
    """A machine's cgroups, in the hierarchies that are mounted when the object is created; it works in a pod too.

    A cgroup is named by its folder in its hierarchy, without a leading slash.

    Attributes:
        cpuset: the roots of the hierarchies with CPU sets: cgroup v2, and the v1 hierarchies with this controller,
            alone or together with others (`cpuset,cpu,cpuacct`).
    """

    def __init__(self, root: Root) -> None:
        """Find the mounted hierarchies."""
        self._root = root
        try:
            names = root.listdir(_UNIFIED)
        except OSError:
            names = []

        def hierarchies(controller: str) -> tuple[str, ...]:
            return tuple(f"{_UNIFIED}/{name}" for name in names if controller in name.split(","))

        self._hierarchies: Final = {controller: (_UNIFIED, *hierarchies(controller)) for controller in _CONTROLLERS}
        self.cpuset: Final = self._hierarchies["cpuset"]
        self._pids: Final = hierarchies("pids")

    def effective_cpus(self, folder: str) -> CPUSet | None:
        """Return the CPUs on which a cgroup may run; None if it does not exist or cannot be read."""
        return self._effective(folder, _EFFECTIVE)

    def require_gone(self, folder: str) -> None:
        """Check that a cgroup whose CPUs could not be read does not exist in any hierarchy.

        Raises:
            OSError: one of its files cannot be read for another reason, so the cgroup may exist.
        """
        for place in (f"{hierarchy}/{folder}/{name}" for hierarchy in self.cpuset for name in _EFFECTIVE):
            try:
                self._root.read_bytes(place)
            except OSError as error:
                if error.errno not in GONE:
                    raise

    def effective_nodes(self, folder: str) -> CPUSet | None:
        """Return the NUMA nodes from which a cgroup may take memory; None if it does not exist or cannot be read."""
        return self._effective(folder, _EFFECTIVE_NODES)

    def page_limit(self, folder: str, size: int) -> int | None:
        """Return how many bytes of huge pages of one size a cgroup may use; `NO_LIMIT` if there is no limit.

        The answer is None if the cgroup does not exist, lacks the hugetlb controller, or cannot be read.
        """
        for place in _places(self._hierarchies["hugetlb"], folder):
            for name in _PAGE_LIMITS:
                try:
                    text = read_text(self._root, f"{place}/hugetlb.{page_size_name(size)}.{name}")
                    # In v1 no limit is the largest number of bytes that is a multiple of the page size.
                    return NO_LIMIT if text == "max" or int(text) > NO_LIMIT - size else int(text)
                except (OSError, ValueError):
                    continue
        return None

    def memory(self, folder: str, expected: Effective) -> Effective:
        """Return the NUMA nodes and the limits of huge pages of a cgroup, if `expected` has them."""
        limits = ((size, self.page_limit(folder, size)) for size, _ in expected.hugepages)
        return Effective(
            None,
            None if expected.nodes is None else self.effective_nodes(folder),
            tuple((size, limit) for size, limit in limits if limit is not None),
        )

    def _effective(self, folder: str, names: Iterable[str]) -> CPUSet | None:
        # On a hybrid system the cgroup may be in any of the hierarchies, and each version has its own file name. What
        # does not exist is simply not found.
        for place in _places(self.cpuset, folder):
            for name in names:
                try:
                    return CPUSet.parse(read_text(self._root, f"{place}/{name}"))
                except (OSError, ValueError):
                    continue
        return None

    def cpu_limit(self, folder: str) -> float | None:
        """Return a cgroup's CPU limit as a number of CPUs; None if it has no limit or cannot be read.

        It is in `cpu.max` in cgroup v2, and in `cpu.cfs_quota_us` and `cpu.cfs_period_us` in v1.
        """
        for place in (f"{hierarchy}/{folder}" for hierarchy in self._hierarchies["cpu"] if folder):
            for names in _LIMITS:
                try:
                    # Either version gives quota and period in microseconds. No quota is "max" in v2 and -1 in v1.
                    quota, period = " ".join(read_text(self._root, f"{place}/{name}") for name in names).split()
                    return None if quota in ("max", "-1") else int(quota) / int(period)
                except (OSError, ValueError, ZeroDivisionError):
                    continue
        return None

    def text(self, controller: str, folder: str, name: str) -> str | None:
        """Return a file of a cgroup, in cgroup v2 or in the v1 hierarchy of a controller; None if it cannot be read.

        Args:
            controller: `cpu`, `cpuacct`, `cpuset`, `hugetlb` or `memory`.
            folder: the cgroup.
            name: the file, such as `cpu.stat`.
        """
        for hierarchy in self._hierarchies[controller] if folder else ():
            try:
                return read_text(self._root, f"{hierarchy}/{folder}/{name}")
            except OSError:
                continue
        return None

    def shows_processes(self, folder: str) -> bool:
        """Return whether a container's cgroup certainly has processes, in itself or below."""
        return any(self._populated(hierarchy, folder) for hierarchy in self.cpuset if folder)

    def has_processes(self, folder: str) -> bool:
        """Return whether a container's cgroup has processes, in itself or below; True if that is unknown."""
        # A False counts only if no hierarchy has processes; without any answer the container may still run.
        populated = [self._populated(hierarchy, folder) for hierarchy in self.cpuset if folder]
        return any(populated) or False not in populated

    def _populated(self, hierarchy: str, folder: str) -> bool | None:
        """Return whether the cgroup has processes in this hierarchy; None if the hierarchy does not show it."""
        place = f"{hierarchy}/{folder}"
        try:
            if hierarchy == _UNIFIED:
                return "populated 1" in read_text(self._root, f"{place}/cgroup.events").splitlines()
            # v1 has no such event, and the list of processes may be empty only for this PID namespace.
            return True if read_text(self._root, f"{place}/cgroup.procs") else self._counted(folder)
        except OSError as error:
            # Any other error, such as EMFILE, proves nothing: another container must not start on CPUs that are in use.
            return False if error.errno in GONE and self._shows(hierarchy, folder) else None

    def _counted(self, folder: str) -> bool | None:
        """Return whether the pids hierarchy, whose count is right in every PID namespace, counts processes."""
        for hierarchy in self._pids:
            try:
                return int(read_text(self._root, f"{hierarchy}/{folder}/pids.current")) > 0
            except (OSError, ValueError):
                continue
        return None

    def _shows(self, hierarchy: str, folder: str) -> bool:
        """Return whether the hierarchy would show the cgroup if it existed: its topmost folder has to be there.

        A pod without the host's cgroups sees only its own cgroup, so a missing folder means nothing there.
        """
        top, slash, _ = folder.partition("/")
        return bool(slash) and self._root.exists(f"{hierarchy}/{top}")
