"""The table of a node's present memory, for `topology`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dranode.api import CPUSet, Quantity
from dranode.memory.counts import NodeCounts
from dranode.memory.machine import MIB, resource_name
from dranode.memory.options import ORDINARY


def count_rows(
    counts: Iterable[NodeCounts], given: Mapping[tuple[int, int], int]
) -> Iterator[dict[str, str | int | None]]:
    """Yield a row for the ordinary memory of each node and one for each size of its huge pages.

    Args:
        counts: the present state of the nodes.
        given: the bytes that claims may get, by node and page size.
    """
    for node in counts:
        yield {
            "NUMA node": node.id,
            "memory": "memory",
            "all": str(_rounded(node.total)),
            "reserved pages": None,
            "free": None if node.free is None else str(_rounded(node.free)),
            "used by pods": None,
            "published": str(_rounded(given.get((node.id, ORDINARY), 0))),
            "could be added": None,
        }
        for size, pool in node.pools.items():
            yield {
                "NUMA node": node.id,
                "memory": resource_name(size),
                "all": None if pool.total is None else str(_rounded(pool.total * size)),
                "reserved pages": pool.total,
                "free": pool.free,
                "used by pods": pool.pods,
                "published": str(_rounded(given.get((node.id, size), 0))),
                "could be added": pool.addable,
            }


def count_remarks(counts: Iterable[NodeCounts]) -> Iterator[str]:
    """Yield how fragmented the free memory of each node is, and which numbers are unknown."""
    counts = tuple(counts)
    parts = {node.id: node.part_in_runs(2 * MIB) for node in counts}
    unknown = CPUSet(node for node, part in parts.items() if part is None)
    if unknown:
        nodes = f"NUMA node{'s' if len(unknown) > 1 else ''} {unknown}"
        yield f"{nodes}: the fragmentation of the memory is not known (/proc/buddyinfo, /proc/zoneinfo)"
    for node in counts:
        part = parts[node.id]
        if part is not None:
            yield f"NUMA node {node.id}: {part} % of the free memory is in runs of 2Mi or more"
        for size, pool in node.pools.items():
            pages = f"pages of {Quantity.binary(size)} are surplus"
            if pool.surplus is None and pool.total != 0:
                yield f"NUMA node {node.id}: it is not known how many {pages}, so claims get none"
            elif pool.surplus:
                yield f"NUMA node {node.id}: {pool.surplus} {pages}, and claims do not get them"
            if pool.promised:
                yield (
                    f"NUMA node {node.id}: {pool.promised} of the free pages of {Quantity.binary(size)} may be "
                    "promised to processes outside pods, and claims do not get them"
                )


def _rounded(size: int) -> Quantity:
    return Quantity.binary(size // MIB * MIB)
