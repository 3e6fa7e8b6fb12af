"""Fields that a server without the feature gate drops, and the gate that is named for them."""

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
    DeviceCounterConsumption,
    DeviceTaint,
    NodeAllocatableResource,
    ResourcePool,
    ResourceSliceSpec,
)
from dranode.driver.slices.storable import dropped_fields

ONE = Quantity(1)
COUNTERS = {"c": Counter(value=ONE)}
DEVICE = Device(
    name="a",
    attributes={"roots": DeviceAttribute(strings=("x",))},
    capacity={"c": DeviceCapacity(value=ONE, request_policy=CapacityRequestPolicy(default=ONE))},
    allow_multiple_allocations=True,
    taints=(DeviceTaint(key="k", effect="NoSchedule"),),
    consumes_counters=(DeviceCounterConsumption(counter_set="s", counters=COUNTERS, compatibility_groups=("g",)),),
    binding_conditions=("x",),
    binding_failure_conditions=("y",),
    node_allocatable_resources={"cpu": NodeAllocatableResource(overhead={"perPod": ONE})},
)
SLICE = ResourceSliceSpec(
    driver="x.example.com",
    pool=ResourcePool(name="n"),
    per_device_node_selection=True,
    devices=(DEVICE,),
    shared_counters=(CounterSet(name="s", counters=COUNTERS),),
    partition_type_attribute="x.example.com/type",
    skip_node_operations=("*",),
)


def without(**fields: Any) -> ResourceSliceSpec:
    return msgspec.structs.replace(SLICE, devices=(msgspec.structs.replace(DEVICE, **fields),))


@pytest.mark.parametrize(
    ("returned", "gate"),
    [
        (without(taints=()), "DRADeviceTaints"),
        (without(binding_conditions=(), binding_failure_conditions=()), "DRADeviceBindingConditions"),
        (without(allow_multiple_allocations=None), "DRAConsumableCapacity"),
        (without(capacity={"c": DeviceCapacity(value=ONE)}), "DRAConsumableCapacity"),
        (without(attributes={}), "DRAListTypeAttributes"),
        (without(node_allocatable_resources={}), "DRANodeAllocatableResources"),
        (
            without(consumes_counters=(DeviceCounterConsumption(counter_set="s", counters=COUNTERS),)),
            "DRADeviceCompatibilityGroups",
        ),
        (msgspec.structs.replace(SLICE, shared_counters=()), "DRAPartitionableDevices"),
        (msgspec.structs.replace(SLICE, per_device_node_selection=None), "DRAPartitionableDevices"),
        (msgspec.structs.replace(SLICE, partition_type_attribute=None), "DRAPartitionableDevicesType"),
        (msgspec.structs.replace(SLICE, skip_node_operations=()), "DRAOptionalNodeOperations"),
        (msgspec.structs.replace(SLICE, devices=()), "unknown"),
        (without(name="b"), "unknown"),
    ],
)
def test_the_gate_of_a_dropped_field_is_named(returned: ResourceSliceSpec, gate: str) -> None:
    assert dropped_fields(SLICE, returned) == (gate,)


def test_several_gates_are_all_named() -> None:
    assert dropped_fields(SLICE, without(taints=(), consumes_counters=())) == (
        "DRADeviceCompatibilityGroups",
        "DRADeviceTaints",
        "DRAPartitionableDevices",
    )


def test_times_and_defaults_that_the_server_adds_are_not_dropped_fields() -> None:
    timed = (DeviceTaint(key="k", effect="NoSchedule", time_added="2026-01-01T00:00:00Z"),)
    assert dropped_fields(SLICE, SLICE) == ()
    assert dropped_fields(SLICE, without(taints=timed)) == ()
