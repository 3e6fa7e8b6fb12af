"""Slices for any inventory: within the limits, published once, and without touching slices of others."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dranode.api.quantity import Quantity
from dranode.api.resource import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourcePool,
    ResourceSliceSpec,
)
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.desired import desired_slices
from dranode.driver.slices.plan import CreateSlice, published_specs
from dranode.driver.slices.publishable import publishable, sanitize
from tests.fakes.slices import SliceShelf, slice_problems

ONE = Quantity(1)
COUNTERS = {"c": Counter(value=ONE)}
WORDS = st.text("aB9-_./é", max_size=70)
ATTRIBUTES = st.one_of(
    st.builds(DeviceAttribute, string=WORDS),
    st.builds(DeviceAttribute, version=st.sampled_from(["1.2.3", "1.2", "v1"])),
    st.builds(DeviceAttribute, int_=st.integers(-(1 << 64), 1 << 64)),
    st.builds(DeviceAttribute, ints=st.lists(st.integers(0, 9), max_size=30).map(tuple)),
    st.builds(DeviceAttribute, bool_=st.booleans(), string=st.none() | WORDS),
)
TAINTS = st.builds(
    DeviceTaint,
    key=st.sampled_from(["k", "example.com/k", "-"]),
    value=st.sampled_from(["", "v"]),
    effect=st.sampled_from(["NoSchedule", "NoExecute"]),
    time_added=st.sampled_from([None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.7Z", "never"]),
)
DEVICES = st.builds(
    Device,
    name=st.from_regex(r"[a-c][0-9]{0,2}", fullmatch=True) | WORDS,
    attributes=st.dictionaries(st.sampled_from(["a", "dra.cpu/b", "c"]) | WORDS, ATTRIBUTES, max_size=5),
    capacity=st.dictionaries(st.just("dra.cpu/cpu"), st.just(DeviceCapacity(value=ONE)), max_size=1),
    taints=st.lists(TAINTS, max_size=2).map(tuple),
    consumes_counters=st.sampled_from(
        [
            (),
            (DeviceCounterConsumption(counter_set="s0", counters=COUNTERS),),
            (DeviceCounterConsumption(counter_set="x"),),
        ]
    ),
    allow_multiple_allocations=st.sampled_from([None, True]),
)
SETS = st.integers(0, 12).map(
    lambda count: tuple(CounterSet(name=f"s{index}", counters=COUNTERS) for index in range(count))
)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    # Drawing hundreds of devices one by one is slow; a few odd devices among many plain ones test the same.
    plain = tuple(Device(name=f"p{index}") for index in range(draw(st.integers(0, 300))))
    odd = draw(st.lists(DEVICES, max_size=6))
    at = draw(st.integers(0, len(plain)))
    return Inventory(devices=(*plain[:at], *odd, *plain[at:]), counters=draw(SETS))


def slices(inventory: Inventory) -> Sequence[ResourceSliceSpec]:
    return desired_slices("dra.cpu", "node-a", inventory)


@given(inventories())
@settings(max_examples=60)
def test_splitting_never_exceeds_a_limit_and_loses_no_good_device(inventory: Inventory) -> None:
    specs = slices(inventory)
    assert [problem for spec in specs for problem in slice_problems(spec)] == []
    assert {spec.pool.resource_slice_count for spec in specs} == {len(specs)}
    clean = publishable(inventory)
    assert tuple(device for spec in specs for device in spec.devices) == clean.devices
    assert tuple(one for spec in specs for one in spec.shared_counters) == clean.counters


@given(DEVICES)
@settings(max_examples=60)
def test_sanitizing_is_idempotent_and_names_everything_that_it_removes(device: Device) -> None:
    kept, problems = sanitize(device)
    assert (kept == device) is (problems == ())
    if kept is not None:
        assert sanitize(kept) == (kept, ())
        assert len(device.attributes) - len(kept.attributes) == len(problems)


@given(st.lists(inventories(), min_size=1, max_size=4), st.data())
@settings(max_examples=40)
def test_publishing_needs_one_round_whatever_existed_before(inventory: list[Inventory], data: st.DataObject) -> None:
    shelf = SliceShelf()
    foreign = _clutter(shelf, data)
    for one in inventory:
        specs = slices(one)
        shelf.publish(specs)
        assert shelf.publish(specs) == ()
        mine = [spec for spec in shelf.specs() if (spec.driver, spec.node_name) == ("dra.cpu", "node-a")]
        (pool,) = {spec.pool for spec in mine}
        assert pool.resource_slice_count == len(mine) == len(specs)
        assert [spec.shared_counters for spec in mine] == [spec.shared_counters for spec in specs]
        assert [_names(spec) for spec in mine] == [_names(spec) for spec in specs]
    assert {name: shelf.slices.get(name) for name in foreign} == foreign


@given(st.lists(inventories(), min_size=1, max_size=4), st.data())
@settings(max_examples=40)
def test_every_device_is_published_once_and_stays_in_its_slice(inventory: list[Inventory], data: st.DataObject) -> None:
    shelf = SliceShelf()
    _clutter(shelf, data)
    for one in inventory:
        specs = _where_they_are(shelf, one)
        assert [problem for spec in specs for problem in slice_problems(spec)] == []
        devices = [device for spec in specs for device in spec.devices]
        assert sorted(devices, key=_name) == sorted(publishable(one).devices, key=_name)
        assert all(spec.devices or spec.shared_counters for spec in specs) or len(specs) == 1
        shelf.publish(specs)
        assert shelf.publish(_where_they_are(shelf, one)) == ()


def _where_they_are(shelf: SliceShelf, inventory: Inventory) -> Sequence[ResourceSliceSpec]:
    ours = [one for one in shelf.slices.values() if (one.spec.driver, one.spec.node_name) == ("dra.cpu", "node-a")]
    return desired_slices("dra.cpu", "node-a", inventory, published_specs(ours, "node-a"))


def _name(device: Device) -> str:
    return device.name


@given(inventories(), st.integers(0, 3))
@settings(max_examples=30)
def test_lost_slices_are_created_again_with_a_newer_generation(inventory: Inventory, lost: int) -> None:
    shelf = SliceShelf()
    specs = slices(inventory)
    shelf.publish(specs)
    gone = sorted(shelf.slices)[lost % len(shelf.slices)]
    del shelf.slices[gone]
    changes = shelf.publish(specs)
    assert sum(isinstance(change, CreateSlice) for change in changes) == 1
    assert {spec.pool.generation for spec in shelf.specs()} == {2 if len(specs) > 1 else 1}


def _clutter(shelf: SliceShelf, data: st.DataObject) -> dict[str, Any]:
    """Add slices of ours with odd names and generations, and foreign ones; return the foreign ones by name."""
    foreign = {}
    mine = ResourceSliceSpec(driver="dra.cpu", node_name="node-a", pool=ResourcePool(name="node-a"))
    for index in range(data.draw(st.integers(0, 5))):
        whose = data.draw(st.sampled_from([{}, {"driver": "x.example.com"}, {"node_name": "node-b"}]))
        pool = ResourcePool(name=data.draw(st.sampled_from(["node-a", "old"])), generation=data.draw(st.integers(0, 4)))
        name = data.draw(st.sampled_from(["00000-", "00001-", "0000f-", "xyz-"])) + f"c{index}"
        filed = shelf.put(name, msgspec.structs.replace(mine, pool=pool, **whose))
        if whose:
            foreign[name] = filed
    return foreign


def _names(spec: ResourceSliceSpec) -> list[str]:
    return [device.name for device in spec.devices]
