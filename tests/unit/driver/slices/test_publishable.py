"""What is left out of an inventory because the API server would reject it; the rules have their own tests."""

import pytest

from dranode.api.quantity import Quantity
from dranode.api.resource import CapacityRequestPolicy, Device, DeviceAttribute, DeviceCapacity, DeviceTaint
from dranode.driver.slices.publishable import sanitize

AMOUNT = DeviceCapacity(value=Quantity(1))
STRING = DeviceAttribute(string="x")


@pytest.mark.parametrize(
    ("name", "attribute", "why"),
    [
        ("a-b", STRING, '"a-b" is not [<DNS'),
        ("a", DeviceAttribute(int_=1, string="x"), "exactly one value is required, not int, string"),
        ("a", DeviceAttribute(string="é" * 33), "has 66 bytes, more than 64"),
        ("a", DeviceAttribute(strings=()), "a list must have a value"),
    ],
)
def test_one_bad_attribute_is_dropped_and_named(name: str, attribute: DeviceAttribute, why: str) -> None:
    device = Device(name="gpu-0", attributes={"good": STRING, name: attribute})
    kept, (problem,) = sanitize(device)
    assert kept == Device(name="gpu-0", attributes={"good": STRING})
    assert problem.startswith(f'attribute "{name}" of device "gpu-0" is left out: ')
    assert why in problem


def test_attributes_beyond_32_entries_are_dropped_from_the_end() -> None:
    attributes = {f"a{index}": STRING for index in range(33)}
    device = Device(name="a", attributes=attributes, capacity={"c": AMOUNT})
    kept, problems = sanitize(device)
    assert kept is not None
    assert list(kept.attributes) == list(attributes)[:31]
    assert [problem.split('"')[1] for problem in problems] == ["a32", "a31"]


def test_the_longest_list_is_dropped_if_there_are_more_than_48_values() -> None:
    lists = {name: DeviceAttribute(ints=tuple(range(size))) for name, size in (("long", 40), ("short", 9))}
    kept, (problem,) = sanitize(Device(name="a", attributes={**lists, "one": STRING}))
    assert kept is not None
    assert list(kept.attributes) == ["short", "one"]
    assert "has 50 attribute values, more than 48" in problem


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Device(name="A"), 'name: "A" is not a DNS label'),
        (Device(name="a", capacity={f"c{index}": AMOUNT for index in range(33)}), "33 attributes and capacities"),
        (
            Device(name="a", capacity={"c": DeviceCapacity(value=Quantity(1), request_policy=CapacityRequestPolicy())}),
            "capacity[c].requestPolicy: it needs allowMultipleAllocations: true",
        ),
        (Device(name="a", taints=(DeviceTaint(key="a b", effect="None"),)), 'taints[0].key: "a b" is not'),
        (Device(name="a", node_name="x"), "nodeName, nodeSelector and allNodes need perDeviceNodeSelection"),
    ],
)
def test_a_device_with_an_invalid_obligation_is_left_out_and_named(device: Device, why: str) -> None:
    kept, (problem,) = sanitize(device)
    assert kept is None
    assert problem.startswith(f'device "{device.name}" is left out: {why}')
