"""Metrics of devices that claims share by amounts, such as memory: what there is, and what claims hold of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from dranode.driver.core.api.resource import Device

_LABELS: Final = ("driver", "device")


def device_metrics(shared: Iterable[tuple[str, Iterable[Device], dict[str, int]]]) -> Iterator[Metric]:
    """Yield the families that have samples.

    Args:
        shared: of each driver its name, its devices, and how much claims hold of those which they share by amounts.
    """
    capacity = GaugeMetricFamily(
        "dranode_device_capacity", "Capacity of a device that claims share by amounts: bytes of memory.", labels=_LABELS
    )
    held = GaugeMetricFamily("dranode_device_held_capacity", "The part of it that claims hold.", labels=_LABELS)
    for driver, devices, amounts in shared:
        for device in devices:
            # Of one with several capacities nobody can say which of them a claim's amount is of.
            sizes = [each.value.value for each in device.capacity.values()]
            if device.allow_multiple_allocations and len(sizes) == 1:
                capacity.add_metric((driver, device.name), float(sizes[0]))
                held.add_metric((driver, device.name), amounts.get(device.name, 0))
    yield from (family for family in (capacity, held) if family.samples)
