"""The devices that a driver found on its node."""

from __future__ import annotations

from typing import Any

import msgspec

from dranode.driver.core.api.resource import CounterSet, Device


class Inventory(msgspec.Struct, frozen=True):
    """The devices that a driver found on its node.

    Attributes:
        devices: in the order in which the scheduler should try them; names are unique.
        counters: the counter sets that the devices draw on (KEP-4815).
        hardware: whatever `grant` needs to decide; the framework hands it through and never looks inside.
        warnings: one sentence each for what was found odd and left out.
    """

    devices: tuple[Device, ...]
    counters: tuple[CounterSet, ...] = ()
    hardware: Any = None
    warnings: tuple[str, ...] = ()

    def device(self, name: str) -> Device | None:
        """The device of that name, if there is one."""
        return next((device for device in self.devices if device.name == name), None)
