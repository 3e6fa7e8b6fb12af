"""Reads the files of `/sys/devices/system` as numbers and CPU masks, and collects the contradictions in them.

A missing file is not an error, because kernels differ in what they report. An unreadable or malformed file is an error.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.driver.machine.numa import missing_nodes
from dranode.driver.machine.root import Root, read_text

CPU_ROOT: Final = "sys/devices/system/cpu"
NODE_ROOT: Final = "sys/devices/system/node"

# The mask file that has the same CPUs as a list file, by the name of the list.
_MASK_OF: Final = {
    "core_cpus_list": "core_cpus",
    "thread_siblings_list": "thread_siblings",
    "package_cpus_list": "package_cpus",
    "core_siblings_list": "core_siblings",
    "shared_cpu_list": "shared_cpu_map",
    "cpulist": "cpumap",
}
_MASKS: Final = frozenset(_MASK_OF.values())
# Kernels before 5.15 cut a sysfs attribute that is longer than a page. The list of a large machine whose CPU numbers
# are interleaved then lacks its last CPUs, or ends in the middle of a number. A mask is never that long.
_CUT: Final = 4094
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class KernelFiles:
    """One reading of one machine; CPU masks are integers with bit n set for CPU n.

    Attributes:
        root: the machine's files.
        oddities: one sentence on the first contradiction of each kind.
    """

    def __init__(self, root: Root) -> None:
        self.root = root
        self.oddities: dict[str, str] = {}
        self._masks: dict[str, int] = {}

    def text(self, path: str) -> str | None:
        """Return a file's text, or None if there is no such file.

        Raises:
            MachineError: the file cannot be read.
        """
        try:
            return read_text(self.root, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise MachineError(f"/{path} cannot be read: {error.strerror or error}") from error

    def number(self, path: str) -> int:
        """Return a file's number, or -1 if there is no such file.

        Raises:
            MachineError: the file cannot be read or holds something else.
        """
        text = self.text(path)
        if text is None:
            return -1
        if not _NUMBER.fullmatch(text):
            raise MachineError(f'/{path} should be a number, but is "{text}"')
        return int(text)

    def mask(self, path: str) -> int | None:
        """Return the CPUs of a list or mask file, or None if there is no such file.

        Raises:
            MachineError: the file cannot be read or parsed, or may have been cut by the kernel.
        """
        text = self.text(path)
        if text is None:
            return None
        folder, _, name = path.rpartition("/")
        is_mask = name in _MASKS
        if not is_mask and len(text) >= _CUT:
            cpus = self.mask(f"{folder}/{_MASK_OF[name]}") if name in _MASK_OF else None
            if cpus is None:
                raise MachineError(
                    f"/{path} has {len(text)} characters, where kernels before 5.15 cut a list, so CPUs may be "
                    "missing; upgrade the kernel"
                )
            return cpus
        key = f"x{text}" if is_mask else text
        parsed = self._masks.get(key)
        if parsed is None:
            try:
                parsed = (CPUSet.parse_mask(text or "0") if is_mask else CPUSet.parse(text)).mask
            except ValueError as error:
                raise MachineError(f"/{path} cannot be understood: {error}") from error
            self._masks[key] = parsed
        return parsed

    def numbered(self, folder: str, prefix: str) -> list[int]:
        """Return the numbers N of the entries `<prefix>N` in a folder, ascending; none if there is no such folder.

        Raises:
            MachineError: the folder is there and cannot be read.
        """
        try:
            names = self.root.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise MachineError(f"/{folder} cannot be read: {error.strerror or error}") from error
        ends = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        return sorted(int(end) for end in ends if end.isascii() and end.isdigit())

    def shared(self, kind: str, cpu: int, folder: str, names: Iterable[str]) -> int | None:
        """Return the CPUs that share a core, package or cache with a CPU, by the first file that names the CPU itself.

        The files `names` in `cpu<N>/<folder>` are tried in order. Returns 0 if a file exists and is empty, and None if
        none exists or all of them leave out the CPU, which is a contradiction.
        """
        answer: int | None = None
        others = 0
        for name in names:
            cpus = self.mask(f"{CPU_ROOT}/cpu{cpu}/{folder}/{name}")
            if cpus is not None and cpus >> cpu & 1:
                return cpus
            others = others or cpus or 0
            answer = answer if cpus is None else 0
        if others:
            self.warn(kind, f"the {kind} files of cpu{cpu} list CPUs {CPUSet.of_mask(others)} and not cpu{cpu} itself")
            return None
        return answer

    def warn(self, kind: str, sentence: str) -> None:
        """Keep a contradiction unless one of its kind is known: a machine that has one usually has many."""
        self.oddities.setdefault(kind, sentence)


# Which NUMA node each CPU is on and which nodes have memory, from `/sys/devices/system/node`
# (Documentation/ABI/stable/sysfs-devices-node).

_NODE: Final = ("cpulist", "cpumap")
_MEMORY: Final = re.compile(r"MemTotal:\s+([0-9]{1,18}) kB", re.ASCII)


def read_numa_nodes(files: KernelFiles, online: int) -> tuple[Mapping[int, int], Mapping[int, CPUSet], frozenset[int]]:
    """Return each CPU's NUMA node, the CPUs of each node that has any, and the nodes that have memory.

    A CPU that two nodes list is on the lower one: fake nodes (`numa=fake=`) each list all CPUs of the real node. The
    first contradiction of each kind becomes a warning.

    Args:
        files: the machine's files.
        online: the mask of the online CPUs.

    Raises:
        MachineError: a file cannot be read or parsed.
    """
    nodes = files.numbered(NODE_ROOT, "node")
    for sentence in missing_nodes(files.root):
        files.warn("missing node", sentence)
    node_of: dict[int, int] = {}
    for node in nodes:
        claimed = _node_cpus(files, node) & online
        for cpu in CPUSet.of_mask(claimed):
            if cpu in node_of:
                files.warn("node", f"NUMA nodes {node_of[cpu]} and {node} both list cpu{cpu}; the lower one is used")
            else:
                node_of[cpu] = node
    for cpu in CPUSet.of_mask(online):
        if cpu not in node_of and (own := _own_node(files, cpu)) is not None:
            node_of[cpu] = own
    _warn_of_unclaimed(files, CPUSet.of_mask(online & ~CPUSet(node_of).mask), nodes, node_of)
    if not node_of and not nodes:
        # A kernel without NUMA support has no folder for its one node, which mempolicy and cpusets call node 0.
        return dict.fromkeys(CPUSet.of_mask(online), 0), {0: CPUSet.of_mask(online)}, frozenset({0})
    masks: dict[int, int] = {}
    for cpu, node in node_of.items():
        masks[node] = masks.get(node, 0) | 1 << cpu
    by_first = sorted(masks, key=lambda node: masks[node] & -masks[node])
    return node_of, {node: CPUSet.of_mask(masks[node]) for node in by_first}, _memory_nodes(files, nodes)


def _warn_of_unclaimed(files: KernelFiles, unclaimed: CPUSet, nodes: Sequence[int], node_of: Mapping[int, int]) -> None:
    if nodes and not node_of:
        files.warn("no node", "none of the NUMA nodes lists a CPU; the CPUs are published without a NUMA node")
    elif unclaimed and node_of:
        files.warn(
            "no node",
            f"no NUMA node lists CPUs {unclaimed}, although other CPUs have a node; they are published without one",
        )


def _node_cpus(files: KernelFiles, node: int) -> int:
    folder = f"{NODE_ROOT}/node{node}"
    for name in _NODE:
        if (cpus := files.mask(f"{folder}/{name}")) is not None:
            return cpus
    return CPUSet(files.numbered(folder, "cpu")).mask


def _own_node(files: KernelFiles, cpu: int) -> int | None:
    """Return the node that the CPU's folder links to. A dangling link leads to an offline node and is ignored."""
    folder = f"{CPU_ROOT}/cpu{cpu}"
    return min(
        (node for node in files.numbered(folder, "node") if files.root.exists(f"{folder}/node{node}")),
        default=None,
    )


def _memory_nodes(files: KernelFiles, nodes: Iterable[int]) -> frozenset[int]:
    listed = files.mask(f"{NODE_ROOT}/has_memory")
    if listed is not None:
        return frozenset(CPUSet.of_mask(listed))
    sizes = {node: _MEMORY.search(files.text(f"{NODE_ROOT}/node{node}/meminfo") or "") for node in nodes}
    return frozenset(node for node, size in sizes.items() if size is not None and int(size[1]) > 0)
