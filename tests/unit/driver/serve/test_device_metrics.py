"""Metrics of devices that claims share by amounts."""

from __future__ import annotations

from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import Device, DeviceCapacity
from dranode.driver.serve.device_metrics import device_metrics


def device(name: str, *, shared: bool = True, **capacity: str) -> Device:
    sizes = {size: DeviceCapacity(value=Quantity(text)) for size, text in capacity.items()}
    return Device(name=name, capacity=sizes, allow_multiple_allocations=shared or None)


def samples(devices: list[Device], amounts: dict[str, int]) -> dict[tuple[str, str], float]:
    families = device_metrics([("dra.example.com", devices, amounts)])
    return {(one.name, one.labels["device"]): one.value for family in families for one in family.samples}


def test_a_shared_device_has_its_capacity_and_what_claims_hold_of_it() -> None:
    assert samples([device("a", size="1Ki"), device("b", size="2Ki")], {"a": 512}) == {
        ("dranode_device_capacity", "a"): 1024.0,
        ("dranode_device_held_capacity", "a"): 512.0,
        ("dranode_device_capacity", "b"): 2048.0,
        ("dranode_device_held_capacity", "b"): 0.0,
    }


def test_devices_that_are_not_shared_or_have_several_capacities_have_none() -> None:
    assert (
        samples([device("whole", shared=False, size="1"), device("two", size="1", speed="2"), device("none")], {}) == {}
    )
