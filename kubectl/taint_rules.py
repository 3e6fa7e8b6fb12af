"""DeviceTaintRules (KEP-5055) applied to slices as kube-scheduler sees them: their taints are on what they select.

A rule without a selector selects nothing; a selector's driver, pool and device each have to be equal if they are set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.resource import Device, DeviceTaint, ResourceSlice


class RuledTaint(msgspec.Struct, frozen=True):
    """A rule's taint and the devices that it is on; an empty name selects all."""

    rule: str
    driver: str
    pool: str
    device: str
    taint: DeviceTaint

    def selects(self, driver: str, pool: str, device: str) -> bool:
        """Return whether the rule taints a device."""
        return self.driver in ("", driver) and self.pool in ("", pool) and self.device in ("", device)


def ruled_taints(documents: Iterable[Mapping[str, Any]]) -> tuple[RuledTaint, ...]:
    """Return the taints of DeviceTaintRule documents; one that cannot be read taints nothing."""
    taints: list[RuledTaint] = []
    for document in documents:
        spec = document.get("spec") or {}
        selector = spec.get("deviceSelector")
        if not isinstance(selector, Mapping) or not isinstance(spec.get("taint"), Mapping):
            continue
        try:
            taint = decode(DeviceTaint, spec["taint"])
        except DocumentError:
            continue
        driver, pool, device = (str(selector.get(name) or "") for name in ("driver", "pool", "device"))
        taints.append(RuledTaint(str(document["metadata"]["name"]), driver, pool, device, taint))
    return tuple(taints)


def with_rules(slices: Iterable[ResourceSlice], rules: tuple[RuledTaint, ...]) -> tuple[ResourceSlice, ...]:
    """Return the slices with the taints of the rules on their devices."""
    slices = tuple(slices)
    return tuple(_tainted(one, rules) for one in slices) if rules else slices


def _tainted(published: ResourceSlice, rules: tuple[RuledTaint, ...]) -> ResourceSlice:
    spec = published.spec

    def with_taints(device: Device) -> Device:
        more = tuple(rule.taint for rule in rules if rule.selects(spec.driver, spec.pool.name, device.name))
        return msgspec.structs.replace(device, taints=(*device.taints, *more)) if more else device

    devices = tuple(map(with_taints, spec.devices))
    return msgspec.structs.replace(published, spec=msgspec.structs.replace(spec, devices=devices))
