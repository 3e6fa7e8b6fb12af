"""Published devices as a picture names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dranode.api.resource import Device, DeviceAttribute, DeviceTaint
from dranode.api.units import is_published_name, unit_of
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
