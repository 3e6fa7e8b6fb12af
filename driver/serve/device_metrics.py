"""Metrics of devices that claims share by amounts, such as memory: what there is, and what each claim holds of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from dranode.driver.core.api.resource import Device
from dranode.driver.core.claims.record import Record

_LABELS: Final = ("driver", "device")
_CLAIM_LABELS: Final = ("driver", "namespace", "resourceclaim_name", "resourceclaim_uid", "device")


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> Callable[[], GaugeMetricFamily]:
    return lambda: GaugeMetricFamily(f"dranode_{name}", text, labels=labels)


DEVICE_FAMILIES: Final = (
    _gauge("device_capacity", "Capacity of a device that claims share by amounts: bytes of memory.", _LABELS),
    _gauge("device_held_capacity", "The part of it that claims hold.", _LABELS),
    _gauge("claim_held_capacity", "The part of a device's capacity that the claim holds.", _CLAIM_LABELS),
)


def device_metrics(shared: Iterable[tuple[str, Iterable[Device], Iterable[Record]]]) -> Iterator[Metric]:
    """Yield the families that have samples.

    Args:
        shared: of each driver its name, its devices, and the claims on record, which share some of them by amounts.
    """
    capacity, held, of_claim = (make() for make in DEVICE_FAMILIES)
    for driver, devices, records in shared:
        amounts: dict[str, int] = {}
        for record in records:
            for name, amount in record.amounts.items():
                amounts[name] = amounts.get(name, 0) + amount
                of_claim.add_metric((driver, record.namespace, record.name, record.uid, name), amount)
        for device in devices:
            # Of one with several capacities nobody can say which of them a claim's amount is of.
            sizes = [each.value.value for each in device.capacity.values()]
            if device.allow_multiple_allocations and len(sizes) == 1:
                capacity.add_metric((driver, device.name), float(sizes[0]))
                held.add_metric((driver, device.name), amounts.get(device.name, 0))
    yield from (family for family in (capacity, held, of_claim) if family.samples)
