"""Taints for unhealthy devices (KEP-5055): the scheduler allocates none of them until they are healthy again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from dranode.api.resource import Device, DeviceTaint
from dranode.driver.claims.inventory import Inventory
from dranode.driver.claims.plugin import DeviceHealth, Health

_EFFECT = "NoSchedule"


def taint_key(driver: str) -> str:
    """Return the key of the taint of a driver's unhealthy devices."""
    return f"{driver}/unhealthy"


def tainted(driver: str, inventory: Inventory, health: Iterable[DeviceHealth]) -> Inventory:
    """Taint every unhealthy device; a device that is healthy, or of unknown health, gets no taint.

    A device that its plug-in has tainted for the same reason stays unchanged. The taint has no time: the publisher
    keeps the time of a published taint, and the API server sets that of a new one.
    """
    key = taint_key(driver)
    unhealthy = {each.device for each in health if each.health is Health.UNHEALTHY}

    def of(device: Device) -> Device:
        if device.name not in unhealthy or any(taint.key == key for taint in device.taints):
            return device
        return msgspec.structs.replace(device, taints=(*device.taints, DeviceTaint(key=key, effect=_EFFECT)))

    return replace(inventory, devices=tuple(map(of, inventory.devices))) if unhealthy else inventory
