"""Metrics of devices that claims share by amounts, and of what each claim holds of them."""

from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceCapacity
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record, holdings
from dranode.driver.serve.claim_metrics import device_metrics


def device(name: str, *, shared: bool = True, **capacity: str) -> Device:
    sizes = {size: DeviceCapacity(value=Quantity(text)) for size, text in capacity.items()}
    return Device(name=name, capacity=sizes, allow_multiple_allocations=shared or None)


def record(name: str, **amounts: int) -> Record:
    grants = tuple(Grant(request="r", pool="node", device=each, amount=amount) for each, amount in amounts.items())
    return Record(uid=f"uid-{name}", namespace="ns", name=name, grants=grants)


def samples(devices: list[Device], *records: Record) -> dict[tuple[str, ...], float]:
    held = holdings(records, lambda device, _: frozenset((device,)))
    families = device_metrics([("dra.example.com", Inventory(tuple(devices)), held)])
    return {
        (one.name, *filter(None, (one.labels.get("resourceclaim_name"), one.labels["device"]))): one.value
        for family in families
        for one in family.samples
    }


def test_a_shared_device_has_its_capacity_and_what_claims_hold_of_it() -> None:
    assert samples([device("a", size="1Ki"), device("b", size="2Ki")], record("c", a=512)) == {
        ("dranode_device_capacity", "a"): 1024.0,
        ("dranode_device_held_capacity", "a"): 512.0,
        ("dranode_device_capacity", "b"): 2048.0,
        ("dranode_device_held_capacity", "b"): 0.0,
        ("dranode_claim_held_capacity", "c", "a"): 512.0,
    }


def test_each_claim_has_its_amount_of_each_device() -> None:
    found = samples([device("a", size="4"), device("b", size="4")], record("c", a=1, b=2), record("d", a=3))
    assert {key: value for key, value in found.items() if "held" in key[0]} == {
        ("dranode_claim_held_capacity", "c", "a"): 1.0,
        ("dranode_claim_held_capacity", "c", "b"): 2.0,
        ("dranode_claim_held_capacity", "d", "a"): 3.0,
        ("dranode_device_held_capacity", "a"): 4.0,
        ("dranode_device_held_capacity", "b"): 2.0,
    }


def test_unshared_devices_and_those_with_several_capacities_have_no_metrics() -> None:
    assert samples([device("whole", shared=False, size="1"), device("two", size="1", speed="2"), device("none")]) == {}
