"""ResourceSlices and taints that the API server of Kubernetes 1.38 accepts or rejects, with the paths of errors."""

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


def counters(*sets: dict[str, Any]) -> dict[str, Any]:
    return spec(devices=None, sharedCounters=sets)


def errors(document: Mapping[str, Any], **options: Any) -> list[str]:
    slice_ = decode(ResourceSlice, {"metadata": {"name": "s"}, "spec": document})
    return [error.path for error in slice_errors(slice_, **options)]


def capacity(policy: Mapping[str, Any] | None = None, value: str = "8") -> dict[str, Any]:
    return {"memory": {"value": value, **({"requestPolicy": policy} if policy is not None else {})}}


FIELD = {"key": "a", "operator": "In", "values": ["n"]}
HAS = {"matchExpressions": [{"key": "a", "operator": "Has"}]}
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
def test_slices_that_the_api_server_accepts_are_valid(document: dict[str, Any]) -> None:
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
        (spec(pool={"name": f"{'a' * 126}/{'a' * 127}", "resourceSliceCount": 1}), "spec.pool.name"),
        (spec(nodeName=None), "spec"),
        (spec(allNodes=True), "spec"),
        (spec(allNodes=False), "spec.allNodes"),
        (spec(nodeName="N"), "spec.nodeName"),
        (spec(nodeName=None, nodeSelector={"nodeSelectorTerms": []}), "spec.nodeSelector.nodeSelectorTerms"),
        (spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [TERM, TERM]}), "spec.nodeSelector.nodeSelectorTerms"),
        (
            spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [HAS]}),
            "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].operator",
        ),
        (
            spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [{"matchFields": [FIELD]}]}),
            "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].key",
        ),
        (spec(sharedCounters=[{"name": "c", "counters": COUNTERS}]), "spec"),
        (counters({"name": "c"}), "spec.sharedCounters[0].counters"),
        (counters({"name": "C", "counters": COUNTERS}), "spec.sharedCounters[0].name"),
        (counters(*[{"name": "c", "counters": COUNTERS}] * 2), "spec.sharedCounters[1].name"),
        (counters(*({"name": f"c{n}", "counters": COUNTERS} for n in range(9))), "spec.sharedCounters"),
        (spec(devices=[device(), device()]), "spec.devices[1].name"),
        (spec(devices=[device(f"d{n}") for n in range(129)]), "spec.devices"),
        (spec(devices=[device(f"d{n}", attributes={"a": {"ints": [1]}}) for n in range(65)]), "spec.devices"),
        (spec(nodeName=None, perDeviceNodeSelection=True), "spec.devices[0]"),
        (spec(partitionTypeAttribute="example.com/a"), "spec.partitionTypeAttribute"),
        (spec(skipNodeOperations=["NodePrepareResources"]), "spec.skipNodeOperations"),
    ],
)
def test_slices_that_the_api_server_rejects_have_an_error_at_its_path(document: dict[str, Any], path: str) -> None:
    assert errors(document) == [path]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": "D"}, ".name"),
        ({"name": "a" * 64}, ".name"),
        ({"name": "a.b"}, ".name"),
        ({"attributes": {"a": {}}}, ".attributes[a]"),
        ({"attributes": {"a": {"int": 1, "bool": True}}}, ".attributes[a]"),
        ({"attributes": {"a": {"ints": []}}}, ".attributes[a].ints"),
        ({"attributes": {"a": {"int": 1 << 63}}}, ".attributes[a].int"),
        ({"attributes": {"a": {"ints": [0, -(1 << 63) - 1]}}}, ".attributes[a].ints[1]"),
        ({"attributes": {"a": {"string": "x" * 65}}}, ".attributes[a].string"),
        ({"attributes": {"a": {"string": "é" * 33}}}, ".attributes[a].string"),
        ({"attributes": {"a": {"version": "1.2"}}}, ".attributes[a].version"),
        ({"attributes": {"a": {"version": f"1.2.3-{'a' * 59}"}}}, ".attributes[a].version"),
        ({"attributes": {"a": {"versions": ["1.2.3", "v1"]}}}, ".attributes[a].versions[1]"),
        ({"attributes": {"a-b": {"int": 1}}}, ".attributes[a-b]"),
        ({"attributes": {"/b": {"int": 1}}}, ".attributes[/b]"),
        ({"attributes": {f"a{n}": {"int": 1} for n in range(33)}}, ""),
        ({"attributes": {"a": {"ints": list(range(49))}}}, ""),
        ({"capacity": {f"c{n}": {"value": "1"} for n in range(33)}}, ""),
        ({"capacity": {"c-d": {"value": "1"}}}, ".capacity[c-d]"),
        ({"capacity": capacity({"default": "1"})}, ".capacity[memory].requestPolicy"),
        (
            {"capacity": capacity({"validValues": ["1"]}), "allowMultipleAllocations": True},
            ".capacity[memory].requestPolicy",
        ),
        ({"taints": [{"key": "", "effect": "NoSchedule"}]}, ".taints[0].key"),
        ({"taints": [{"key": "a", "value": "-x", "effect": "None"}]}, ".taints[0].value"),
        ({"taints": [{"key": "a", "effect": "Never"}]}, ".taints[0].effect"),
        ({"taints": [{"key": "a", "effect": "None", "timeAdded": "today"}]}, ".taints[0].timeAdded"),
        ({"taints": [{"key": "a", "effect": "None"}] * 17}, ".taints"),
        ({"consumesCounters": [{"counterSet": "c", "counters": {}}]}, ".consumesCounters[0].counters"),
        ({"consumesCounters": [{"counterSet": name, "counters": COUNTERS} for name in "stu"]}, ".consumesCounters"),
        ({"consumesCounters": [{"counterSet": "c", "counters": COUNTERS}] * 2}, ".consumesCounters[1].counterSet"),
        ({"nodeName": "n"}, ""),
        ({"bindingConditions": ["a"]}, ".bindingFailureConditions"),
        ({"bindingConditions": ["a"], "bindingFailureConditions": ["a"]}, ".bindingFailureConditions[0]"),
        ({"bindingConditions": list("abcde"), "bindingFailureConditions": ["f"]}, ".bindingConditions"),
        ({"nodeAllocatableResources": {"cpu": {}}}, ".nodeAllocatableResources[cpu]"),
        ({"nodeAllocatableResources": {"gpu": {"overhead": {"perPod": "1"}}}}, ".nodeAllocatableResources[gpu]"),
        *(
            ({"nodeAllocatableResources": {"cpu": {part: fields}}}, f".nodeAllocatableResources[cpu].{part}{field}")
            for part, fields, field in (
                ("overhead", {"perPod": "-1"}, ".perPod"),
                ("overhead", {"perContainer": "-1m"}, ".perContainer"),
                ("overhead", {"perNode": "1"}, ""),
                ("mapping", {"capacityKey": "c", "capacityMultiplier": "1"}, ".capacityKey"),
                ("mapping", {"deviceMultiplier": "0"}, ".deviceMultiplier"),
            )
        ),
    ],
)  # fmt: skip
def test_devices_that_the_api_server_rejects_have_an_error_at_its_path(fields: dict[str, Any], path: str) -> None:
    assert errors(spec(devices=[{**device(), **fields}])) == [f"spec.devices[0]{path}"]


@pytest.mark.parametrize(
    "document",
    [
        spec(sharedCounters=[{"name": "c", "counters": COUNTERS}]),
        spec(
            devices=[device(f"d{n}", consumesCounters=[{"counterSet": "c", "counters": COUNTERS}]) for n in range(65)]
        ),
        spec(devices=[device(attributes={"a/b/c": {"int": 1}})]),
        spec(devices=[device(attributes={"a": {"version": "1.0.0-1234567890123456789"}})]),
    ],
)
def test_slices_that_an_older_api_server_stored_are_valid_in_its_release(document: dict[str, Any]) -> None:
    assert errors(document) != []
    assert errors(document, newest=False) == []


def test_a_taint_rule_names_devices_as_a_slice_does() -> None:
    assert [error.path for error in selection_errors("a_b", "", "D", "spec.deviceSelector")] == [
        "spec.deviceSelector.driver",
        "spec.deviceSelector.pool",
        "spec.deviceSelector.device",
    ]
