"""A machine's memory as values: what each NUMA node has, and which part of it claims cannot get."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dranode.api import CPUSet, Quantity
from dranode.driver import PodsCgroup


class PagePool(msgspec.Struct, frozen=True):
    """The huge pages of one size of a NUMA node, in pages.

    Attributes:
        total: those that the kernel has reserved (`nr_hugepages`), without surplus pages.
        others: those of them that are, or may be, surplus, or used by or promised to processes outside pods.
    """

    total: int
    others: int = 0


class MemoryNode(msgspec.Struct, frozen=True):
    """The memory of a NUMA node.

    Attributes:
        id: the kernel's number.
        total: bytes, huge pages among them (`MemTotal`).
        pools: its huge pages, by page size in bytes.
        socket: the package of its CPUs; None if the kernel reports none, or if its CPUs are in several.
        cpus: whether it has CPUs that are online.
        near: the other nodes with CPUs at the least distance, of the same socket where that is known.
        unseen: bytes that may be huge pages of sizes that the node does not count.
    """

    id: int
    total: int
    pools: Mapping[int, PagePool] = msgspec.field(default_factory=dict)
    socket: int | None = None
    cpus: bool = True
    near: tuple[int, ...] = ()
    unseen: int = 0


class MachineMemory(msgspec.Struct, frozen=True):
    """The memory of a machine.

    Attributes:
        nodes: those that have memory, by number.
        warnings: one sentence for each oddity because of which something is left out.
        limits_pages: whether a container's huge pages can be limited, because runtimes find the hugetlb controller.
        unified: whether they find it in cgroup v2.
        numa: whether the kernel has a folder for each NUMA node; otherwise node 0 is the whole machine.
        unseen_pages: the sizes of huge pages, in bytes, that some node does not count.
        pods: the NUMA nodes that the cgroup of all pods has.
        limit: how many bytes of ordinary memory pods may use together; None for all.
    """

    nodes: tuple[MemoryNode, ...]
    warnings: tuple[str, ...] = ()
    limits_pages: bool = False
    unified: bool = False
    numa: bool = True
    unseen_pages: frozenset[int] = frozenset()
    pods: PodsCgroup = msgspec.field(default_factory=PodsCgroup)
    limit: int | None = None

    def node(self, number: int) -> MemoryNode | None:
        """Return the node of that number, if it has memory."""
        return next((node for node in self.nodes if node.id == number), None)

    @property
    def numbers(self) -> CPUSet:
        """Return the numbers of the nodes."""
        return CPUSet(node.id for node in self.nodes)

    @property
    def for_pods(self) -> tuple[MemoryNode, ...]:
        """Return the nodes from which pods may take memory."""
        lacking = self.pods.lacks_nodes(self.numbers)
        return tuple(node for node in self.nodes if node.id not in lacking)

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """Return every size of huge pages that the kernel has, in bytes, ascending."""
        return tuple(sorted({size for node in self.nodes for size in node.pools}))


# Sizes of huge pages, and what the kernel, Kubernetes and the driver call them.


KIB: Final = 1 << 10
MIB: Final = 1 << 20

# The kernel's folder of a size (Documentation/admin-guide/mm/hugetlbpage.rst).
_FOLDER: Final = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)
HUGE_PAGES: Final = "hugepages-"
_UNITS: Final = ("", "k", "m", "g", "t")


def size_of_folder(name: str) -> int | None:
    """Return the page size in bytes of a folder `hugepages-2048kB`; None if that is no such folder."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) * KIB or None if match else None


def folder_of(size: int) -> str:
    """Return the kernel's folder of a page size: `hugepages-2048kB`."""
    return f"{HUGE_PAGES}{size // KIB}kB"


def short_name(size: int) -> str:
    """Return a page size as devices and classes name it: `2m`, `1g`."""
    unit = 0
    while size % KIB == 0 and unit + 1 < len(_UNITS):
        size, unit = size // KIB, unit + 1
    return f"{size}{_UNITS[unit]}"


def kind_name(size: int) -> str:
    """Return the prefix of device names for a page size: `hugepages-2m`, or `memory` for 0."""
    return f"{HUGE_PAGES}{short_name(size)}" if size else "memory"


def resource_name(size: int) -> str:
    """Return what Kubernetes calls pages of this size in requests and limits: `hugepages-2Mi`."""
    return f"{HUGE_PAGES}{Quantity.binary(size)}"


def size_of_resource(name: str) -> int | None:
    """Return the page size of `hugepages-2Mi`; None if that is no such resource."""
    if not name.startswith(HUGE_PAGES):
        return None
    try:
        size = Quantity(name.removeprefix(HUGE_PAGES)).value
    except ValueError:
        return None
    return size if isinstance(size, int) and size > 0 else None
