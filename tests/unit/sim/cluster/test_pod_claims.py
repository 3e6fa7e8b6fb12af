"""Which claims a pod uses: named, already created, still to be generated, its own or its PodGroup's."""

from typing import Any

import pytest

from dranode.api.manifests import SourceDocument
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.cluster.workload import PodWithClaims, read_workload

Document = dict[str, Any]
SPEC = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
ALLOCATION = {
    "devices": {"results": [{"request": "r", "driver": "gpu.example.com", "pool": "a", "device": "gpu-0"}]},
}
ENTRY = {"name": "gpu", "resourceClaimTemplateName": "t"}
OF_GROUPS = "GenericWorkload=true,DRAWorkloadResourceClaims=true"


def claim(name: str, *, owner: Document | None = None, allocated: bool = False, **metadata: Any) -> Document:
    owners = [{"apiVersion": "v1", "controller": True, **owner}] if owner is not None else []
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "ownerReferences": owners, **metadata},
        "spec": SPEC,
        "status": {"allocation": ALLOCATION} if allocated else {},
    }


TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "t"},
    "spec": {"spec": SPEC},
}


def pod(name: str, *entries: Document, made: str | None = "", phase: str = "", **spec: Any) -> Document:
    statuses = [] if made == "" else [{"name": "gpu", **({"resourceClaimName": made} if made else {})}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"u-{name}"},
        "spec": {"resourceClaims": list(entries or (ENTRY,)), **spec},
        "status": {"resourceClaimStatuses": statuses, "phase": phase},
    }


def group(name: str, *entries: Document) -> Document:
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": list(entries or (ENTRY,))}
    return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def pods(*documents: Document, gates: str = "", name: str = "1.37") -> tuple[PodWithClaims, ...]:
    sources = [SourceDocument("f", index, document) for index, document in enumerate(documents)]
    return read_workload(sources, Features.parse(gates, release(name))).pods


def used(*documents: Document, gates: str = "") -> list[tuple[str, list[str]]]:
    return [(one.name, [each.metadata.name for each in one.claims]) for one in pods(*documents, gates=gates)]


OWN = {"kind": "Pod", "name": "p", "uid": "u-p"}


def test_a_generated_claim_belongs_to_its_pod_and_needs_no_other() -> None:
    made = claim("p-gpu-x7k2p", owner=OWN, allocated=True)
    assert used(TEMPLATE, pod("p", made="p-gpu-x7k2p", nodeName="a"), made) == [("default/p", ["p-gpu-x7k2p"])]


def test_a_claim_that_does_not_exist_yet_comes_from_the_template() -> None:
    assert used(TEMPLATE, pod("p")) == [("default/p", ["p-gpu"])]


def test_an_entry_that_needs_no_claim_asks_for_nothing() -> None:
    assert used(TEMPLATE, pod("p", made=None)) == [("default/p", [])]


def test_a_pod_that_has_ended_waits_for_nothing() -> None:
    named = {"name": "gpu", "resourceClaimName": "c"}
    assert used(claim("c"), pod("p", named, phase="Succeeded")) == [("default/p", [])]
    assert used(claim("c", allocated=True), pod("p", named, phase="Failed")) == [("default/p", ["c"])]


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (claim("c", owner=OWN), ""),
        (claim("c"), ""),
        (claim("c", owner={**OWN, "uid": "gone"}), "was not created for Pod default/p (Pod is not owner)"),
        (claim("c", owner=OWN, deletionTimestamp="2026-01-01T00:00:00Z"), 'resourceclaim "c" is being deleted'),
    ],
)
def test_a_foreign_or_deleted_claim_keeps_the_pod_waiting(made: Document, problem: str) -> None:
    (found,) = pods(TEMPLATE, pod("p", made="c"), made)
    assert problem in found.problem
    assert bool(problem) == bool(found.problem)


def test_a_pod_with_scheduling_gates_waits_for_them() -> None:
    (found,) = pods(TEMPLATE, pod("p", schedulingGates=[{"name": "example.com/quota"}]))
    assert found.problem == "pod default/p waits until its scheduling gates are removed: example.com/quota"


def test_an_object_that_only_the_pod_names_is_missing() -> None:
    (found,) = pods(pod("p", made="p-gpu-x7k2p"))
    assert list(map(str, found.missing)) == ["ResourceClaim p-gpu-x7k2p"]
    (found,) = pods(pod("p"))
    assert list(map(str, found.missing)) == ["ResourceClaimTemplate t"]


IN_GROUP: Document = {"schedulingGroup": {"podGroupName": "g"}}


def test_the_pods_of_a_group_share_the_claim_that_it_has() -> None:
    documents = (TEMPLATE, group("g"), pod("p", **IN_GROUP), pod("q", **IN_GROUP), pod("r"))
    assert used(*documents, gates=OF_GROUPS) == [
        ("default/p", ["g-gpu"]),
        ("default/q", ["g-gpu"]),
        ("default/r", ["r-gpu"]),
    ]
    (found, *_) = pods(*documents, gates=OF_GROUPS)
    (user,) = found.claims[0].status.reserved_for
    assert (user.api_group, user.resource, user.name) == ("scheduling.k8s.io", "podgroups", "g")
    # The API server drops the group's claims while the gate is off.
    assert used(*documents) == [("default/p", ["p-gpu"]), ("default/q", ["q-gpu"]), ("default/r", ["r-gpu"])]


def test_an_entry_that_differs_from_the_groups_belongs_to_the_pod() -> None:
    other = {"name": "gpu", "resourceClaimTemplateName": "t"}
    for differing in ({**other, "name": "nic"}, {"name": "gpu", "resourceClaimName": "t"}):
        documents = (TEMPLATE, group("g", differing), pod("p", **IN_GROUP))
        assert used(*documents, gates=OF_GROUPS) == [("default/p", ["p-gpu"])]


def test_the_claim_that_was_made_for_the_group_is_found_by_the_groups_status() -> None:
    owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "g", "uid": "u-g"}
    grouped = group("g") | {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "g-gpu-8zn4c"}]}}
    made = claim("g-gpu-8zn4c", owner=owner, allocated=True)
    documents = (TEMPLATE, grouped, pod("p", **IN_GROUP), made)
    assert used(*documents, gates=OF_GROUPS) == [("default/p", ["g-gpu-8zn4c"])]
    (found,) = pods(TEMPLATE, grouped, pod("p", made="g-gpu-8zn4c", **IN_GROUP), made, gates=OF_GROUPS)
    assert not found.problem
    (found,) = pods(TEMPLATE, group("h"), group("g"), pod("p", made="g-gpu-8zn4c", **IN_GROUP), made)
    assert "(Pod is not owner)" in found.problem


def test_a_missing_group_keeps_its_pods_waiting() -> None:
    (found,) = pods(TEMPLATE, pod("p", **IN_GROUP), gates=OF_GROUPS)
    assert list(map(str, found.missing)) == ["PodGroup g"]


def bound_to(devices: list[Document], users: list[str]) -> Document:
    """A claim whose device `gpu-0` has one binding condition and one binding failure condition."""
    made = claim("c", allocated=True)
    result = {
        **ALLOCATION["devices"]["results"][0],
        "bindingConditions": ["ready"],
        "bindingFailureConditions": ["broken"],
    }
    reserved = [{"resource": "pods", "name": name, "uid": f"u-{name}"} for name in users]
    made["status"] = {"allocation": {"devices": {"results": [result]}}, "devices": devices, "reservedFor": reserved}
    return made


def device_state(device: str = "gpu-0", **conditions: str) -> Document:
    listed = [{"type": name, "status": status, "reason": "Timeout"} for name, status in conditions.items()]
    return {"driver": "gpu.example.com", "pool": "a", "device": device, "conditions": listed}


NAMED = {"name": "gpu", "resourceClaimName": "c"}


@pytest.mark.parametrize(
    ("users", "then"),
    [
        ([], "kube-scheduler releases the claim's devices"),
        (["p"], "kube-scheduler releases the claim's devices"),
        (["p", "q"], "the claim keeps its devices, because it is also reserved for others"),
    ],
)
def test_a_claim_that_failed_to_bind_keeps_its_pod_from_every_node(users: list[str], then: str) -> None:
    failed = bound_to([device_state(ready="False", broken="True")], users)
    (placed,) = pods(failed, pod("p", NAMED))
    assert placed.problem.startswith(
        "resourceclaim not available on the node: device gpu.example.com/a/gpu-0 of default/c failed to bind "
        f"(broken, Timeout); {then}"
    )
    # Until 1.35 the gate is off.
    (placed,) = pods(failed, pod("p", NAMED), name="1.35")
    assert placed.problem == ""


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("crew", "kube-scheduler releases the claim's devices if no pod of podgroup crew has been scheduled"),
        ("others", "the claim keeps its devices, because it is also reserved for others"),
    ],
)
def test_a_pod_groups_claim_that_failed_to_bind_is_deallocated(name: str, then: str) -> None:
    failed = bound_to([device_state(ready="False", broken="True")], [])
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": name, "uid": "u"}
    failed["status"]["reservedFor"] = [group]
    (placed,) = pods(failed, pod("p", NAMED, schedulingGroup={"podGroupName": "crew"}))
    assert placed.problem.endswith(f"; {then}")


@pytest.mark.parametrize(
    "devices",
    [
        [],
        [device_state(ready="True", broken="False")],
        [device_state(ready="False")],
        [device_state("gpu-1", broken="True")],
        ["damaged", {"driver": "gpu.example.com", "pool": "a", "device": "gpu-0", "conditions": "damaged"}],
    ],
    ids=["nothing is known", "bound", "not yet bound", "another device", "damaged"],
)
def test_a_claim_whose_devices_did_not_fail_to_bind_is_allocated(devices: list[Document]) -> None:
    (placed,) = pods(bound_to(devices, []), pod("p", NAMED))
    assert placed.problem == ""
