"""Published devices as a picture names them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dranode.api.names import named_value, qualified
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceAttribute, DeviceTaint
from dranode.show.picture.fleet import DeviceKey, FleetDevice
from dranode.show.picture.node import numa_of

# How drivers call the attribute that says what a device is, the best first.
_PRODUCT_NAMES: Final = ("productname", "model", "product", "devicename", "type")


def fleet_device(driver: str, pool: str, device: Device, ruled: tuple[str, ...] = ()) -> FleetDevice:
    """Return a published device as a picture shows it; `ruled` are taints that rules put on it."""
    attributes = {name: _text(attribute) for name, attribute in device.attributes.items()}
    return FleetDevice(
        key=DeviceKey(driver, pool, device.name),
        numa=numa_of(device),
        product=_product(attributes),
        attributes=attributes,
        capacity={name: capacity.value for name, capacity in device.capacity.items()},
        steps={name: capacity.step for name, capacity in device.capacity.items() if capacity.step is not None},
        units={name: unit for name in device.capacity if not is_published_name(unit := unit_of(device, name, driver))},
        shared=bool(device.allow_multiple_allocations),
        taints=(*map(taint_text, device.taints), *ruled),
    )


def taint_text(taint: DeviceTaint) -> str:
    """Return a taint as kubectl writes one: `key=value:effect`, `key:effect` without a value."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def _product(attributes: Mapping[str, str]) -> str:
    plain = {name.rpartition("/")[2].lower(): value for name, value in attributes.items()}
    return next((plain[name] for name in _PRODUCT_NAMES if plain.get(name)), "")


def _text(attribute: DeviceAttribute) -> str:
    values = (getattr(attribute, field) for field in attribute.__struct_fields__)
    value = next((value for value in values if value is not None), "")
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


# What people call an amount of a device: memory and huge pages by Kubernetes' own names, all else as published.


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
