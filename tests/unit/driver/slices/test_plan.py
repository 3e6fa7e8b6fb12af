"""The changes from published slices to the desired ones: reference sheet of the DRA API, 3.3 and 3.4."""

from typing import Any

import msgspec
import pytest

from dranode.api.quantity import Quantity
from dranode.api.resource import (
    CapacityRequestPolicy,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    OwnerReference,
    ResourcePool,
    ResourceSliceSpec,
)
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.desired import desired_slices
from dranode.driver.slices.plan import CreateSlice, DeleteSlice, UpdateSlice, complete_slice, plan
from tests.fakes.slices import SliceShelf

OWNER = OwnerReference(api_version="v1", kind="Node", name="node-a", uid="node-uid", controller=True)
NAME = "00000-dra.cpu-node-a-"


def wanted(*counts: int) -> tuple[ResourceSliceSpec, ...]:
    """Slices with these numbers of devices."""
    pool = ResourcePool(name="node-a", generation=1, resource_slice_count=len(counts))
    numbers = iter(range(sum(counts)))
    return tuple(
        ResourceSliceSpec(
            driver="dra.cpu",
            pool=pool,
            node_name="node-a",
            devices=tuple(Device(name=f"d{next(numbers)}") for _ in range(count)),
        )
        for count in counts
    )


def with_devices(*devices: Device) -> ResourceSliceSpec:
    return msgspec.structs.replace(wanted(0)[0], devices=devices)


def kinds(changes: Any) -> list[str]:
    return [type(change).__name__.removesuffix("Slice") for change in changes]


def generations(shelf: SliceShelf) -> list[tuple[int, int]]:
    return [(spec.pool.generation, spec.pool.resource_slice_count) for spec in shelf.specs()]


def published(*counts: int) -> SliceShelf:
    shelf = SliceShelf()
    shelf.publish(wanted(*counts))
    return shelf


def test_the_first_publication_creates_generation_one_in_order() -> None:
    changes = plan(wanted(2, 1), [], OWNER)
    assert kinds(changes) == ["Create", "Create"]
    slices = [change.slice for change in changes if isinstance(change, CreateSlice)]
    assert [one.metadata.generate_name for one in slices] == [NAME, "00001-dra.cpu-node-a-"]
    assert {one.metadata.owner_references for one in slices} == {(OWNER,)}
    assert {(one.api_version, one.kind) for one in slices} == {("resource.k8s.io/v1", "ResourceSlice")}
    assert [(one.spec.pool.generation, one.spec.pool.resource_slice_count) for one in slices] == [(1, 2)] * 2


def test_one_changed_slice_keeps_the_generation() -> None:
    shelf = published(2, 1)
    changes = shelf.publish((wanted(2)[0], with_devices(Device(name="other"))))
    assert kinds(changes) == ["Update"]
    assert generations(shelf) == [(1, 2), (1, 2)]


def test_two_changed_slices_need_a_new_generation_of_the_whole_pool() -> None:
    shelf = published(1, 1, 1)
    specs = wanted(1, 1, 1)
    changes = shelf.publish((with_devices(Device(name="x")), with_devices(Device(name="y")), specs[2]))
    assert kinds(changes) == ["Update"] * 3
    assert generations(shelf) == [(2, 3)] * 3


def test_one_more_slice_needs_a_new_generation() -> None:
    shelf = published(1)
    assert kinds(shelf.publish(wanted(1, 1))) == ["Update", "Create"]
    assert generations(shelf) == [(2, 2)] * 2


def test_a_superfluous_slice_is_deleted_first() -> None:
    shelf = published(1, 1, 1)
    assert kinds(shelf.publish(wanted(1, 1))) == ["Delete", "Update", "Update"]
    assert generations(shelf) == [(2, 2)] * 2


def test_a_pool_that_shrinks_to_one_slice_keeps_its_generation() -> None:
    shelf = published(1, 1)
    assert kinds(shelf.publish(wanted(1))) == ["Delete", "Update"]
    assert generations(shelf) == [(1, 1)]


def test_a_requested_generation_is_used() -> None:
    shelf = published(1, 1)
    pool = ResourcePool(name="node-a", generation=7, resource_slice_count=2)
    changes = shelf.publish(msgspec.structs.replace(spec, pool=pool) for spec in wanted(1, 1))
    assert kinds(changes) == ["Update", "Update"]
    assert generations(shelf) == [(7, 2)] * 2


def test_slices_of_an_older_generation_are_obsolete() -> None:
    shelf = SliceShelf()
    pool = ResourcePool(name="node-a", generation=4, resource_slice_count=1)
    shelf.put(f"{NAME}old", msgspec.structs.replace(wanted(1)[0], pool=msgspec.structs.replace(pool, generation=3)))
    shelf.put(f"{NAME}pew", msgspec.structs.replace(wanted(1)[0], pool=pool))
    (change,) = shelf.publish(wanted(1))
    assert change == DeleteSlice(f"{NAME}old", "uid-1", "1")


@pytest.mark.parametrize("name", ["dra.cpu-node-a-x", "0000-dra.cpu-node-a-x", "000000-dra.cpu-x", "0000g-dra.cpu-x"])
def test_a_slice_without_an_index_of_five_digits_is_obsolete(name: str) -> None:
    shelf = SliceShelf()
    shelf.put(name, wanted(1)[0])
    assert kinds(shelf.publish(wanted(1))) == ["Delete", "Create"]
    assert generations(shelf) == [(2, 1)]


def test_the_first_by_name_of_two_slices_with_one_index_stays() -> None:
    shelf = published(1)
    shelf.put(f"{NAME}zzzzz", wanted(1)[0])
    (change,) = shelf.publish(wanted(1))
    assert isinstance(change, DeleteSlice)
    assert change.name == f"{NAME}zzzzz"


def test_an_update_keeps_everything_but_the_spec() -> None:
    shelf = published(1)
    (before,) = shelf.slices.values()
    (change,) = plan((with_devices(Device(name="x")),), shelf.slices.values(), OWNER)
    assert isinstance(change, UpdateSlice)
    assert change.slice.metadata == before.metadata


def test_names_grow_with_the_number_of_slices() -> None:
    (spec,) = wanted(1)
    assert complete_slice(spec, 0xFFFFF, 0x100000).metadata.generate_name == "fffff-dra.cpu-node-a-"
    assert complete_slice(spec, 0xA, 0x100001).metadata.generate_name == "00000a-dra.cpu-node-a-"


CAPACITY = {"cpu": DeviceCapacity(value=Quantity("2048Mi"))}


@pytest.mark.parametrize(
    ("want", "found"),
    [
        (
            Device(name="a", capacity={"cpu": DeviceCapacity(value=Quantity("2Gi"))}),
            Device(name="a", capacity=CAPACITY),
        ),
        (
            Device(name="a", attributes={"x": DeviceAttribute(string="s")}),
            Device(name="a", attributes={"x": DeviceAttribute(string="s", ints=())}),
        ),
        (
            Device(name="a", taints=(DeviceTaint(key="k", effect="NoSchedule"),)),
            Device(name="a", taints=(DeviceTaint(key="k", effect="NoSchedule", time_added="2026-01-01T00:00:00Z"),)),
        ),
        (
            Device(
                name="a", taints=(DeviceTaint(key="k", effect="NoSchedule", time_added="2026-01-01T01:00:00.9+01:00"),)
            ),
            Device(name="a", taints=(DeviceTaint(key="k", effect="NoSchedule", time_added="2026-01-01T00:00:00Z"),)),
        ),
    ],
    ids=["quantity by value", "empty list", "time given by the server", "time within a second"],
)
def test_equivalent_slices_are_not_published_again(want: Device, found: Device) -> None:
    shelf = SliceShelf()
    shelf.put(f"{NAME}abcde", with_devices(found))
    assert shelf.publish((with_devices(want),)) == ()


@pytest.mark.parametrize(
    ("want", "found"),
    [
        (Device(name="a"), Device(name="b")),
        (Device(name="a", allow_multiple_allocations=False), Device(name="a")),
        (Device(name="a", attributes={"x": DeviceAttribute(string="")}), Device(name="a")),
        (
            Device(name="a", capacity={"c": DeviceCapacity(value=Quantity(1), request_policy=CapacityRequestPolicy())}),
            Device(name="a", capacity={"c": DeviceCapacity(value=Quantity(1))}),
        ),
        (
            Device(name="a", taints=(DeviceTaint(key="k", effect="NoSchedule", time_added="2026-01-01T00:00:02Z"),)),
            Device(name="a", taints=(DeviceTaint(key="k", effect="NoSchedule", time_added="2026-01-01T00:00:00Z"),)),
        ),
        (Device(name="a"), Device(name="a", taints=(DeviceTaint(key="k", effect="NoSchedule"),))),
    ],
)
def test_different_slices_are_published(want: Device, found: Device) -> None:
    shelf = SliceShelf()
    shelf.put(f"{NAME}abcde", with_devices(found))
    assert kinds(shelf.publish((with_devices(want),))) == ["Update"]
    assert shelf.specs()[0].devices == (want,)


def test_the_order_of_devices_matters() -> None:
    shelf = SliceShelf()
    shelf.put(f"{NAME}abcde", with_devices(Device(name="a"), Device(name="b")))
    assert kinds(shelf.publish((with_devices(Device(name="b"), Device(name="a")),))) == ["Update"]


@pytest.mark.parametrize(
    "change",
    [
        {"all_nodes": True},
        {"partition_type_attribute": "x.example.com/type"},
        {"shared_counters": (CounterSet(name="s", counters={"c": Counter(value=Quantity(1))}),)},
        {"skip_node_operations": ("*",)},
    ],
)
def test_every_field_of_the_slice_counts(change: dict[str, Any]) -> None:
    shelf = published(0)
    assert kinds(shelf.publish([msgspec.structs.replace(wanted(0)[0], **change)])) == ["Update"]


def test_all_nodes_false_equals_a_missing_all_nodes() -> None:
    assert published(1).publish([msgspec.structs.replace(wanted(1)[0], all_nodes=False)]) == ()


def test_a_taint_keeps_its_time_when_its_device_moves_to_another_slice() -> None:
    taint = DeviceTaint(key="k", value="v", effect="NoExecute")
    since = msgspec.structs.replace(taint, time_added="2026-01-01T00:00:00Z")
    shelf = SliceShelf()
    shelf.put(f"{NAME}abcde", with_devices(Device(name="a", taints=(since,))))
    new = msgspec.structs.replace(taint, value="w")
    shelf.publish(
        (with_devices(Device(name="b", taints=(taint,))), with_devices(Device(name="a", taints=(taint, new))))
    )
    first, second = shelf.specs()
    assert first.devices == (Device(name="b", taints=(taint,)),)
    assert second.devices == (Device(name="a", taints=(since, new)),)


def test_a_time_that_the_driver_sets_is_rounded_to_the_second() -> None:
    taint = DeviceTaint(key="k", effect="NoSchedule", time_added="2026-01-01T00:59:59.6+01:00")
    shelf = SliceShelf()
    shelf.publish((with_devices(Device(name="a", taints=(taint,))),))
    assert shelf.specs()[0].devices[0].taints[0].time_added == "2026-01-01T00:00:00Z"


def test_slices_with_names_of_the_older_form_are_all_replaced() -> None:
    shelf = SliceShelf()
    for index, spec in enumerate(wanted(1, 1)):
        shelf.put(f"node-a-dra.cpu-{index}abcd", spec)
    assert kinds(shelf.publish(wanted(1, 1))) == ["Delete", "Delete", "Create", "Create"]
    assert generations(shelf) == [(2, 2)] * 2


def test_the_split_and_the_plan_agree_about_an_empty_pool() -> None:
    shelf = SliceShelf()
    shelf.publish(desired_slices("dra.cpu", "node-a", Inventory(devices=())))
    assert [(spec.devices, spec.pool) for spec in shelf.specs()] == [
        ((), ResourcePool(name="node-a", generation=1, resource_slice_count=1))
    ]
