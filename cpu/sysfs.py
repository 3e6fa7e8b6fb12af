"""Reads a machine's CPUs from `/sys` into a `Topology`.

Sources: Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-system-cpu and -node. Kernels
differ in what they report, so every set has several sources, which are tried in the order of the tables below: a list,
then a mask, each under today's name and under the older one. All sets are restricted to the online CPUs. A set that
does not contain the CPU whose file it is in is ignored, and the next source is tried. If two sets overlap, the one of
the lower CPU (or node) counts. Each kind of contradiction is reported once.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from itertools import count
from operator import or_
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.cpu.kernel_files import CPU_ROOT, KernelFiles, read_numa_nodes
from dranode.cpu.topology import CPU, Topology
from dranode.driver.machine.kubepods import read_pods_cgroup
from dranode.driver.machine.pci import PCIE_ROOT
from dranode.driver.machine.root import Root, read_text

_TOPOLOGY: Final = "topology"
_CORE: Final = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
_PACKAGE: Final = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
_CACHE: Final = ("shared_cpu_list", "shared_cpu_map")
# The performance-monitoring units of hybrid x86 processors; the low-power cores of some are e-cores without an L3.
_E_CORES: Final = ("sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus")
_SMT: Final = {"on": True, "off": False, "forceoff": False, "notsupported": False, "notimplemented": False}

# How often to read a machine whose CPUs change while it is read. The last reading is used even if it is inconsistent.
_READINGS: Final = 4

_L3: Final = 3


def read_topology(root: Root) -> Topology:
    """Read the machine's CPUs; the cost is linear in their number.

    The files of a CPU vanish when it goes offline, so a reading counts only if the same CPUs are online afterwards.

    Raises:
        MachineError: no CPU is online, or a file cannot be read or parsed; the message names the file and its value.
    """
    for _ in range(1, _READINGS):
        before = _online_list(root)
        try:
            topology = _Reader(root).topology()
        except MachineError:
            if _online_list(root) == before:
                raise
        else:
            if _online_list(root) == before:
                return topology
    return _Reader(root).topology()


def read_online(root: Root) -> CPUSet:
    """Return the CPUs in the kernel's list of online CPUs; none if the list is missing or cannot be read."""
    try:
        return CPUSet.of_mask(KernelFiles(root).mask(f"{CPU_ROOT}/online") or 0)
    except MachineError:
        return CPUSet()


def read_online_for_pods(root: Root) -> CPUSet:
    """Return the online CPUs on which pods may run; none if the cgroup of all pods cannot be read."""
    online = read_online(root)
    try:
        return online - read_pods_cgroup(root).lacks(online)
    except MachineError:
        return CPUSet()


def _online_list(root: Root) -> str | None:
    return KernelFiles(root).text(f"{CPU_ROOT}/online")


class _Reader:
    """One reading of one machine."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._files = KernelFiles(root)

    def topology(self) -> Topology:
        folders = self._files.numbered(CPU_ROOT, "cpu")
        online = self._online(folders)
        if not online:
            raise MachineError(f"no CPU is online according to /{CPU_ROOT}/online and the files cpu*/online")
        present = self._files.mask(f"{CPU_ROOT}/present")
        cores = self._partition("core", online, lambda cpu: self._files.shared("core", cpu, _TOPOLOGY, _CORE) or 0)
        core_of = _index(cores)
        package_of, packages = self._packages(online)
        l3, l3_ids = self._l3(online, {cpu: cores[index] for cpu, index in core_of.items()})
        l3_of = _index(l3)
        numa_of, numa, memory_nodes = read_numa_nodes(self._files, online)
        for core in cores:
            if len(nodes := {numa_of.get(cpu, -1) for cpu in core} - {-1}) > 1:
                listed = ", ".join(map(str, sorted(nodes)))
                self._files.warn(
                    "core nodes", f"the kernel lists CPUs {core}, a core, in NUMA nodes {listed}: no node has it whole"
                )
        e_cores = self._e_cores()
        pods = read_pods_cgroup(self._root)
        if missing := (pods.cpus or CPUSet()) - CPUSet.of_mask(online):
            self._files.warn(
                "pods",
                f"{pods.folder} lets pods run on CPUs {missing}, which /{CPU_ROOT}/online does not list: that file is "
                "not the kernel's own, as in a container with lxcfs, so these CPUs are not published",
            )
        cpus = {
            cpu: CPU(
                id=cpu,
                core=core_of[cpu],
                core_id=self._files.number(f"{CPU_ROOT}/cpu{cpu}/topology/core_id"),
                package=package_of.get(cpu, -1),
                numa=numa_of.get(cpu),
                l3=l3_of.get(cpu),
                l3_id=l3_ids[l3_of[cpu]] if cpu in l3_of else -1,
                type="standard" if e_cores is None else "e-core" if e_cores >> cpu & 1 else "p-core",
            )
            for cpu in CPUSet.of_mask(online)
        }
        return Topology(
            cpus=cpus,
            offline=CPUSet.of_mask((CPUSet(folders).mask if present is None else present) & ~online),
            isolated=CPUSet.of_mask(self._files.mask(f"{CPU_ROOT}/isolated") or 0),
            nohz_full=self._nohz_full(),
            smt=self._smt(len(cpus) > len(cores)),
            cores=cores,
            packages=packages,
            l3=l3,
            numa=numa,
            memory_nodes=memory_nodes,
            pods=pods,
            warnings=tuple(self._files.oddities.values()),
        )

    def _online(self, folders: Iterable[int]) -> int:
        online = self._files.mask(f"{CPU_ROOT}/online")
        if online is not None:
            return online
        # Kernels without the list have an `online` file for every CPU that can be taken offline; the other CPUs are
        # always online.
        return CPUSet(cpu for cpu in folders if self._files.number(f"{CPU_ROOT}/cpu{cpu}/online") != 0).mask

    def _partition(self, kind: str, online: int, siblings: Callable[[int], int]) -> tuple[CPUSet, ...]:
        """Divide the CPUs into parts by the set that `siblings` has for each CPU; sorted by first CPU.

        Every CPU is in exactly one part: of two sets that overlap, the one of the lower CPU counts.
        """
        parts: list[int] = []
        part_of: dict[int, int] = {}
        for cpu in CPUSet.of_mask(online):
            full = siblings(cpu) & online
            own = part_of.get(cpu)
            if own is not None:
                if full not in (0, own):
                    self._files.warn(kind, f"cpu{cpu} and cpu{_low(own)} disagree about the {kind} that they share")
                continue
            part = full or 1 << cpu
            for other in CPUSet.of_mask(part):
                if other in part_of:
                    self._files.warn(kind, f"cpu{other} and cpu{cpu} disagree about the {kind} that they share")
                    part &= ~(1 << other)
            part_of.update(dict.fromkeys(CPUSet.of_mask(part), part))
            parts.append(part)
        return tuple(CPUSet.of_mask(part) for part in parts)

    def _packages(self, online: int) -> tuple[Mapping[int, int], Mapping[int, CPUSet]]:
        """Return each CPU's package, and the packages by id.

        CPUs are in one package if they have the same `physical_package_id`; on an s390, where it repeats in each book,
        the kernel's sets count too. Without ids the sets alone say which CPUs form a package. A package without an id,
        or with one that another package has, gets the lowest free id.
        """
        ids = {
            cpu: self._files.number(f"{CPU_ROOT}/cpu{cpu}/topology/physical_package_id")
            for cpu in CPUSet.of_mask(online)
        }
        known: dict[int, int] = {}

        def siblings(cpu: int) -> int:
            # Reading one file for each package is enough: the package's other CPUs have the same set.
            if cpu not in known:
                package = (self._files.shared("package", cpu, _TOPOLOGY, _PACKAGE) or 0) & online
                known.update(dict.fromkeys(CPUSet.of_mask(package), package))
            return known.get(cpu, 0)

        # Some kernels list single cores or NUMA nodes of a package as packages.
        books = any(self._files.text(f"{CPU_ROOT}/cpu{cpu}/topology/book_id") for cpu in ids)
        groups: dict[tuple[int, int], int] = {}
        for part in self._partition("package", online, siblings):
            part_ids = {ids[cpu] for cpu in part} - {-1}
            # A CPU without topology files belongs to the package in which the files of the others list it.
            default = min(part_ids) if len(part_ids) == 1 else -1
            for cpu in part:
                if not known.get(cpu) and ids[cpu] < 0:
                    continue
                number = default if ids[cpu] < 0 else ids[cpu]
                key = (part.mask if known.get(cpu) and (books or number < 0) else 0, number)
                groups[key] = groups.get(key, 0) | 1 << cpu
        self._check_ids(ids, known)
        packages: dict[int, CPUSet] = {}
        ids_in_use = {number for _, number in groups}
        free = (number for number in count() if number not in ids_in_use)
        for (_, number), group in groups.items():
            own = number
            if own < 0 or own in packages:
                own = next(free)
                if number >= 0:
                    self._files.warn(
                        "package id",
                        f"physical_package_id {number} is used by several packages; one of them is renumbered to {own}",
                    )
            packages[own] = CPUSet.of_mask(group)
        by_first = sorted(packages, key=lambda number: packages[number].first())
        package_of = {cpu: number for number, group in packages.items() for cpu in group}
        return package_of, {number: packages[number] for number in by_first}

    def _check_ids(self, ids: Mapping[int, int], known: Mapping[int, int]) -> None:
        """Warn about package ids that contradict the sets of CPUs that form the packages."""
        unknown = CPUSet(cpu for cpu, number in ids.items() if number < 0)
        if unknown and len(unknown) < len(ids):
            self._files.warn("no package id", f"CPUs {unknown} have no physical_package_id, but other CPUs have one")
        for mask in dict.fromkeys(filter(None, known.values())):
            cpus = CPUSet.of_mask(mask)
            numbers = sorted({ids[cpu] for cpu in cpus} - {-1})
            if len(numbers) > 1:
                self._files.warn(
                    "package ids",
                    f"CPUs {cpus} share a package, but their physical_package_id is {' or '.join(map(str, numbers))}",
                )

    def _l3(self, online: int, core_of: Mapping[int, CPUSet]) -> tuple[tuple[CPUSet, ...], list[int]]:
        """Return the level 3 caches, sorted by first CPU, and their ids.

        Claims ask for CPUs of one cache by a matching id, so no two caches may have the same. A cache without an id, or
        with one that another has, gets the number of its lowest CPU, or a free one if a cache reports that as its id.
        """
        caches: dict[int, int] = {}
        taken: set[int] = set()
        for cpu in CPUSet.of_mask(online):
            folder = None if cpu in taken else self._l3_folder(cpu)
            sharing = None if folder is None else self._files.shared("L3 cache", cpu, folder, _CACHE)
            if sharing is None:
                continue
            # Some kernels (ia64) report an empty set for a cache that no other core uses.
            shared = (sharing or core_of[cpu].mask) & online
            if not taken.isdisjoint(CPUSet.of_mask(shared)):
                self._files.warn("L3 cache", f"cpu{cpu} lists an L3 cache together with CPUs that have another one")
                shared &= ~CPUSet(taken).mask
            caches[shared] = self._files.number(f"{CPU_ROOT}/cpu{cpu}/{folder}/id")
            taken.update(CPUSet.of_mask(shared))
        by_first = sorted(caches, key=_low)
        reported = set(caches.values())
        free = (number for number in count() if number not in {*reported, *map(_low, by_first)})
        ids: list[int] = []
        for cache in by_first:
            number = caches[cache]
            if number < 0 or number in ids:
                own = next(free) if _low(cache) in reported else _low(cache)
                if number >= 0:
                    self._files.warn(
                        "L3 cache id",
                        f"L3 cache id {number} is used by several caches; one of them is renumbered to {own}",
                    )
                number = own
            ids.append(number)
        return tuple(CPUSet.of_mask(cache) for cache in by_first), ids

    def _l3_folder(self, cpu: int) -> str | None:
        folder = f"{CPU_ROOT}/cpu{cpu}/cache"
        # The largest cache has the highest index.
        for index in reversed(self._files.numbered(folder, "index")):
            if self._files.number(f"{folder}/index{index}/level") == _L3:
                return f"cache/index{index}"
        return None

    def _e_cores(self) -> int | None:
        """Return the mask of the e-cores; None if the machine is not hybrid."""
        units = [cpus for path in _E_CORES if (cpus := self._files.mask(path)) is not None]
        return reduce(or_, units) if units else None

    def _nohz_full(self) -> CPUSet:
        path = f"{CPU_ROOT}/nohz_full"
        # A kernel that supports nohz_full and was booted without it prints a null pointer.
        if self._files.text(path) in (None, "(null)"):
            return CPUSet()
        return CPUSet.of_mask(self._files.mask(path) or 0)

    def _smt(self, counted: bool) -> bool:  # noqa: FBT001 - the answer of the cores themselves
        control = (self._files.text(f"{CPU_ROOT}/smt/control") or "").lower()
        return _SMT.get(control, counted)


def _index(parts: Iterable[CPUSet]) -> dict[int, int]:
    return {cpu: index for index, part in enumerate(parts) for cpu in part}


def _low(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


# The PCIe root complexes of a machine and the CPUs near each, from sysfs (Documentation/ABI/testing/sysfs-bus-pci).

# Older kernels have the mask only.
_NEAR: Final = (("cpulistaffinity", CPUSet.parse), ("cpuaffinity", CPUSet.parse_mask))


def read_pcie_roots(root: Root) -> tuple[Mapping[str, CPUSet], tuple[str, ...]]:
    """Return the CPUs near every PCIe root (`pci0000:00`), and a sentence for each root whose CPUs cannot be read.

    Raises:
        MachineError: the roots cannot be listed.
    """
    try:
        names = root.listdir("sys/devices")
    except (FileNotFoundError, NotADirectoryError):
        return {}, ()
    except OSError as error:
        raise MachineError(f"/sys/devices cannot be read: {error.strerror or error}") from error
    near: dict[str, CPUSet] = {}
    warnings: list[str] = []
    for match in filter(None, map(PCIE_ROOT.fullmatch, names)):
        name, folder = match[0], f"sys/devices/{match[0]}/pci_bus/{match[1]}"
        file, parse = next((source for source in _NEAR if root.exists(f"{folder}/{source[0]}")), _NEAR[0])
        try:
            near[name] = parse(read_text(root, f"{folder}/{file}"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            warnings.append(f"PCIe root {name} is not published: /{folder}: {reason}")
    return near, tuple(warnings)
