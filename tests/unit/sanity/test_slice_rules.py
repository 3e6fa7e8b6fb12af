"""What kube-apiserver refuses in slices, and what the scheduler ignores."""

from typing import Any

import pytest

from dranode.sanity.slice_rules import pool_problems, slice_refusals

SPEC: dict[str, Any] = {"driver": "d.example.com", "nodeName": "n", "pool": {"name": "n", "resourceSliceCount": 1}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, ()),
        ({"devices": [{"name": "a", "capacity": {"c": {"value": "four"}}}]}, ("spec.devices[0].capacity",)),
        ({"devices": [{"name": "a_b"}], "driver": "d_"}, ("spec.driver: ", "spec.devices[0].name: ")),
        ({"devices": "none"}, ("spec.devices: ",)),
    ],
)
def test_each_refusal_of_the_api_server_names_the_path(fields: dict[str, Any], says: tuple[str, ...]) -> None:
    refusals = slice_refusals({"metadata": {"name": "s"}, "spec": {**SPEC, **fields}})
    assert len(refusals) == len(says)
    assert all(map(str.startswith, refusals, says)), refusals


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
def test_pools_that_no_scheduler_uses(slices: list[dict[str, Any]], says: str) -> None:
    assert says in "; ".join(pool_problems(slices))
