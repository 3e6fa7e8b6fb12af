"""The nodes of a cluster for people: what each NUMA node has of every driver's devices, and what of it is free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dranode.api.units import unit_of
from dranode.sim.allocator.state import Amount
from dranode.tools.diagnosis.device_view import Availability, DeviceRow
from dranode.tools.diagnosis.live_objects import LiveNode


@dataclass(slots=True)
class Stock:
    """The devices of one kind on a NUMA node.

    Attributes:
        free: devices that can be had whole, or the amount that is left of a capacity that claims share.
        total: all of them.
    """

    free: Amount = 0
    total: Amount = 0


@dataclass(frozen=True, slots=True)
class NumaRow:
    """One NUMA node of a node, or what no NUMA node of it has.

    Attributes:
        node: the node.
        ready: whether it is Ready; `Unknown` for a node that is not there, or of which nobody has said so.
        numa: the number of the NUMA node; empty for devices without one.
        stock: by driver, or by what a capacity that claims share is an amount of: `memory`, `dra.cpu/cpu`.
    """

    node: str
    ready: str
    numa: str
    stock: Mapping[str, Stock] = field(default_factory=dict)


def numa_rows(nodes: Iterable[LiveNode], devices: Iterable[DeviceRow]) -> Iterator[NumaRow]:
    """Yield the NUMA nodes of every node, by name and number; a node without devices has one row."""
    stocks: defaultdict[str, defaultdict[str, dict[str, Stock]]] = defaultdict(lambda: defaultdict(dict))
    for row in devices:
        if row.node:
            _count(stocks[row.node][",".join(map(str, row.numa))], row)
    readiness = {node.metadata.name: _readiness(node) for node in nodes}
    for name in sorted(readiness.keys() | stocks.keys()):
        ready = readiness.get(name, "Unknown")
        found = stocks.get(name)
        if not found:
            yield NumaRow(name, ready, "")
            continue
        for numa in sorted(found, key=lambda each: (each == "", each.zfill(4))):
            yield NumaRow(name, ready, numa, found[numa])


def _readiness(node: LiveNode) -> str:
    why = node.not_ready
    return "Unknown" if why is None else "NotReady" if why else "Ready"


def _count(stock: dict[str, Stock], row: DeviceRow) -> None:
    usable = row.state in (Availability.FREE, Availability.SHARED)
    for name, total in row.total.items():
        entry = stock.setdefault(unit_of(row.device, name, row.driver), Stock())
        entry.total += total
        entry.free += max(row.free[name], 0) if usable else 0
    if not row.total:
        entry = stock.setdefault(row.driver, Stock())
        entry.total += 1
        entry.free += row.state is Availability.FREE
