"""What people call an amount of a device: memory and huge pages by Kubernetes' own names, all else as published."""

from __future__ import annotations

import re
from typing import Final

from dranode.api.names import named_value, qualified
from dranode.api.quantity import Quantity
from dranode.api.resource import Device

# How drivers of memory publish ordinary memory and huge pages of each size: one capacity, told apart by two attributes
# (kubernetes-sigs/dra-driver-memory; docs/memory.md).
_CAPACITY: Final = "size"
_IS_HUGE: Final = "hugeTLB"
_PAGE_SIZE: Final = "pageSize"
_PAGES: Final = re.compile(r"([0-9]{1,9})([kmgt])", re.ASCII)


def unit_of(device: Device, name: str, driver: str) -> str:
    """Return what a device's capacity is an amount of: `memory`, `hugepages-2Mi`, or its qualified name.

    Memory and huge pages of different sizes are never added up, though they are one capacity.
    """
    whole = qualified(name, driver)
    huge = named_value(device.attributes, _IS_HUGE, driver)
    if whole != qualified(_CAPACITY, driver) or huge is None or huge.bool_ is None:
        return whole
    if not huge.bool_:
        return "memory"
    size = named_value(device.attributes, _PAGE_SIZE, driver)
    pages = _PAGES.fullmatch(size.string or "") if size is not None else None
    return f"hugepages-{pages[1]}{pages[2].upper()}i" if pages else whole


def is_published_name(unit: str) -> bool:
    """Return whether a unit is the qualified name of a capacity, not a name of its own such as `memory`."""
    return "/" in unit


def part_text(amount: Quantity, name: str) -> str:
    """Return how much of a device's capacity a claim has, where the device is named beside it: `4 cpu`, `8Gi`."""
    return f"{amount}" if name.rpartition("/")[2] == _CAPACITY else f"{amount} {name}"
