from typing import Any

import pytest

from dranode.api.documents import decode, encode, to_v1
from dranode.api.errors import DocumentError
from dranode.api.resource import ExactDeviceRequest, ResourceSlice
from dranode.driver.kube.client import best_version, from_v1

SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {
        "driver": "d",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {"name": "a", "attributes": {"x": {"int": 1}}, "taints": [{"key": "k", "effect": "None"}]},
            {"name": "b", "allowMultipleAllocations": True, "capacity": {"c": {"value": "2"}}},
        ],
        "sharedCounters": [{"name": "s", "counters": {"m": {"value": "1Gi"}}}],
    },
}


@pytest.mark.parametrize(
    ("offered", "best"),
    [
        (("v1", "v1beta1"), "v1"),
        (("v1beta1", "v1beta2"), "v1beta2"),
        (("v1beta1",), "v1beta1"),
        (("v2", "v1alpha3"), None),
        ((), None),
    ],
)
def test_the_newest_version_of_both_sides_is_used(offered: tuple[str, ...], best: str | None) -> None:
    assert best_version(offered) == best


def test_v1beta1_keeps_a_devices_fields_under_basic() -> None:
    devices = from_v1(SLICE, "v1beta1")["spec"]["devices"]
    assert devices[0] == {"name": "a", "basic": {k: v for k, v in SLICE["spec"]["devices"][0].items() if k != "name"}}  # type: ignore[index]
    assert from_v1(SLICE, "v1beta2")["spec"] == SLICE["spec"]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_objects_written_in_any_version_read_back_as_v1(version: str) -> None:
    written = from_v1(SLICE, version)
    assert written["apiVersion"] == f"resource.k8s.io/{version}"
    assert to_v1(written) == SLICE
    assert encode(decode(ResourceSlice, to_v1(written))) == encode(decode(ResourceSlice, SLICE))


def test_a_status_is_the_same_in_every_version() -> None:
    claim = {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "status": {"devices": [{"driver": "d"}]}}
    assert from_v1(claim, "v1beta1") == {**claim, "apiVersion": "resource.k8s.io/v1beta1"}


def test_a_flat_request_keeps_every_field_of_an_exact_one() -> None:
    derived = [{"name": "a.example.com/x", "expression": "device.driver"}]
    fields = {"deviceClassName": "gpu", "count": 2, "derivedAttributes": derived}
    header = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim"}
    claim = {**header, "spec": {"devices": {"requests": [{"name": "r", **fields}]}}}
    assert to_v1(claim)["spec"]["devices"]["requests"] == [{"name": "r", "exactly": fields}]
    known = {camel(name) for name in ExactDeviceRequest.__struct_fields__}
    full = {"name": "r", **dict.fromkeys(known, "x")}
    claim = {**header, "spec": {"devices": {"requests": [full]}}}
    assert to_v1(claim)["spec"]["devices"]["requests"][0]["exactly"].keys() == known


@pytest.mark.parametrize(
    ("kind", "served"),
    [
        ("ResourceClaim", ("v1", "v1beta2", "v1beta1")),
        ("DeviceTaintRule", ("v1", "v1beta2", "v1alpha3")),
        ("ResourcePoolStatusRequest", ("v1alpha3",)),
    ],
)
def test_a_kind_is_read_in_the_versions_that_are_served(kind: str, served: tuple[str, ...]) -> None:
    for version in ("v1", "v1beta2", "v1beta1", "v1alpha3", "v2"):
        document = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "spec": {}}
        if version in served:
            assert to_v1(document)["kind"] == kind
        else:
            with pytest.raises(DocumentError, match=f'not "{version}"'):
                to_v1(document)


@pytest.mark.parametrize(
    "status",
    [
        {"poolCount": 1, "pools": [{"driver": "d", "poolName": "p", "totalDevices": 4, "allocatedDevices": 1}]},
        {
            "poolCount": 1,
            "pools": [{"driver": "d", "poolName": "p", "partitionSummary": [{"type": "Full", "total": 2}]}],
        },
    ],
    ids=["1.36", "1.37 and 1.38"],
)
def test_a_pools_status_is_read_as_each_release_writes_it(status: dict[str, Any]) -> None:
    spec = {"driver": "d", "limit": 3, "defaultPartitionTypeAttribute": "d/profile"}
    header = {"apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourcePoolStatusRequest"}
    read = to_v1({**header, "metadata": {"name": "a"}, "spec": spec, "status": status})
    assert (read["spec"], read["status"]) == (spec, status)


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
