"""Reads the present state of a NUMA node's memory: free memory, huge pages, and runs of free pages for more of them.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst (`nr_hugepages` and the files beside it) and proc(5): `buddyinfo`
has the free runs of 2^n pages by zone, and the size of a page is MemTotal divided by the `managed` pages of `zoneinfo`.
The numbers change all the time, so nothing that is published depends on them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from dranode.api import page_size_name
from dranode.driver import MachineError, Root, find_pods_cgroups, read_text
from dranode.memory.machine import KIB, MachineMemory, MemoryNode, folder_of

_NODES: Final = "sys/devices/system/node"
_MACHINE_POOLS: Final = "sys/kernel/mm/hugepages"
_FREE: Final = re.compile(r"MemFree:\s+([0-9]{1,18}) kB", re.ASCII)
_RUNS: Final = re.compile(r"Node ([0-9]{1,9}), zone +\S+((?: +[0-9]{1,18})+) *", re.ASCII)
_ZONE: Final = re.compile(r"Node ([0-9]{1,9}), zone", re.ASCII)
_MANAGED: Final = re.compile(r"\s+managed +([0-9]{1,18})", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class PoolCounts(msgspec.Struct, frozen=True):
    """The huge pages of one size of a NUMA node, in pages; None means not reported by the kernel.

    Attributes:
        total: `nr_hugepages`.
        free: `free_hugepages`.
        surplus: `surplus_hugepages`: taken from ordinary memory temporarily, and never given to claims.
        pods: those that containers of pods use.
        addable: how many more could be reserved now without moving pages; None for sizes beyond the largest run that
            the kernel counts.
        promised: the free pages that may be promised to processes outside pods, which have not used them yet. The
            kernel counts these only for the whole machine.
    """

    total: int | None = None
    free: int | None = None
    surplus: int | None = None
    pods: int | None = None
    addable: int | None = None
    promised: int | None = None


class NodeCounts(msgspec.Struct, frozen=True):
    """The present memory of a NUMA node, in bytes; None means not reported by the kernel.

    Attributes:
        id: the kernel's number.
        total: with huge pages.
        free: without huge pages.
        runs: how much of the free memory is in runs of at least a length, by that length.
        pools: its huge pages, by page size in bytes.
    """

    id: int
    total: int
    free: int | None = None
    runs: Mapping[int, int] = msgspec.field(default_factory=dict)
    pools: Mapping[int, PoolCounts] = msgspec.field(default_factory=dict)

    def part_in_runs(self, size: int) -> int | None:
        """Return the percentage of its free memory in runs of at least `size` bytes; None if unknown."""
        in_runs = self.runs.get(size)
        return min(100, round(100 * in_runs / self.free)) if self.free and in_runs is not None else None


def read_counts(root: Root, machine: MachineMemory) -> tuple[NodeCounts, ...]:
    """Return the present state of each NUMA node of the machine, without what cannot be read."""
    runs = _Runs(_text(root, "proc/buddyinfo"), _text(root, "proc/zoneinfo"))
    # A kernel without NUMA has no folder for its one node, so that node has the machine's counts.
    numa = any(root.exists(f"{_NODES}/node{node.id}") for node in machine.nodes)
    return tuple(_node(root, node, runs.of(node), numa=numa) for node in machine.nodes)


def _node(root: Root, node: MemoryNode, runs: Mapping[int, int], *, numa: bool) -> NodeCounts:
    folder = f"{_NODES}/node{node.id}"
    free = _FREE.search(_text(root, f"{folder}/meminfo" if numa else "proc/meminfo"))
    pages = f"{folder}/hugepages" if numa else _MACHINE_POOLS
    return NodeCounts(
        node.id,
        node.total,
        int(free[1]) * KIB if free else None,
        runs,
        {size: _pool(root, f"{pages}/{folder_of(size)}", node.id, size, runs) for size in sorted(node.pools)},
    )


def _pool(root: Root, pages: str, node: int, size: int, runs: Mapping[int, int]) -> PoolCounts:
    total, free, surplus = (_number(root, f"{pages}/{name}_hugepages") for name in ("nr", "free", "surplus"))
    in_runs = runs.get(size)
    return PoolCounts(
        total,
        free,
        surplus,
        0 if total is not None and total == free else pod_pages(root, size, node),
        None if in_runs is None else in_runs // size,
        _promised(root, size, free),
    )


def _promised(root: Root, size: int, free: int | None) -> int | None:
    promised = _number(root, f"{_MACHINE_POOLS}/{folder_of(size)}/resv_hugepages")
    if promised is None or free is None:
        return None
    return min(free, max(0, promised - pods_promised(root, size)))


class _Runs:
    """Free memory by the length of its runs, which are blocks of the kernel's page allocator."""

    def __init__(self, buddyinfo: str, zoneinfo: str) -> None:
        self._counts = list(_free_runs(buddyinfo))
        self._managed = _managed(zoneinfo)

    def of(self, node: MemoryNode) -> dict[int, int]:
        """Return how many bytes of the node are free in runs of at least a length, by that length in bytes."""
        pages = self._managed.get(node.id)
        if not pages or node.total % pages:
            return {}
        page = node.total // pages
        zones = [counts for number, counts in self._counts if number == node.id]
        longest = max(map(len, zones), default=0)
        free = [sum(counts[order] for counts in zones if order < len(counts)) for order in range(longest)]
        return {
            page << least: sum(count * (page << order) for order, count in enumerate(free) if order >= least)
            for least in range(longest)
        }


def _free_runs(buddyinfo: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the NUMA node of each zone, and how many runs of 1, 2, 4, ... pages the zone has."""
    for line in buddyinfo.splitlines():
        match = _RUNS.fullmatch(line)
        if match:
            yield int(match[1]), tuple(map(int, match[2].split()))


def _managed(zoneinfo: str) -> dict[int, int]:
    """Return how many pages of each NUMA node the kernel manages."""
    managed: dict[int, int] = {}
    node = None
    for line in zoneinfo.splitlines():
        zone, pages = _ZONE.match(line), _MANAGED.fullmatch(line)
        if zone:
            node = int(zone[1])
        elif pages and node is not None:
            managed[node] = managed.get(node, 0) + int(pages[1])
    return managed


def _number(root: Root, path: str) -> int | None:
    text = _text(root, path).strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def _text(root: Root, path: str) -> str:
    try:
        return read_text(root, path)
    except OSError:
        return ""


# The huge pages that containers of pods use or were promised, from the cgroup of all pods.
#
# In cgroup v2 and v1 the pages in use are in `hugetlb.<size>.numa_stat`, in bytes per node: `total=8388608 N0=8388608`
# (Documentation/admin-guide/cgroup-v2.rst). v1 also has a line `hierarchical_total=...`, which is used here.
# A page is promised when memory is mapped, and used when it is touched (Documentation/admin-guide/mm/hugetlbpage.rst,
# `HugePages_Rsvd`). The NUMA node of a promised page is not known.


# cgroup v2, v1, and v2 in addition to v1.
_HIERARCHIES: Final = ("sys/fs/cgroup", "sys/fs/cgroup/hugetlb", "sys/fs/cgroup/unified")
_MEMORY: Final = ("sys/fs/cgroup", "sys/fs/cgroup/memory")
# The files with promised and used bytes together, and with used bytes: in cgroup v2, and in v1.
_PROMISED: Final = (("rsvd.current", "current"), ("rsvd.usage_in_bytes", "usage_in_bytes"))


def pod_pages(root: Root, size: int, node: int) -> int | None:
    """Return how many pages of a size pods use on a NUMA node; None if no cgroup tells."""
    name = f"hugetlb.{page_size_name(size)}.numa_stat"
    used = [used for folder in _above_pods(root) if (used := _bytes(root, f"{folder}/{name}", node)) is not None]
    return sum(used) // size if used else None


def pods_used(root: Root, size: int) -> int | None:
    """Return how many pages of a size pods use on all NUMA nodes; None if no cgroup tells."""
    name = f"hugetlb.{page_size_name(size)}"
    paths = (f"{folder}/{name}.{file}" for folder in _above_pods(root) for _, file in _PROMISED)
    used = [used for path in paths if (used := _limit(root, path)) is not None]
    return sum(used) // size if used else None


def pods_promised(root: Root, size: int) -> int:
    """Return how many pages of a size pods were promised and have not used yet; 0 if no cgroup tells."""
    name = f"hugetlb.{page_size_name(size)}"
    unused = 0
    for folder in _above_pods(root):
        for files in _PROMISED:
            promised, used = (_limit(root, f"{folder}/{name}.{file}") for file in files)
            if promised is not None and used is not None:
                unused += max(0, promised - used)
    return unused // size


def pods_limit(root: Root) -> int | None:
    """Return how many bytes of memory pods may use together, by the limits of the cgroups above them; None for all.

    A node that is a container (LXD, kind) has the memory of its host, and a limit.
    """
    limits: list[int | None] = []
    for folder in _above_pods(root, _MEMORY):
        names = folder.split("/")
        above = ("/".join(names[:end]) for end in range(len(names), 0, -1))
        limits += (
            _limit(root, f"{place}/{name}") for place in above for name in ("memory.max", "memory.limit_in_bytes")
        )
    return min(filter(None, limits), default=None)


def _above_pods(root: Root, hierarchies: Iterable[str] = _HIERARCHIES) -> Iterable[str]:
    """Return the cgroups of all pods; none if they cannot be listed."""
    try:
        found = [folder for hierarchy in hierarchies for folder in find_pods_cgroups(root, hierarchy)]
    except MachineError:
        return ()
    # In v1 the folder of the hierarchies finds the cgroup that is in one of them.
    return dict.fromkeys(found)


def _limit(root: Root, path: str) -> int | None:
    try:
        text = read_text(root, path)
    except OSError:
        return None
    return int(text) if re.fullmatch("[0-9]{1,18}", text, re.ASCII) else None


def _bytes(root: Root, path: str, node: int) -> int | None:
    try:
        lines = read_text(root, path).splitlines()
    except OSError:
        return None
    # The last of v1's two lines includes the cgroups below.
    match = re.search(rf"\bN{node}=([0-9]{{1,18}})\b", lines[-1], re.ASCII) if lines else None
    return int(match[1]) if match else None
