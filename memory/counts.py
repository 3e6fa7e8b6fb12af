"""Reads what a NUMA node's memory is at the moment: free, in huge pages, and in runs for more of these.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst (`nr_hugepages` and its neighbors), and of proc(5) `buddyinfo`
(free runs of 2^n pages by zone) and `zoneinfo`, by whose `managed` pages one page is MemTotal divided. Numbers change
every moment, so nothing that is published depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from dranode.api import page_size_name
from dranode.driver import Root, read_text
from dranode.memory.machine import KIB, MachineMemory, MemoryNode, folder_of

_NODES: Final = "sys/devices/system/node"
_MACHINE_POOLS: Final = "sys/kernel/mm/hugepages"
_FREE: Final = re.compile(r"MemFree:\s+([0-9]{1,18}) kB", re.ASCII)
_RUNS: Final = re.compile(r"Node ([0-9]{1,9}), zone +\S+((?: +[0-9]{1,18})+) *", re.ASCII)
_ZONE: Final = re.compile(r"Node ([0-9]{1,9}), zone", re.ASCII)
_MANAGED: Final = re.compile(r"\s+managed +([0-9]{1,18})", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class PoolCounts(msgspec.Struct, frozen=True):
    """The huge pages of one size of a NUMA node, in pages; None is what the kernel does not say.

    Attributes:
        total: `nr_hugepages`.
        free: `free_hugepages`.
        surplus: `surplus_hugepages`: taken from ordinary memory for a while, and never handed out.
        pods: those that pods' containers use.
        addable: how many more could be reserved now without moving anything; None for pages that are larger than the
            largest run that the kernel counts.
        promised: the free pages that may be promised to processes outside pods, which have not used them yet; the
            kernel counts them of the whole machine.
    """

    total: int | None = None
    free: int | None = None
    surplus: int | None = None
    pods: int | None = None
    addable: int | None = None
    promised: int | None = None


class NodeCounts(msgspec.Struct, frozen=True):
    """The memory of a NUMA node at the moment, in bytes; None is what the kernel does not say.

    Attributes:
        id: the kernel's number.
        total: with huge pages.
        free: without huge pages.
        runs: the free memory in runs of at least so many bytes, by their length.
        pools: its huge pages, by page size in bytes.
    """

    id: int
    total: int
    free: int | None = None
    runs: Mapping[int, int] = msgspec.field(default_factory=dict)
    pools: Mapping[int, PoolCounts] = msgspec.field(default_factory=dict)

    def part_in_runs(self, size: int) -> int | None:
        """Return how much of its free memory, in percent, is in runs of at least `size` bytes; None if unknown."""
        in_runs = self.runs.get(size)
        return min(100, round(100 * in_runs / self.free)) if self.free and in_runs is not None else None


def read_counts(root: Root, machine: MachineMemory) -> tuple[NodeCounts, ...]:
    """Return what each NUMA node of the machine has at the moment; what cannot be read is missing."""
    runs = _Runs(_text(root, "proc/buddyinfo"), _text(root, "proc/zoneinfo"))
    # A kernel without NUMA has one node and no folder for it. On any other the machine's counts are those of no node.
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
    """Free memory by the length of its runs."""

    def __init__(self, buddyinfo: str, zoneinfo: str) -> None:
        self._counts = list(_free_runs(buddyinfo))
        self._managed = _managed(zoneinfo)

    def of(self, node: MemoryNode) -> dict[int, int]:
        """Return how many bytes of the node are free in runs of at least some length, by that length in bytes."""
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
    """Yield of each zone its NUMA node, and how many runs of 1, 2, 4, ... pages it has."""
    for line in buddyinfo.splitlines():
        match = _RUNS.fullmatch(line)
        if match:
            yield int(match[1]), tuple(map(int, match[2].split()))


def _managed(zoneinfo: str) -> dict[int, int]:
    """Return how many pages the kernel manages of each NUMA node."""
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


# Counts the huge pages that the containers of pods use or were promised, by the cgroup above all pods.
#
# In cgroup v2 and v1 alike the file of those in use is `hugetlb.<size>.numa_stat`, with bytes a node:
# `total=8388608 N0=8388608` (Documentation/admin-guide/cgroup-v2.rst; v1 adds lines that begin with
# `hierarchical_total`, which count here). A page is promised when memory is mapped, and used when it is touched
# (Documentation/admin-guide/mm/hugetlbpage.rst, `HugePages_Rsvd`); on which NUMA node is not known yet.


# cgroup v2, v1, and v2 beside v1; with the systemd driver and without, and as kind nests its kubelet.
_HIERARCHIES: Final = ("sys/fs/cgroup", "sys/fs/cgroup/hugetlb", "sys/fs/cgroup/unified")
# Bytes that were promised, and bytes in use: in cgroup v2, and in v1.
_PROMISED: Final = (("rsvd.current", "current"), ("rsvd.usage_in_bytes", "usage_in_bytes"))
_ABOVE_PODS: Final = ("kubepods.slice", "kubepods", "kubelet.slice/kubelet-kubepods.slice", "kubelet/kubepods")


def pod_pages(root: Root, size: int, node: int) -> int | None:
    """Return how many pages of a size pods use on a NUMA node; None if no cgroup says it."""
    name = f"hugetlb.{page_size_name(size)}.numa_stat"
    for hierarchy in _HIERARCHIES:
        for folder in _ABOVE_PODS:
            used = _bytes(root, f"{hierarchy}/{folder}/{name}", node)
            if used is not None:
                return used // size
    return None


def pods_promised(root: Root, size: int) -> int:
    """Return how many pages of a size pods were promised and have not used yet; 0 if no cgroup says it."""
    name = f"hugetlb.{page_size_name(size)}"
    for hierarchy in _HIERARCHIES:
        for folder in _ABOVE_PODS:
            for files in _PROMISED:
                promised, used = (_limit(root, f"{hierarchy}/{folder}/{name}.{file}") for file in files)
                if promised is not None and used is not None:
                    return max(0, promised - used) // size
    return 0


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
    # Of v1's two lines the last one counts the cgroups below too.
    match = re.search(rf"\bN{node}=([0-9]{{1,18}})\b", lines[-1], re.ASCII) if lines else None
    return int(match[1]) if match else None
