"""ResourceSlices and taints that the API server of Kubernetes 1.37 takes or refuses, with the paths of errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import ResourceSlice
from dranode.api.slice_validation import selection_errors, slice_errors

COUNTERS = {"m": {"value": "1"}}


def device(name: str = "d", **fields: Any) -> dict[str, Any]:
    return {"name": name, **fields}


def spec(**fields: Any) -> dict[str, Any]:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    whole = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": [device()], **fields}
    return {name: value for name, value in whole.items() if value is not None}


def errors(document: Mapping[str, Any], **options: Any) -> list[str]:
    slice_ = decode(ResourceSlice, {"metadata": {"name": "s"}, "spec": document})
    return [error.path for error in slice_errors(slice_, **options)]


def capacity(policy: Mapping[str, Any] | None = None, value: str = "8") -> dict[str, Any]:
    return {"memory": {"value": value, **({"requestPolicy": policy} if policy is not None else {})}}


POLICY = {"default": "1", "validValues": ["1", "2"]}
FIELD = {"key": "a", "operator": "In", "values": ["n"]}
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    "document",
    [
        spec(),
        spec(driver="GPU.Example.com"),
        spec(pool={"name": "a/b.c", "generation": 0, "resourceSliceCount": 1}),
        spec(nodeName=None, allNodes=True),
        spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [TERM]}),
        spec(nodeName=None, perDeviceNodeSelection=True, devices=[device(nodeName="n"), device("e", allNodes=True)]),
        spec(devices=None, sharedCounters=[{"name": "c", "counters": COUNTERS}]),
        spec(
            devices=[device(attributes={"a": {"int": 1}, "example.com/b": {"string": "x"}, "c": {"version": "1.2.3"}})]
        ),
        spec(devices=[device(attributes={"a": {"ints": [1, 2]}})]),
        spec(
            devices=[
                device(capacity=capacity({"default": "1", "validValues": ["1", "2"]}), allowMultipleAllocations=True)
            ]
        ),
        spec(devices=[device(taints=[{"key": "example.com/a", "effect": "None"}])]),
        spec(devices=[device(bindingConditions=["a"], bindingFailureConditions=["b"])]),
        spec(devices=[device(f"d{n}") for n in range(128)]),
        spec(skipNodeOperations=["NodePrepareResources", "NodeUnprepareResources"]),
    ],
)
def test_what_the_api_server_takes_is_valid(document: dict[str, Any]) -> None:
    assert errors(document) == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (spec(driver=""), "spec.driver"),
        (spec(driver="a" * 64), "spec.driver"),
        (spec(pool={"name": "n", "generation": 1, "resourceSliceCount": 0}), "spec.pool.resourceSliceCount"),
        (spec(pool={"name": "n", "generation": -1, "resourceSliceCount": 1}), "spec.pool.generation"),
        (spec(pool={"name": "n", "generation": 1 << 63, "resourceSliceCount": 1}), "spec.pool.generation"),
        (spec(pool={"name": "a//b", "generation": 1, "resourceSliceCount": 1}), "spec.pool.name"),
        (spec(nodeName=None), "spec"),
        (spec(allNodes=True), "spec"),
        (spec(allNodes=False), "spec.allNodes"),
        (spec(nodeName="N"), "spec.nodeName"),
        (spec(nodeName=None, nodeSelector={"nodeSelectorTerms": []}), "spec.nodeSelector.nodeSelectorTerms"),
        (spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [TERM, TERM]}), "spec.nodeSelector.nodeSelectorTerms"),
        (
            spec(
                nodeName=None,
                nodeSelector={"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Has"}]}]},
            ),
            "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].operator",
        ),
        (
            spec(
                nodeName=None,
                nodeSelector={"nodeSelectorTerms": [{"matchFields": [FIELD]}]},
            ),
            "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].key",
        ),
        (spec(sharedCounters=[{"name": "c", "counters": COUNTERS}]), "spec"),
        (spec(devices=None, sharedCounters=[{"name": "c"}]), "spec.sharedCounters[0].counters"),
        (spec(devices=None, sharedCounters=[{"name": "C", "counters": COUNTERS}]), "spec.sharedCounters[0].name"),
        (
            spec(devices=None, sharedCounters=[{"name": "c", "counters": COUNTERS}] * 2),
            "spec.sharedCounters[1].name",
        ),
        (spec(devices=[device("D")]), "spec.devices[0].name"),
        (spec(devices=[device(), device()]), "spec.devices[1].name"),
        (spec(devices=[device(f"d{n}") for n in range(129)]), "spec.devices"),
        (spec(devices=[device(f"d{n}", attributes={"a": {"ints": [1]}}) for n in range(65)]), "spec.devices"),
        (spec(devices=[device(attributes={"a": {}})]), "spec.devices[0].attributes[a]"),
        (spec(devices=[device(attributes={"a": {"int": 1, "bool": True}})]), "spec.devices[0].attributes[a]"),
        (spec(devices=[device(attributes={"a": {"ints": []}})]), "spec.devices[0].attributes[a].ints"),
        (spec(devices=[device(attributes={"a": {"string": "x" * 65}})]), "spec.devices[0].attributes[a].string"),
        (spec(devices=[device(attributes={"a": {"version": "1.2"}})]), "spec.devices[0].attributes[a].version"),
        (
            spec(devices=[device(attributes={"a": {"versions": ["1.2.3", "v1"]}})]),
            "spec.devices[0].attributes[a].versions[1]",
        ),
        (spec(devices=[device(attributes={"a-b": {"int": 1}})]), "spec.devices[0].attributes[a-b]"),
        (spec(devices=[device(attributes={"/b": {"int": 1}})]), "spec.devices[0].attributes[/b]"),
        (spec(devices=[device(attributes={f"a{n}": {"int": 1} for n in range(33)})]), "spec.devices[0]"),
        (spec(devices=[device(attributes={"a": {"ints": list(range(49))}})]), "spec.devices[0]"),
        (
            spec(devices=[device(capacity=capacity({"default": "1"}))]),
            "spec.devices[0].capacity[memory].requestPolicy",
        ),
        (
            spec(devices=[device(capacity=capacity({"validValues": ["1"]}), allowMultipleAllocations=True)]),
            "spec.devices[0].capacity[memory].requestPolicy",
        ),
        (spec(devices=[device(taints=[{"key": "", "effect": "NoSchedule"}])]), "spec.devices[0].taints[0].key"),
        (spec(devices=[device(taints=[{"key": "a", "effect": "Never"}])]), "spec.devices[0].taints[0].effect"),
        (spec(devices=[device(taints=[{"key": "a", "effect": "None"}] * 17)]), "spec.devices[0].taints"),
        (
            spec(devices=[device(consumesCounters=[{"counterSet": "c", "counters": {}}])]),
            "spec.devices[0].consumesCounters[0].counters",
        ),
        (
            spec(devices=[device(consumesCounters=[{"counterSet": "c", "counters": COUNTERS}] * 2)]),
            "spec.devices[0].consumesCounters[1].counterSet",
        ),
        (spec(devices=[device(nodeName="n")]), "spec.devices[0]"),
        (spec(nodeName=None, perDeviceNodeSelection=True), "spec.devices[0]"),
        (spec(devices=[device(bindingConditions=["a"])]), "spec.devices[0].bindingFailureConditions"),
        (
            spec(devices=[device(bindingConditions=["a"], bindingFailureConditions=["a"])]),
            "spec.devices[0].bindingFailureConditions[0]",
        ),
        (spec(devices=[device(nodeAllocatableResources={"cpu": {}})]), "spec.devices[0].nodeAllocatableResources[cpu]"),
        (spec(partitionTypeAttribute="example.com/a"), "spec.partitionTypeAttribute"),
        (spec(skipNodeOperations=["NodePrepareResources"]), "spec.skipNodeOperations"),
    ],
)
def test_what_the_api_server_refuses_has_an_error_at_its_place(document: dict[str, Any], path: str) -> None:
    assert errors(document) == [path]


@pytest.mark.parametrize(
    "document",
    [
        spec(sharedCounters=[{"name": "c", "counters": COUNTERS}]),
        spec(
            devices=[device(f"d{n}", consumesCounters=[{"counterSet": "c", "counters": COUNTERS}]) for n in range(65)]
        ),
    ],
)
def test_what_an_older_api_server_stored_is_no_error_of_every_release(document: dict[str, Any]) -> None:
    assert errors(document) != []
    assert errors(document, newest=False) == []


def test_the_devices_of_a_taint_rule_are_named_as_a_slice_names_them() -> None:
    assert [error.path for error in selection_errors("a_b", "", "D", "spec.deviceSelector")] == [
        "spec.deviceSelector.driver",
        "spec.deviceSelector.pool",
        "spec.deviceSelector.device",
    ]
