"""What kube-apiserver refuses of slices, and what a scheduler ignores."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from dranode.sanity.slice_rules import pool_problems, slice_refusals

RIGHT: dict[str, Any] = {
    "metadata": {"name": "s"},
    "spec": {
        "driver": "d.example.com",
        "nodeName": "node",
        "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "a",
                "allowMultipleAllocations": True,
                "attributes": {"n": {"int": 1}, "x.io/v": {"version": "1.2.3"}, "l": {"strings": ["a", "b"]}},
                "capacity": {"c": {"value": "4", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}},
                "taints": [{"key": "x.io/t", "effect": "NoSchedule"}],
                "consumesCounters": [{"counterSet": "s", "counters": {"n": {"value": "1"}}}],
            }
        ],
    },
}


COUNTERS = {"n": {"value": "1"}}


def test_a_right_slice_is_taken() -> None:
    assert slice_refusals(RIGHT) == ()


def device(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec["devices"][0].update(fields)


def spec(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec.update(fields)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (spec(driver="D"), "spec.driver"),
        (spec(driver="d" * 64), "spec.driver"),
        (spec(pool={"name": "a//b", "generation": 1, "resourceSliceCount": 1}), "spec.pool.name"),
        (spec(pool={"name": "a", "generation": -1, "resourceSliceCount": 1}), "spec.pool.generation"),
        (spec(pool={"name": "a", "generation": 1, "resourceSliceCount": 0}), "resourceSliceCount"),
        (spec(allNodes=True), "exactly one of nodeName"),
        (spec(sharedCounters=[{"name": "s", "counters": {"n": {"value": "1"}}}]), "cannot share a slice"),
        (spec(devices=[{"name": f"d{n}"} for n in range(129)]), "129 are more than 128"),
        (spec(devices=[{"name": f"d{n}", "taints": [{"key": "k", "effect": "None"}]} for n in range(65)]), "than 64"),
        (spec(devices=[{"name": "a"}, {"name": "a"}]), "is listed twice"),
        (spec(devices=[], sharedCounters=[{"name": "s", "counters": {}}]), "are not 1 to 32"),
        (spec(devices=[], sharedCounters=[{"name": f"s{n}", "counters": COUNTERS} for n in range(9)]), "9 are"),
        (device(name="a_b"), "is not a DNS label"),
        (device(attributes={f"n{n}": {"int": n} for n in range(32)}), "33 attributes and capacities"),
        (device(attributes={"l": {"ints": list(range(49))}}), "49 values"),
        (device(attributes={"1n": {"int": 1}}), "C identifier"),
        (device(attributes={"n": {"int": 1, "bool": True}}), "exactly one value"),
        (device(attributes={"n": {"int": 1 << 63}}), "64-bit"),
        (device(attributes={"n": {"version": "1.2"}}), "semantic version"),
        (device(attributes={"n": {"string": "x" * 65}}), "65 bytes"),
        (device(attributes={"n": {"strings": []}}), "must not be empty"),
        (device(capacity={"c": {"value": "four"}}), "is not a quantity"),
        (device(allowMultipleAllocations=False), "needs allowMultipleAllocations"),
        (device(capacity={"c": {"value": "4", "requestPolicy": {"validRange": {"min": "5"}}}}), "requestPolicy"),
        (device(consumesCounters=[{"counterSet": "s", "counters": {"n": {"value": "1"}}}] * 3), "3 are more than 2"),
        (device(taints=[{"key": "k", "effect": "Never"}]), "is not one of None, NoSchedule"),
        (device(taints=[{"key": "", "effect": "None"}]), "is not a label name"),
        (device(taints=[{"key": "k", "value": "a b", "effect": "None"}]), "is not a label value"),
        (device(taints=[{"key": "k", "effect": "None"}] * 17), "17 are more than 16"),
        (device(bindingConditions=["a"]), "are both required"),
        (device(bindingConditions=["a"], bindingFailureConditions=["a"]), "both lists"),
        (device(nodeName="node"), "must be"),
    ],
)  # fmt: skip
def test_a_broken_limit_is_refused_with_its_path(change: Callable[[dict[str, Any]], None], says: str) -> None:
    document = copy.deepcopy(RIGHT)
    change(document["spec"])
    assert says in "; ".join(slice_refusals(document))


def piece(count: int = 1, **content: Any) -> dict[str, Any]:
    return {"spec": {"pool": {"name": "node", "generation": 1, "resourceSliceCount": count}, **content}}


@pytest.mark.parametrize(
    ("slices", "says"),
    [
        ([piece(2)], 'pool "node" has 1 slice, but resourceSliceCount is 2'),
        ([piece(2, devices=[{"name": "a"}]), piece(2, devices=[{"name": "a"}])], 'device "a" is listed twice'),
        (
            [piece(1, devices=[{"name": "a", "consumesCounters": [{"counterSet": "s", "counters": {"n": {}}}]}])],
            'consumes counter "n" of set "s"',
        ),
        ([piece(2, sharedCounters=[{"name": "s"}]), piece(2, sharedCounters=[{"name": "s"}])], "counter set"),
    ],
)
def test_a_pool_that_no_scheduler_takes(slices: list[dict[str, Any]], says: str) -> None:
    assert says in "; ".join(pool_problems(slices))
