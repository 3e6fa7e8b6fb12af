"""The claims that have less memory than they were given, because the machine has less than when they were prepared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from dranode.driver import Impairment, Quantity, Record
from dranode.memory.devices import MemoryInventory

SHRUNK: Final = "MemoryShrunk"


def memory_impairments(inventory: MemoryInventory, records: Iterable[Record]) -> Iterator[Impairment]:
    """Yield the claims on devices of which all claims together hold more than the machine has.

    Nobody can say whose pages are missing then: memory is anonymous.
    """
    records = tuple(records)
    sizes = {device.name: device.size for device in inventory.devices}
    held: Counter[str] = Counter()
    for record in records:
        held.update(record.amounts)
    short = {name: amount for name, amount in held.items() if amount > sizes.get(name, 0)}
    for record in records:
        for name in sorted(short.keys() & record.amounts.keys()):
            has = Quantity.binary(sizes.get(name, 0))
            yield Impairment(
                record.ref,
                SHRUNK,
                f"claims hold {Quantity.binary(short[name])} of {name}, of which the machine has {has} to hand out by "
                f"now, so claim {record.ref} may get less than its {Quantity.binary(record.amounts[name])}: "
                "reserve the pages again, or recreate its pods",
            )
