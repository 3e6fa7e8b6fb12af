"""The claims that have less memory than they were given, because the machine has less than when they were prepared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from dranode.api import Quantity
from dranode.driver import Holding, Impairment, Record
from dranode.memory.devices import MemoryInventory, given_sources

SHRUNK: Final = "MemoryShrunk"


class _Shortage(msgspec.Struct, frozen=True):
    """Memory of which claims hold more than the machine has.

    Attributes:
        device: the device that it was when a claim was given it.
        sources: what it is made of.
        held: the bytes that claims hold of it and of nothing else.
        has: the bytes that the machine hands out of it.
    """

    device: str
    sources: frozenset[str]
    held: int
    has: int


def memory_impairments(inventory: MemoryInventory, records: Iterable[Record]) -> Iterator[Impairment]:
    """Yield the claims on memory of which claims hold more than the machine has, however devices are grouped by now.

    Nobody can say whose pages are missing then: memory is anonymous. A claim over several NUMA nodes counts where all
    its nodes are, since its memory may lie on any of them.
    """
    holdings = tuple(record.holding(lambda _, state: given_sources(state)) for record in records)
    shortages = tuple(_shortages(inventory, holdings))
    for holding in holdings:
        named: set[frozenset[str]] = set()
        for device in holding.devices:
            # The smallest says most.
            shortage = next((each for each in shortages if device.sources and device.sources <= each.sources), None)
            if shortage is None or shortage.sources in named:
                continue
            named.add(shortage.sources)
            yield Impairment(
                holding.claim,
                SHRUNK,
                f"claims hold {Quantity.binary(shortage.held)} of {shortage.device}, of which the machine has "
                f"{Quantity.binary(shortage.has)} to hand out by now, so claim {holding.claim} may get less than its "
                f"{Quantity.binary(_within(holding, shortage.sources))}: reserve the pages again, or recreate its pods",
            )


def _shortages(inventory: MemoryInventory, holdings: Iterable[Holding]) -> Iterator[_Shortage]:
    """Yield the shortages, those of the fewest NUMA nodes first."""
    holdings = tuple(holdings)
    groups = {device.sources: device.name for holding in holdings for device in holding.devices if device.sources}
    for sources, name in sorted(groups.items(), key=lambda group: (len(group[0]), group[1])):
        held = sum(_within(holding, sources) for holding in holdings)
        has = sum(inventory.sizes.get(source, 0) for source in sources)
        if held > has:
            yield _Shortage(name, sources, held, has)


def _within(holding: Holding, sources: frozenset[str]) -> int:
    """Return how much a claim holds of these sources and of no others."""
    return sum(device.amount for device in holding.devices if device.sources and device.sources <= sources)
