"""What a machine's `/sys` says about its CPUs, read into a `Topology`.

Sources: Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-system-cpu and -node. Kernels
differ in what they tell, so every set has several sources, tried in the order of the tables below: a list, then a mask,
under today's name and under the older one. All sets are restricted to the online CPUs. A set that leaves out the very
CPU that it is told for is not believed; of two that overlap, the lower CPU's (or node's) is; each kind of contradiction
is one warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dranode.cpu.topology import CPU, Topology
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.errors import MachineError
from dranode.driver.machine.root import Root, read_text

CPU_ROOT: Final = "sys/devices/system/cpu"
NODE_ROOT: Final = "sys/devices/system/node"

_CORE: Final = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
_PACKAGE: Final = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
_CACHE: Final = ("shared_cpu_list", "shared_cpu_map")
_NODE: Final = ("cpulist", "cpumap")
_MASKS: Final = frozenset({"core_cpus", "thread_siblings", "package_cpus", "core_siblings", "shared_cpu_map", "cpumap"})
# The performance-monitoring units of hybrid x86 processors; the low-power cores of some are e-cores without an L3.
_E_CORES: Final = ("sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus")
_SMT: Final = {"on": True, "off": False, "forceoff": False, "notsupported": False, "notimplemented": False}

_MASK: Final = re.compile(r"[0-9a-fA-F]+(?:,[0-9a-fA-F]{1,8})*", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]+", re.ASCII)
_MEMORY: Final = re.compile(r"MemTotal:\s+([0-9]+) kB", re.ASCII)
_L3: Final = 3


def read_topology(root: Root) -> Topology:
    """Read the machine's CPUs, once; the cost is linear in their number.

    Raises:
        MachineError: no CPU is online, or a file cannot be read or parsed; names the file and its value.
    """
    return _Reader(root).topology()


class _Reader:
    """One reading of one machine: the files that were asked for, and what was odd about them."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._sets: dict[str, int] = {}
        self._odd: dict[str, str] = {}

    def topology(self) -> Topology:
        folders = self._numbered(CPU_ROOT, "cpu")
        online = self._online(folders)
        if not online:
            raise MachineError(f"no CPU is online by /{CPU_ROOT}/online or any online file of its cpu folders")
        present = self._set(f"{CPU_ROOT}/present")
        cores = self._partition("core", online, lambda cpu: self._topology_set(cpu, _CORE))
        core_of = _index(cores)
        package_of, packages = self._packages(online)
        l3_of, l3_ids, l3 = self._l3(online)
        numa_of, numa, memory_nodes = self._numa(online)
        types = self._types()
        cpus = {
            cpu: CPU(
                id=cpu,
                core=core_of[cpu],
                core_id=self._number(f"{CPU_ROOT}/cpu{cpu}/topology/core_id"),
                package=package_of.get(cpu, -1),
                numa=numa_of.get(cpu),
                l3=l3_of.get(cpu),
                l3_id=l3_ids[l3_of[cpu]] if cpu in l3_of else -1,
                type=types(cpu),
            )
            for cpu in CPUSet.of_mask(online)
        }
        return Topology(
            cpus=cpus,
            offline=CPUSet.of_mask((CPUSet(folders).mask if present is None else present) & ~online),
            isolated=CPUSet.of_mask(self._set(f"{CPU_ROOT}/isolated") or 0),
            smt=self._smt(len(cpus) > len(cores)),
            cores=cores,
            packages=packages,
            l3=l3,
            numa=numa,
            memory_nodes=memory_nodes,
            warnings=tuple(self._odd.values()),
        )

    def _online(self, folders: Iterable[int]) -> int:
        told = self._set(f"{CPU_ROOT}/online")
        if told is not None:
            return told
        # Kernels before `online` had it in every CPU's folder, but for those that cannot be taken offline.
        return CPUSet(cpu for cpu in folders if self._text(f"{CPU_ROOT}/cpu{cpu}/online") != "0").mask

    def _topology_set(self, cpu: int, names: Iterable[str]) -> int:
        """The first of the CPU's sets that is told and not empty; 0 for none."""
        for name in names:
            if found := self._set(f"{CPU_ROOT}/cpu{cpu}/topology/{name}"):
                return found
        return 0

    def _partition(self, kind: str, online: int, told: Callable[[int], int]) -> tuple[CPUSet, ...]:
        """Divide the CPUs by the sets that are told for them, each CPU into one part; sorted by first CPU."""
        parts: list[int] = []
        part_of: dict[int, int] = {}
        for cpu in CPUSet.of_mask(online):
            full = told(cpu) & online
            own = part_of.get(cpu)
            if own is not None:
                if full not in (0, own):
                    self._doubt(kind, f"cpu{cpu} and cpu{_low(own)} disagree about the {kind} that they share")
                continue
            if full and not full >> cpu & 1:
                self._doubt(kind, f"the {kind} told for cpu{cpu} is {CPUSet.of_mask(full)}, without the CPU itself")
                full = 0
            bit = 1 << cpu
            part = full or bit
            for other in CPUSet.of_mask(part):
                if other in part_of:
                    self._doubt(kind, f"cpu{other} and cpu{cpu} disagree about the {kind} that they share")
                    part &= ~(1 << other)
            part_of.update(dict.fromkeys(CPUSet.of_mask(part), part))
            parts.append(part)
        return tuple(CPUSet.of_mask(part) for part in parts)

    def _packages(self, online: int) -> tuple[Mapping[int, int], Mapping[int, CPUSet]]:
        """Each CPU's package, and the packages by id.

        The kernel's set says which CPUs are together: `physical_package_id` repeats in other books of an s390. CPUs of
        one set that have different ids are apart all the same. A package whose id is not told, or taken, gets the
        lowest free one.
        """
        ids = {cpu: self._number(f"{CPU_ROOT}/cpu{cpu}/topology/physical_package_id") for cpu in CPUSet.of_mask(online)}
        known: dict[int, int] = {}

        def told(cpu: int) -> int:
            # One file a package: its other CPUs have the same.
            if cpu not in known:
                found = self._topology_set(cpu, _PACKAGE) & online
                known.update(dict.fromkeys(CPUSet.of_mask(found), found))
            return known.get(cpu, 0)

        groups: dict[tuple[int, int], int] = {}
        for part in self._partition("package", online, told):
            for cpu in part:
                if not known.get(cpu) and ids[cpu] < 0:
                    continue
                key = (part.mask if known.get(cpu) else 0, ids[cpu])
                groups[key] = groups.get(key, 0) | 1 << cpu
        packages: dict[int, CPUSet] = {}
        taken = {number for _, number in groups}
        for (_, number), group in groups.items():
            own = number
            if own < 0 or own in packages:
                own = next(free for free in range(len(groups) + len(taken) + 1) if free not in taken)
                taken.add(own)
                if number >= 0:
                    self._doubt("package id", f"physical_package_id {number} is several packages; one is called {own}")
            packages[own] = CPUSet.of_mask(group)
        by_first = sorted(packages, key=lambda number: packages[number].first())
        package_of = {cpu: number for number, group in packages.items() for cpu in group}
        return package_of, {number: packages[number] for number in by_first}

    def _l3(self, online: int) -> tuple[Mapping[int, int], list[int], tuple[CPUSet, ...]]:
        """Each CPU's level 3 cache, the caches' ids, and the caches."""
        caches: list[int] = []
        ids: list[int] = []
        cache_of: dict[int, int] = {}
        for cpu in CPUSet.of_mask(online):
            if cpu in cache_of:
                continue
            folder = self._l3_folder(cpu)
            shared = 0 if folder is None else next(filter(None, (self._set(f"{folder}/{name}") for name in _CACHE)), 0)
            shared &= online
            if not shared >> cpu & 1:
                if shared:
                    self._doubt("L3", f"the L3 cache told for cpu{cpu} is that of {CPUSet.of_mask(shared)}")
                continue
            if any(other in cache_of for other in CPUSet.of_mask(shared)):
                self._doubt("L3", f"cpu{cpu} claims a share of an L3 cache that does not name it")
                shared &= ~CPUSet(cache_of).mask
            told = self._number(f"{folder}/id")
            ids.append(told if told >= 0 else _low(shared))
            cache_of.update(dict.fromkeys(CPUSet.of_mask(shared), len(caches)))
            caches.append(shared)
        return cache_of, ids, tuple(CPUSet.of_mask(cache) for cache in caches)

    def _l3_folder(self, cpu: int) -> str | None:
        folder = f"{CPU_ROOT}/cpu{cpu}/cache"
        # The largest cache has the highest index.
        for index in sorted(self._numbered(folder, "index"), reverse=True):
            if self._number(f"{folder}/index{index}/level") == _L3:
                return f"{folder}/index{index}"
        return None

    def _numa(self, online: int) -> tuple[Mapping[int, int], Mapping[int, CPUSet], frozenset[int]]:
        """Each CPU's NUMA node, the nodes that have CPUs, and those that have memory."""
        nodes = sorted(self._numbered(NODE_ROOT, "node"))
        node_of: dict[int, int] = {}
        for node in nodes:
            claimed = self._node_cpus(node) & online
            for cpu in CPUSet.of_mask(claimed):
                if cpu in node_of:
                    self._doubt(
                        "node", f"the NUMA nodes {node_of[cpu]} and {node} both claim cpu{cpu}; the lower has it"
                    )
                else:
                    node_of[cpu] = node
        for cpu in CPUSet.of_mask(online):
            if cpu not in node_of and (own := sorted(self._numbered(f"{CPU_ROOT}/cpu{cpu}", "node"))):
                node_of[cpu] = own[0]
        if node_of and len(node_of) < online.bit_count():
            left = CPUSet.of_mask(online & ~CPUSet(node_of).mask)
            self._doubt("no node", f"no NUMA node claims the CPUs {left}, though others are claimed; they are on none")
        masks: dict[int, int] = {}
        for cpu, node in node_of.items():
            masks[node] = masks.get(node, 0) | 1 << cpu
        by_first = sorted(masks, key=lambda node: _low(masks[node]))
        return node_of, {node: CPUSet.of_mask(masks[node]) for node in by_first}, self._memory_nodes(nodes)

    def _node_cpus(self, node: int) -> int:
        folder = f"{NODE_ROOT}/node{node}"
        for name in _NODE:
            if (found := self._set(f"{folder}/{name}")) is not None:
                return found
        return CPUSet(self._numbered(folder, "cpu")).mask

    def _memory_nodes(self, nodes: Iterable[int]) -> frozenset[int]:
        told = self._set(f"{NODE_ROOT}/has_memory")
        if told is not None:
            return frozenset(CPUSet.of_mask(told))
        sizes = {node: _MEMORY.search(self._text(f"{NODE_ROOT}/node{node}/meminfo") or "") for node in nodes}
        return frozenset(node for node, size in sizes.items() if size is not None and int(size[1]) > 0)

    def _types(self) -> Callable[[int], str]:
        e_cores = [found for path in _E_CORES if (found := self._set(path)) is not None]
        if not e_cores:
            return lambda _cpu: "standard"
        mask = 0
        for found in e_cores:
            mask |= found
        return lambda cpu: "e-core" if mask >> cpu & 1 else "p-core"

    def _smt(self, counted: bool) -> bool:  # noqa: FBT001 - what the CPUs themselves say
        control = (self._text(f"{CPU_ROOT}/smt/control") or "").lower()
        return _SMT.get(control, counted)

    def _numbered(self, folder: str, prefix: str) -> Iterator[int]:
        """The numbers N of the entries `<prefix>N` in a folder that may be missing."""
        try:
            names = self._root.listdir(folder)
        except OSError:
            return iter(())
        ends = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        return iter([int(end) for end in ends if end.isascii() and end.isdigit()])

    def _text(self, path: str) -> str | None:
        try:
            return read_text(self._root, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise MachineError(f"/{path} cannot be read: {error.strerror or error}") from error

    def _number(self, path: str) -> int:
        text = self._text(path)
        if text is None:
            return -1
        if not _NUMBER.fullmatch(text):
            raise MachineError(f'/{path} should be a number, but is "{text}"')
        return int(text)

    def _set(self, path: str) -> int | None:
        """The set of a list or mask file, as a mask; None if there is no such file."""
        text = self._text(path)
        if text is None:
            return None
        is_mask = path.rpartition("/")[2] in _MASKS
        key = f"x{text}" if is_mask else text
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = _parse(path, text, is_mask)
        return found

    def _doubt(self, kind: str, sentence: str) -> None:
        """Keep the first contradiction of its kind; a machine that has one has many."""
        self._odd.setdefault(kind, sentence)


def _parse(path: str, text: str, is_mask: bool) -> int:  # noqa: FBT001 - the file's form, told by its name
    if is_mask:
        if text and not _MASK.fullmatch(text):
            raise MachineError(f'/{path} should be a CPU mask of hexadecimal words, but is "{text}"')
        return CPUSet.parse_mask(text).mask if text else 0
    try:
        return CPUSet.parse(text).mask
    except ValueError as error:
        raise MachineError(f"/{path} cannot be understood: {error}") from error


def _index(parts: Iterable[CPUSet]) -> dict[int, int]:
    return {cpu: index for index, part in enumerate(parts) for cpu in part}


def _low(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
