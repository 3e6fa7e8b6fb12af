"""How an inventory becomes the slices of a pool."""

import pytest

from dranode.api.errors import UsageError
from dranode.api.quantity import Quantity
from dranode.api.resource import Counter, CounterSet, Device, DeviceAttribute, DeviceCounterConsumption, DeviceTaint
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.desired import desired_slices
from dranode.driver.slices.publishable import publishable

COUNTERS = {"memory": Counter(value=Quantity("40Gi"))}


def sizes(inventory: Inventory) -> list[tuple[int, int]]:
    """Counter sets and devices of every slice."""
    specs = desired_slices("gpu.example.com", "node-a", inventory)
    return [(len(spec.shared_counters), len(spec.devices)) for spec in specs]


def plain(count: int) -> tuple[Device, ...]:
    return tuple(Device(name=f"d{index}") for index in range(count))


@pytest.mark.parametrize(
    ("count", "slices"), [(0, [0]), (1, [1]), (128, [128]), (129, [128, 1]), (300, [128, 128, 44])]
)
def test_devices_fill_slices_in_order(count: int, slices: list[int]) -> None:
    assert sizes(Inventory(devices=plain(count))) == [(0, size) for size in slices]


@pytest.mark.parametrize(
    "large",
    [
        Device(name="x", taints=(DeviceTaint(key="k", effect="NoSchedule"),)),
        Device(name="x", attributes={"roots": DeviceAttribute(strings=("pci0000:00",))}),
        Device(name="x", consumes_counters=(DeviceCounterConsumption(counter_set="s", counters=COUNTERS),)),
    ],
    ids=["taint", "list", "counter"],
)
def test_one_large_device_halves_every_slice_of_the_pool(large: Device) -> None:
    inventory = Inventory(devices=(*plain(128), large), counters=(CounterSet(name="s", counters=COUNTERS),))
    assert sizes(inventory) == [(1, 0), (0, 64), (0, 64), (0, 1)]


def test_counter_sets_come_first_in_slices_of_their_own() -> None:
    sets = tuple(CounterSet(name=f"s{index}", counters=COUNTERS) for index in range(9))
    assert sizes(Inventory(devices=plain(1), counters=sets)) == [(8, 0), (1, 0), (0, 1)]


def test_every_slice_has_pool_node_and_count() -> None:
    specs = desired_slices("dra.cpu", "node-a", Inventory(devices=plain(129)))
    assert {(spec.driver, spec.node_name, spec.pool.name) for spec in specs} == {("dra.cpu", "node-a", "node-a")}
    assert {(spec.pool.generation, spec.pool.resource_slice_count) for spec in specs} == {(1, 2)}


@pytest.mark.parametrize("node", ["My Host", "my_host", "", "a" * 254])
def test_a_node_name_that_the_api_refuses_is_refused_with_the_option_to_set(node: str) -> None:
    with pytest.raises(UsageError, match=r"spec.pool.name: .* set another one with --node-name"):
        desired_slices("dra.cpu", node, Inventory(devices=()))


def test_what_the_api_refuses_is_left_out_and_the_rest_is_published() -> None:
    draws = DeviceCounterConsumption(
        counter_set="s", counters={"memory": COUNTERS["memory"], "cores": COUNTERS["memory"]}
    )
    inventory = Inventory(
        devices=(
            Device(name="a", attributes={"a-b": DeviceAttribute(int_=1), "good": DeviceAttribute(int_=1)}),
            Device(name="Bad"),
            Device(name="a"),
            Device(name="c", consumes_counters=(draws,)),
            Device(name="d"),
        ),
        counters=(
            CounterSet(name="s", counters=COUNTERS),
            CounterSet(name="s", counters=COUNTERS),
            CounterSet(name="empty"),
        ),
        hardware="kept",
        warnings=("found odd",),
    )
    clean = publishable(inventory)
    assert clean.devices == (Device(name="a", attributes={"good": DeviceAttribute(int_=1)}), Device(name="d"))
    assert [one.name for one in clean.counters] == ["s"]
    assert clean.hardware == "kept"
    assert clean.warnings == (
        "found odd",
        'counter set "s" is left out: another one has that name',
        'counter set "empty" is left out: counters: a counter is required',
        'attribute "a-b" of device "a" is left out: "a-b" is not [<DNS subdomain of 63>/]<C identifier of 32>',
        'device "Bad" is left out: name: "Bad" is not a DNS label of at most 63 characters',
        'device "a" is left out: another one has that name',
        'device "c" is left out: it consumes unknown counters s/cores',
    )
    assert [spec.devices for spec in desired_slices("x.example.com", "n", inventory)][-1] == clean.devices


def test_a_clean_inventory_comes_back_as_it_is() -> None:
    inventory = Inventory(devices=plain(3))
    assert publishable(inventory) is inventory
