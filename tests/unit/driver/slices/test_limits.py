"""The API's limits, each seen to refuse: reference sheet of the DRA API, 4.1 to 4.3 and 4.7."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dranode.api.quantity import Quantity
from dranode.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    NodeAllocatableMapping,
    NodeAllocatableResource,
    ResourcePool,
    ResourceSliceSpec,
)
from dranode.driver.slices.limits import frame_problems, sanitize

ONE = Quantity(1)
STRING = DeviceAttribute(string="x")


def q(*values: str) -> tuple[Quantity, ...]:
    return tuple(map(Quantity, values))


def shared(value: str, policy: CapacityRequestPolicy | None) -> Device:
    capacity = DeviceCapacity(value=Quantity(value), request_policy=policy)
    return Device(name="a", allow_multiple_allocations=True, capacity={"dra.cpu/cpu": capacity})


def stepped(low: str, step: str | None, default: str | None, high: str | None = None) -> CapacityRequestPolicy:
    amount, top, size = (None if text is None else Quantity(text) for text in (default, high, step))
    return CapacityRequestPolicy(
        default=amount, valid_range=CapacityRequestPolicyRange(min=Quantity(low), max=top, step=size)
    )


@pytest.mark.parametrize(
    ("name", "attribute", "why"),
    [
        ("a-b", STRING, "its name is not"),
        ("a", DeviceAttribute(), "it has 0 values"),
        ("a", DeviceAttribute(int_=1, string="x"), "it has 2 values"),
        ("a", DeviceAttribute(string="é" * 33), "has 66 bytes, more than 64"),
        ("a", DeviceAttribute(strings=("x", "y" * 65)), "has 65 bytes, more than 64"),
        ("a", DeviceAttribute(strings=()), "its list is empty"),
        ("a", DeviceAttribute(int_=1 << 63), "does not fit in 64 bits"),
        ("a", DeviceAttribute(ints=(0, -(1 << 63) - 1)), "does not fit in 64 bits"),
        ("a", DeviceAttribute(version="1.2"), "is not a semantic version"),
        ("a", DeviceAttribute(versions=("1.2.3", "1")), "is not a semantic version"),
        ("a", DeviceAttribute(version=f"1.2.3-{'a' * 59}"), "has 65 bytes, more than 64"),
    ],
)
def test_one_bad_attribute_is_dropped_and_named(name: str, attribute: DeviceAttribute, why: str) -> None:
    device = Device(name="gpu-0", attributes={"good": STRING, name: attribute})
    kept, (problem,) = sanitize(device)
    assert kept == Device(name="gpu-0", attributes={"good": STRING})
    assert problem.startswith(f'attribute "{name}" of device "gpu-0" is left out: ')
    assert why in problem


@pytest.mark.parametrize(
    "attribute",
    [
        DeviceAttribute(int_=(1 << 63) - 1),
        DeviceAttribute(bool_=False),
        DeviceAttribute(string=""),
        DeviceAttribute(string="é" * 32),
        DeviceAttribute(version="1.2.3"),
        DeviceAttribute(bools=(True, False)),
        DeviceAttribute(ints=(1, 2)),
        DeviceAttribute(versions=("1.2.3",)),
    ],
)
def test_a_good_device_comes_back_as_it_is(attribute: DeviceAttribute) -> None:
    device = Device(name="a", attributes={"a": attribute})
    assert sanitize(device) == (device, ())


def test_attributes_beyond_32_entries_are_dropped_from_the_end() -> None:
    attributes = {f"a{index}": STRING for index in range(33)}
    device = Device(name="a", attributes=attributes, capacity={"c": DeviceCapacity(value=ONE)})
    kept, problems = sanitize(device)
    assert kept is not None
    assert list(kept.attributes) == list(attributes)[:31]
    assert [problem.split('"')[1] for problem in problems] == ["a32", "a31"]


def test_values_beyond_48_cost_the_longest_list() -> None:
    device = Device(
        name="a",
        attributes={
            "long": DeviceAttribute(ints=tuple(range(40))),
            "short": DeviceAttribute(ints=tuple(range(9))),
            "one": STRING,
        },
    )
    kept, (problem,) = sanitize(device)
    assert kept is not None
    assert list(kept.attributes) == ["short", "one"]
    assert "has 50 attribute values, more than 48" in problem


TAINT = DeviceTaint(key="example.com/broken", effect="NoSchedule")


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Device(name="A"), "its name is not a DNS label"),
        (Device(name="a" * 64), "its name is not a DNS label"),
        (Device(name="a.b"), "its name is not a DNS label"),
        (Device(name="a", capacity={f"c{index}": DeviceCapacity(value=ONE) for index in range(33)}), "33 capacities"),
        (Device(name="a", capacity={"c-d": DeviceCapacity(value=ONE)}), 'the capacity "c-d" is not called'),
        (
            Device(name="a", capacity={"c": DeviceCapacity(value=ONE, request_policy=CapacityRequestPolicy())}),
            "needs allowMultipleAllocations",
        ),
        (shared("4", CapacityRequestPolicy(valid_values=q("1"))), "needs a default"),
        (shared("4", stepped("1", "1", None)), "needs a default"),
        (shared("4", CapacityRequestPolicy(default=ONE, valid_values=q("2"))), "the default 1, which is not one of"),
        (shared("4", CapacityRequestPolicy(default=ONE, valid_values=q("1", "1"))), "do not ascend"),
        (
            shared("4", CapacityRequestPolicy(default=ONE, valid_values=q("1", "5"))),
            "allows 5, more than the capacity of 4",
        ),
        (
            shared("40", CapacityRequestPolicy(default=ONE, valid_values=q(*map(str, range(1, 12))))),
            "has 11 validValues, more than 10",
        ),
        (
            shared(
                "4",
                CapacityRequestPolicy(
                    default=ONE, valid_values=q("1"), valid_range=CapacityRequestPolicyRange(min=ONE)
                ),
            ),
            "has both validValues and validRange",
        ),
        (shared("4", stepped("5", None, "5")), "the minimum 5, which is not within 0 and the capacity of 4"),
        (shared("4", stepped("-1", None, "1")), "the minimum -1"),
        (shared("4", stepped("2", None, "2", "1")), "the maximum 1"),
        (shared("4", stepped("2", None, "2", "5")), "the maximum 5"),
        (shared("4", stepped("2", None, "1")), "the default 1, which is not within 2 and 4"),
        (shared("4", stepped("1", "0", "1")), "the step 0, which is not positive"),
        (shared("1", stepped("1", "1", "1")), "the minimum 1 and the step 1, together more than the capacity of 1"),
        (shared("9", stepped("2", "2", "3")), "the default 3, which is not a whole number of steps of 2 from 2"),
        (shared("9", stepped("2", "2", "2", "5")), "the maximum 5, which is not a whole number of steps"),
        (
            Device(name="a", consumes_counters=(DeviceCounterConsumption(counter_set="s"),)),
            "has 0 counters instead of 1 to 32",
        ),
        (
            Device(
                name="a",
                consumes_counters=tuple(
                    DeviceCounterConsumption(counter_set=name, counters={"c": Counter(value=ONE)}) for name in "stu"
                ),
            ),
            "draws on 3 counter sets",
        ),
        (
            Device(
                name="a",
                consumes_counters=(DeviceCounterConsumption(counter_set="s", counters={"c": Counter(value=ONE)}),) * 2,
            ),
            'names the counter set "s" twice',
        ),
        (Device(name="a", taints=(TAINT,) * 17), "17 taints are more than 16"),
        (Device(name="a", taints=(msgspec.structs.replace(TAINT, key="a b"),)), 'the taint key "a b"'),
        (Device(name="a", taints=(msgspec.structs.replace(TAINT, value="-x"),)), 'the value "-x" of taint'),
        (Device(name="a", taints=(msgspec.structs.replace(TAINT, effect="Never"),)), 'the effect "Never" of taint'),
        (Device(name="a", taints=(msgspec.structs.replace(TAINT, time_added="today"),)), 'timeAdded "today"'),
        (Device(name="a", binding_conditions=("x",)), "come together or not at all"),
        (
            Device(name="a", binding_conditions=("x",), binding_failure_conditions=("x",)),
            'the binding condition "x" is listed twice',
        ),
        (
            Device(name="a", binding_conditions=("x", "y", "z", "v", "w"), binding_failure_conditions=("u",)),
            "5 binding conditions are more than 4",
        ),
        (
            Device(name="a", node_allocatable_resources={"gpu": NodeAllocatableResource(overhead={"perPod": ONE})}),
            '"gpu" is not a node-allocatable resource',
        ),
        (
            Device(name="a", node_allocatable_resources={"cpu": NodeAllocatableResource()}),
            "neither mapping nor overhead",
        ),
        *(
            (
                Device(
                    name="a",
                    node_allocatable_resources={"cpu": NodeAllocatableResource(overhead={key: Quantity(amount)})},
                ),
                f'the overhead "{key}" of "cpu" is neither perPod nor perContainer of 0 or more',
            )
            for key, amount in (("perPod", "-1"), ("perContainer", "-1m"), ("perNode", "1"))
        ),
        (
            Device(
                name="a",
                node_allocatable_resources={
                    "cpu": NodeAllocatableResource(
                        mapping=NodeAllocatableMapping(capacity_key="c", capacity_multiplier=ONE)
                    )
                },
            ),
            'names the capacity "c", which the device lacks',
        ),
        (
            Device(
                name="a",
                node_allocatable_resources={
                    "cpu": NodeAllocatableResource(mapping=NodeAllocatableMapping(device_multiplier=Quantity(0)))
                },
            ),
            "is not a positive quantity",
        ),
    ],
)
def test_a_device_that_obliges_wrongly_is_left_out_and_named(device: Device, why: str) -> None:
    kept, problems = sanitize(device)
    assert kept is None
    assert all(problem.startswith(f'device "{device.name}" is left out: ') for problem in problems)
    assert why in "\n".join(problems)


@pytest.mark.parametrize(
    "policy",
    [
        None,
        CapacityRequestPolicy(),
        CapacityRequestPolicy(default=ONE),
        stepped("1", "1", "1"),
        stepped("0", "2", "4", "8"),
        stepped("500m", "500m", "1500m"),
        CapacityRequestPolicy(default=Quantity("1Ki"), valid_values=q("1", "1024", "2Ki")),
    ],
)
def test_a_policy_within_the_rules_is_taken(policy: CapacityRequestPolicy | None) -> None:
    device = shared("1Mi", policy)
    assert sanitize(device) == (device, ())


POOL = ResourcePool(name="node-a/x", generation=1, resource_slice_count=1)
SLICE = ResourceSliceSpec(driver="dra.cpu", pool=POOL, node_name="node-a")


def changed(**fields: Any) -> ResourceSliceSpec:
    return msgspec.structs.replace(SLICE, **fields)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (changed(driver="dra_cpu"), "the driver's name"),
        (changed(driver="a" * 64), "the driver's name"),
        (changed(pool=ResourcePool(name="a//b")), "the pool's name"),
        (changed(pool=ResourcePool(name=f"{'a' * 126}/{'a' * 127}")), "the pool's name"),
        (changed(pool=ResourcePool(name="a", resource_slice_count=0)), "generation 0 and 0 slices"),
        (changed(node_name=None), "exactly one of nodeName"),
        (changed(all_nodes=True), "exactly one of nodeName"),
        (changed(devices=(Device(name="a", node_name="x"),)), 'device "a" has its own nodes'),
        (
            changed(node_name=None, per_device_node_selection=True, devices=(Device(name="a"),)),
            'device "a" needs one node selection of its own',
        ),
    ],
)
def test_a_slice_that_the_api_refuses_whatever_is_in_it_is_not_published(spec: ResourceSliceSpec, why: str) -> None:
    assert why in "\n".join(frame_problems(spec))
