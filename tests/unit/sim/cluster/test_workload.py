"""What files ask for: which pod uses which claim, where names and references are legal but unusual."""

from typing import Any

import pytest

from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import PoolID
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.state import Allocated, Consumption
from dranode.sim.cluster.workload import WorkloadDocuments, read_workload

SPEC = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "dra.cpu"}}]}}
SHARE = {
    "request": "r",
    "driver": "dra.cpu",
    "pool": "n",
    "device": "d",
    "shareID": "8b2ecbb5-4c1c-4b5c-9a5e-1f2f0c7c2f10",
    "consumedCapacity": {"dra.cpu/cpu": "4"},
}


def claim(name: str, *results: dict[str, Any]) -> dict[str, Any]:
    document = {"kind": "ResourceClaim", "metadata": {"name": name}, "spec": SPEC}
    return {**document, "status": {"allocation": {"devices": {"results": list(results)}}}} if results else document


def template(name: str) -> dict[str, Any]:
    return {"kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": SPEC}}


def pod(name: str, *claims: dict[str, str]) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"resourceClaims": list(claims)}}


def workload(*documents: dict[str, Any]) -> WorkloadDocuments:
    sources = (SourceDocument("f", index, {"apiVersion": "v1", **document}) for index, document in enumerate(documents))
    return read_workload(sources, Features())


def test_a_template_of_the_same_name_does_not_use_a_claim() -> None:
    using = pod("p", {"name": "c", "resourceClaimTemplateName": "gpu"})
    pods = workload(claim("gpu", SHARE), template("gpu"), using).pods
    assert [(one.name, [each.metadata.name for each in one.claims]) for one in pods] == [
        ("default/gpu", ["gpu"]),
        ("default/p", ["p-c"]),
    ]


def test_a_claim_to_which_a_pod_refers_twice_is_one_claim() -> None:
    twice = pod("p", {"name": "a", "resourceClaimName": "one"}, {"name": "b", "resourceClaimName": "one"})
    (only,) = workload(claim("one"), twice).pods
    assert [each.metadata.name for each in only.claims] == ["one"]


def test_a_shared_claim_counts_once() -> None:
    shared = {"name": "a", "resourceClaimName": "one"}
    pods = workload(claim("one", SHARE), pod("p", shared), pod("q", shared)).pods
    allocated = Allocated.of(each for one in pods for each in one.claims)
    assert allocated.pool(PoolID("dra.cpu", "n")).consumed == {Consumption("d", "dra.cpu/cpu", 4)}


@pytest.mark.parametrize("damage", [{"device": 5}, {"consumedCapacity": "4"}, {"driver": None, "pool": []}], ids=str)
def test_a_device_with_an_unreadable_result_is_not_free(damage: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match=r"document 2 \(ResourceClaim b\): status.allocation.devices.results\[1\]"):
        workload(claim("a", SHARE), claim("b", SHARE, {**SHARE, **damage}))
