"""The devices that a driver found on its node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dranode.api.resource import CounterSet, Device


class Inventory(msgspec.Struct, frozen=True):
    """The devices that a driver found on its node.

    Attributes:
        devices: in the order in which the scheduler should try them; names are unique.
        counters: the counter sets that the devices draw on (KEP-4815).
        hardware: whatever `grant` needs to decide; the framework hands it through and never looks inside.
        warnings: one sentence each for what was found odd and left out.
        kept_back: one sentence each for what is not published on purpose; `slices` shows them.
        sources: what devices are made of (`Plugin.sources`), by name; one that is not here is its own source.
    """

    devices: tuple[Device, ...]
    counters: tuple[CounterSet, ...] = ()
    hardware: Any = None
    warnings: tuple[str, ...] = ()
    kept_back: tuple[str, ...] = ()
    sources: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)

    def device(self, name: str) -> Device | None:
        """The device of that name, if there is one."""
        return next((device for device in self.devices if device.name == name), None)

    def sources_of(self, name: str) -> frozenset[str]:
        """Return what the device of that name is made of."""
        return self.sources.get(name) or frozenset((name,))
