"""Metrics of devices that claims share by amounts, such as memory: what there is, and what each claim holds of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from dranode.driver.claims.held import Held, Holding
from dranode.driver.claims.inventory import Inventory

_LABELS: Final = ("driver", "device")
_CLAIM_LABELS: Final = ("driver", "namespace", "resourceclaim_name", "resourceclaim_uid", "device")


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> Callable[[], GaugeMetricFamily]:
    return lambda: GaugeMetricFamily(f"dranode_{name}", text, labels=labels)


DEVICE_FAMILIES: Final = (
    _gauge("device_capacity", "Capacity of a device that claims share by amounts: bytes of memory.", _LABELS),
    _gauge("device_held_capacity", "The part of it that claims hold.", _LABELS),
    _gauge("claim_held_capacity", "The part of a device's capacity that the claim holds.", _CLAIM_LABELS),
)


def device_metrics(shared: Iterable[tuple[str, Inventory, Iterable[Holding]]]) -> Iterator[Metric]:
    """Yield the families that have samples.

    A claim that was given a device of another name, with other options of the driver, counts against each device that
    has some of its sources.

    Args:
        shared: of each driver its name, its devices, and what claims hold of them, of some by amounts.
    """
    capacity, held, of_claim = (make() for make in DEVICE_FAMILIES)
    for driver, inventory, holdings in shared:
        claims = Held.of(holdings)
        for holding in claims.holdings.values():
            claim, amounts = holding.claim, Counter[str]()
            for each in holding.devices:
                amounts[each.name] += each.amount
            for name, amount in amounts.items():
                if amount:
                    of_claim.add_metric((driver, claim.namespace, claim.name, claim.uid, name), amount)
        for device in inventory.devices:
            # Of one with several capacities nobody can say which of them a claim's amount is of.
            sizes = [each.value.value for each in device.capacity.values()]
            if device.allow_multiple_allocations and len(sizes) == 1:
                capacity.add_metric((driver, device.name), float(sizes[0]))
                held.add_metric((driver, device.name), claims.amount(inventory.sources_of(device.name)))
    yield from (family for family in (capacity, held, of_claim) if family.samples)
