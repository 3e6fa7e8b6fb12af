"""The table of a node's memory as it is at the moment, for `topology`."""

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
        counts: the nodes as they are.
        given: the bytes that are handed out of each node, by node and page size.
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
    """Yield how fragmented the free memory of each node is, and what is not known of it."""
    counts = tuple(counts)
    parts = {node.id: node.part_in_runs(2 * MIB) for node in counts}
    unknown = CPUSet(node for node, part in parts.items() if part is None)
    if unknown:
        nodes = f"NUMA node{'s' if len(unknown) > 1 else ''} {unknown}"
        yield f"{nodes}: the fragmentation of the memory is not known (/proc/buddyinfo, /proc/zoneinfo)"
    for node in counts:
        part = parts[node.id]
        if part is not None:
            yield f"NUMA node {node.id}: {part} % of its free memory lies in runs of 2Mi or more"
        for size, pool in node.pools.items():
            pages = f"pages of {Quantity.binary(size)} are surplus"
            if pool.surplus is None and pool.total != 0:
                yield f"NUMA node {node.id}: how many {pages} is not known, so none is handed out"
            elif pool.surplus:
                yield f"NUMA node {node.id}: {pool.surplus} {pages}, and not handed out"
            if pool.promised:
                yield (
                    f"NUMA node {node.id}: {pool.promised} of the free pages of {Quantity.binary(size)} may be "
                    "promised to processes outside pods, and are not handed out"
                )


def _rounded(size: int) -> Quantity:
    return Quantity.binary(size // MIB * MIB)
