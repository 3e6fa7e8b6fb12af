"""Reads a machine's memory from `/sys` into `MachineMemory`.

Sources: Documentation/ABI/stable/sysfs-devices-node (`meminfo`, `cpulist`, `distance`),
Documentation/admin-guide/mm/hugetlbpage.rst (`nr_hugepages`, `free_hugepages`, `surplus_hugepages` of each node, and
`resv_hugepages` of the machine: promised to processes that have not touched them yet, so that they still count as
free) and Documentation/admin-guide/cgroup-v2.rst (`cgroup.controllers`). A kernel without NUMA has no folder for its
one node, which is node 0; its memory is in `/proc/meminfo` and `/sys/kernel/mm/hugepages`.

A missing file is not an error, because kernels differ in what they report; a warning names what is left out. An
unreadable or malformed file is an error.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from dranode.api import CPUSet
from dranode.driver import MachineError, Root, missing_nodes, node_cpus, read_pods_cgroup, read_text
from dranode.memory.counts import pod_pages, pods_limit, pods_promised, pods_used
from dranode.memory.machine import KIB, MachineMemory, MemoryNode, PagePool, folder_of, size_of_folder

_NODES: Final = "sys/devices/system/node"
_CPUS: Final = "sys/devices/system/cpu"
_CGROUP: Final = "sys/fs/cgroup"
_MACHINE_POOLS: Final = "sys/kernel/mm/hugepages"
_PACKAGE: Final = ("package_cpus_list", "core_siblings_list")
_NODE: Final = re.compile(r"node([0-9]{1,5})", re.ASCII)
_TOTAL: Final = re.compile(r"^(?:Node [0-9]+ )?MemTotal:\s+([0-9]{1,18}) kB", re.ASCII | re.MULTILINE)
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


def read_memory(root: Root) -> MachineMemory:
    """Read the machine's memory; the cost is linear in the number of NUMA nodes.

    Raises:
        MachineError: the kernel reports no memory, or a file cannot be read or parsed; names the file and its value.
    """
    return _MemoryReader(root).memory()


class _MemoryReader:
    """One reading of one machine."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._warnings: list[str] = []
        self._sockets: dict[int, int | None] = {}
        self._numbers = sorted(int(match[1]) for match in map(_NODE.fullmatch, self._names(_NODES)) if match)
        self._cpus = node_cpus(root)
        self._online = self._list(f"{_CPUS}/online")
        self._warnings += missing_nodes(root)
        sizes = filter(None, map(size_of_folder, self._names(_MACHINE_POOLS)))
        # For each size: how many pages the machine has, as far as it says; the nodes without a folder of that size; the
        # nodes that show no number of its pages; and how many the others have.
        counts = {size: self._number(f"{_MACHINE_POOLS}/{folder_of(size)}/nr_hugepages") for size in sizes}
        self._machine_pages = {size: count for size, count in counts.items() if count != 0}
        self._promised = {size: self._promised_elsewhere(size) for size in self._machine_pages}
        self._unlisted: dict[int, list[int]] = {}
        self._uncounted: dict[int, list[int]] = {}
        self._counted: Counter[int] = Counter()

    def memory(self) -> MachineMemory:
        read = [self._node(number) for number in self._numbers] if self._numbers else [self._whole_machine()]
        nodes = tuple(self._with_unseen(node) for node in read if node is not None)
        if not nodes:
            raise MachineError(f"no NUMA node has memory, according to the meminfo files below /{_NODES}")
        self._warnings += (
            f"huge pages of {size // KIB} kB are left out on NUMA nodes {CPUSet(nodes)}: /{_MACHINE_POOLS} has some, "
            f"but these nodes have no folder {folder_of(size)}; claims do not get that much of their memory"
            for size, nodes in sorted(self._unlisted.items())
        )
        # Runtimes find the hugetlb controller in cgroup v2, or else in a hierarchy of v1.
        unified = "hugetlb" in (self._text(f"{_CGROUP}/cgroup.controllers") or "").split()
        limits_pages = unified or self._root.exists(f"{_CGROUP}/hugetlb")
        return MachineMemory(
            nodes,
            tuple(dict.fromkeys(self._warnings)),
            limits_pages,
            unified,
            numa=bool(self._numbers),
            unseen_pages=frozenset(self._unlisted) | frozenset(self._uncounted),
            pods=read_pods_cgroup(self._root),
            limit=pods_limit(self._root),
        )

    def _with_unseen(self, node: MemoryNode) -> MemoryNode:
        """Return the node with the bytes that may be huge pages there: pages of the machine that no node counts."""
        sizes = [size for nodes in (self._unlisted, self._uncounted) for size in nodes if node.id in nodes[size]]
        pages = {size: (self._machine_pages.get(size) or 0) - self._counted[size] for size in sizes}
        return replace(node, unseen=sum(size * max(0, count) for size, count in pages.items()))

    def _node(self, number: int) -> MemoryNode | None:
        folder = f"{_NODES}/node{number}"
        total = self._total(f"{folder}/meminfo")
        if total is None and self._numbers == [number]:
            total = self._total("proc/meminfo")  # the only node is the machine
        if total is None:
            self._warnings.append(f"NUMA node {number} is left out: it has no file /{folder}/meminfo")
            return None
        if not total:
            # A node whose memory slots are empty. Not every kernel has a folder of huge pages for it.
            return None
        return MemoryNode(
            number,
            total,
            dict(self._pools(f"{folder}/hugepages", number)),
            socket=self._socket(number),
            cpus=bool(self._cpus_of(number)),
            near=self._near(number),
        )

    def _whole_machine(self) -> MemoryNode:
        # A kernel without NUMA has no folder of nodes, but one of CPUs. If both are missing, sysfs was not seen.
        if not self._root.exists(_CPUS):
            raise MachineError(f"neither /{_NODES} nor /{_CPUS} exists, so the NUMA nodes are not known")
        total = self._total("proc/meminfo")
        if not total:
            raise MachineError(f"neither /{_NODES} nor /proc/meminfo says how much memory the machine has")
        return MemoryNode(0, total, dict(self._pools(_MACHINE_POOLS, 0)))

    def _pools(self, folder: str, node: int) -> Iterator[tuple[int, PagePool]]:
        sizes = frozenset(filter(None, map(size_of_folder, self._names(folder))))
        for size in self._machine_pages.keys() - sizes:
            self._unlisted.setdefault(size, []).append(node)
        for size in sorted(sizes):
            pages = f"{folder}/{folder_of(size)}"
            total = self._number(f"{pages}/nr_hugepages")
            if total is None:
                self._warnings.append(f"huge pages are left out: there is no file /{pages}/nr_hugepages")
                self._uncounted.setdefault(size, []).append(node)
                continue
            self._counted[size] += total
            surplus = self._surplus(pages, size, total)
            # Pods allocate and free pages meanwhile. The larger of the counts before and afterwards is taken as theirs.
            before = pod_pages(self._root, size, node) if total else 0
            used = self._used(pages, size, total)
            after = pod_pages(self._root, size, node) if used else 0
            known = None if before is None or after is None else max(before, after)
            # Before Linux 5.17 cgroups tell only how many pages pods use on all nodes together.
            elsewhere = max(0, used - known) if known is not None else min(used, self._used_elsewhere(size, used))
            if elsewhere and known is None:
                self._warnings.append(
                    f"{elsewhere} huge pages of {size // KIB} kB are in use on NUMA node {node}, and the cgroups do "
                    "not tell whether pods use them: claims do not get them"
                )
            promised = self._promised.get(size, 0)
            if surplus is None or (promised is None and total):
                yield size, PagePool(total, total)
            else:
                # The node of a promised page is not known, so every node with free pages keeps that many back.
                others = elsewhere + min(promised or 0, total - used)
                yield size, PagePool(max(0, total - surplus), min(others, max(0, total - surplus)))

    def _used_elsewhere(self, size: int, otherwise: int) -> int:
        """Return how many pages of the machine are in use outside pods; `otherwise` if the kernel does not tell."""
        folder = f"{_MACHINE_POOLS}/{folder_of(size)}"
        before = pods_used(self._root, size)
        total, free = (self._number(f"{folder}/{name}_hugepages") for name in ("nr", "free"))
        after = pods_used(self._root, size)
        if total is None or free is None or before is None or after is None:
            return otherwise
        return max(0, total - free - max(before, after))

    def _promised_elsewhere(self, size: int) -> int | None:
        """Return how many pages are promised outside pods and not used yet; None if the kernel does not tell."""
        path = f"{_MACHINE_POOLS}/{folder_of(size)}/resv_hugepages"
        # Pods map and touch pages meanwhile, so the larger of the counts before and afterwards is taken as theirs.
        by_pods = pods_promised(self._root, size)
        promised = self._number(path)
        by_pods = max(by_pods, pods_promised(self._root, size)) if promised else by_pods
        if promised is None:
            self._warnings.append(
                f"huge pages of {size // KIB} kB may be promised to processes that have not used them yet, so claims "
                f"get none: there is no file /{path}"
            )
            return None
        return max(0, promised - by_pods)

    def _surplus(self, folder: str, size: int, total: int) -> int | None:
        """Return how many pages are surplus; None if the file is missing although the node has pages."""
        surplus = self._number(f"{folder}/surplus_hugepages")
        if surplus is None and not total:
            return 0
        if surplus is None:
            self._warnings.append(
                f"huge pages of {size // KIB} kB may be surplus, so claims get none: there is no file "
                f"/{folder}/surplus_hugepages"
            )
        return surplus

    def _used(self, folder: str, size: int, total: int) -> int:
        free = self._number(f"{folder}/free_hugepages")
        if free is None and total:
            self._warnings.append(
                f"huge pages of {size // KIB} kB may be in use: there is no file /{folder}/free_hugepages"
            )
        return max(0, total - (free or 0))

    def _socket(self, node: int) -> int | None:
        """Return the package of a node's CPUs; None if the kernel reports none, or if they are in several."""
        if node not in self._sockets:
            self._sockets[node] = self._package(self._cpus_of(node))
        return self._sockets[node]

    def _package(self, cpus: CPUSet) -> int | None:
        if not cpus:
            return None
        folder = f"{_CPUS}/cpu{cpus.first()}/topology"
        package = next(filter(None, (self._list(f"{folder}/{name}") for name in _PACKAGE)), CPUSet())
        text = self._text(f"{folder}/physical_package_id")
        others = cpus - package
        # On an s390 the id repeats in each book.
        repeats = package and others and self._text(f"{folder}/book_id") is not None
        if text is None or not _NUMBER.fullmatch(text) or repeats:
            return None
        # Some kernels list no CPUs of a package, or only some of them, so the ids of the others are compared.
        ids = {self._text(f"{_CPUS}/cpu{cpu}/topology/physical_package_id") for cpu in others}
        return int(text) if ids <= ({text} if package else {text, None}) else None

    def _cpus_of(self, node: int) -> CPUSet:
        """Return the online CPUs of a node; all of them if the machine does not tell which are online."""
        cpus = self._cpus.get(node, CPUSet())
        return cpus & self._online if self._online else cpus

    def _near(self, number: int) -> tuple[int, ...]:
        """Return the other nodes with CPUs at the smallest distance, except those known to be of another socket.

        Nodes without CPUs are not counted: they are in no device, and may be near nodes of several sockets.
        """
        row = (self._text(f"{_NODES}/node{number}/distance") or "").split()
        online = [*self._list(f"{_NODES}/online")] or self._numbers
        # The row has a distance for each node that is online, by number (drivers/base/node.c).
        if len(row) != len(online) or not all(map(_NUMBER.fullmatch, row)):
            return ()
        others = {node: int(distance) for node, distance in zip(online, row, strict=True) if node != number}
        distances = {node: distance for node, distance in others.items() if self._cpus_of(node)}
        near = (node for node, distance in distances.items() if distance == min(distances.values()))
        own = self._socket(number)
        return tuple(node for node in near if own is None or self._socket(node) in (None, own))

    # --- files ---

    def _total(self, path: str) -> int | None:
        text = self._text(path)
        if text is None:
            return None
        match = _TOTAL.search(text)
        if match is None:
            raise MachineError(f"/{path} has no line MemTotal with a number of kB")
        return int(match[1]) * KIB

    def _number(self, path: str) -> int | None:
        text = self._text(path)
        if text is not None and not _NUMBER.fullmatch(text):
            raise MachineError(f'/{path} should be a number, but is "{text}"')
        return None if text is None else int(text)

    def _list(self, path: str) -> CPUSet:
        try:
            return CPUSet.parse(self._text(path) or "")
        except ValueError as error:
            raise MachineError(f"/{path} cannot be understood: {error}") from error

    def _text(self, path: str) -> str | None:
        try:
            return read_text(self._root, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise MachineError(f"/{path} cannot be read: {error.strerror or error}") from error

    def _names(self, path: str) -> list[str]:
        try:
            return self._root.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise MachineError(f"/{path} cannot be read: {error.strerror or error}") from error
