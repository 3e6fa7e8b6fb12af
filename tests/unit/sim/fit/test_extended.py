"""Extended resources that devices provide if a node does not have the resource itself (KEP-5004)."""

from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import DeviceClass
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.cluster.extended import classes_behind, special_claim
from dranode.sim.fit.questions import PodAnswer
from dranode.sim.scheduler.documents import SchedulingPod
from tests.fakes.clusters import (
    CLASS,
    Document,
    claim_document,
    node_document,
    pod_document,
    questions_of,
    slice_document,
)

GPU = "example.com/gpu"
NAMED = {**CLASS, "spec": {**CLASS["spec"], "extendedResourceName": GPU}}
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"


def asking(name: str, *amounts: Document, init: tuple[Document, ...] = ()) -> Document:
    """A pod whose containers ask for these; of init containers `restartPolicy` may be given."""
    pod = pod_document(name)
    pod["spec"]["containers"] = [
        {"name": f"c{number}", "resources": {"requests": asked, "limits": asked}}
        for number, asked in enumerate(amounts)
    ]
    pod["spec"]["initContainers"] = [
        {
            "name": f"i{number}",
            "resources": {"requests": {key: one for key, one in asked.items() if key != "restartPolicy"}},
            **{key: one for key, one in asked.items() if key == "restartPolicy"},
        }
        for number, asked in enumerate(init)
    ]
    return pod


def answers(*documents: Document, name: str = "1.37") -> list[PodAnswer]:
    questions = questions_of(*documents, features=Features.of(release(name)))
    return list(questions.answers(questions.selected(())))


@pytest.mark.parametrize("resource", [GPU, IMPLICIT])
def test_devices_provide_the_resource_if_the_node_lacks_it(resource: str) -> None:
    cluster = [node_document("a"), slice_document("a", 3), NAMED]
    first, second = answers(*cluster, asking("p", {resource: "2"}), asking("q", {resource: "2"}))
    (outcome,) = first.placement.outcomes
    assert outcome.allocation is not None
    assert first.placement.node == "a"
    assert [one.device for one in outcome.allocation.devices.results] == ["gpu-0", "gpu-1"]
    assert second.choice.message == "0/1 nodes are available: 1 cannot allocate all claims."


def test_a_node_that_has_the_resource_uses_its_own() -> None:
    own = node_document("a")
    own["status"]["allocatable"][GPU] = "1"
    first, second = answers(own, slice_document("a", 3), NAMED, asking("p", {GPU: "1"}), asking("q", {GPU: "1"}))
    assert (first.placement.node, first.placement.outcomes) == ("a", ())
    assert second.choice.message == f"0/1 nodes are available: 1 Insufficient {GPU}."


def test_without_the_class_or_the_feature_the_resource_is_missing() -> None:
    cluster = [node_document("a"), slice_document("a", 3), asking("p", {GPU: "1"})]
    for documents, name in (((CLASS,), "1.37"), ((NAMED,), "1.35")):
        (answer,) = answers(*cluster, *documents, name=name)
        assert answer.choice.message == f"0/1 nodes are available: 1 Insufficient {GPU}."


def test_devices_that_a_bound_pod_got_for_its_resources_are_held() -> None:
    bound = asking("b", {GPU: "1"}) | {"status": {"extendedResourceClaimStatus": {"resourceClaimName": "made"}}}
    bound["spec"]["nodeName"] = "a"
    results = [{"request": "container-0-request-0", "driver": "gpu.example.com", "pool": "a", "device": "gpu-0"}]
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "made", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "b", "uid": "b"}],
        },
    }
    questions = questions_of(node_document("a"), slice_document("a", 1), NAMED, made, bound, asking("p", {GPU: "1"}))
    (answer,) = questions.answers(questions.selected(["p"]))
    assert answer.placement.node is None
    without = questions.state.without_pods(frozenset({"default/b"}))
    assert not without.allocations


def test_a_claim_of_an_earlier_attempt_has_to_be_deleted_first() -> None:
    pod = asking("p", {GPU: "1"})
    pod["metadata"]["uid"] = "u"
    left = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": "p-extended-resources-x",
            "namespace": "default",
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}],
        },
        "spec": {},
    }
    (answer,) = answers(node_document("a"), slice_document("a", 1), NAMED, pod, left)
    assert answer.placement.problem == (
        "pod default/p waits until ResourceClaim p-extended-resources-x of an earlier attempt is deleted"
    )


def test_a_pod_with_claims_is_not_bound_if_the_node_has_the_resource() -> None:
    own = node_document("a")
    own["status"]["allocatable"][GPU] = "1"
    pod = asking("p", {GPU: "1"})
    pod["spec"]["resourceClaims"] = [{"name": "r", "resourceClaimName": "c"}]
    (answer,) = answers(own, slice_document("a", 3), NAMED, claim_document("c"), pod)
    assert answer.placement.node is None
    assert "nil or empty request mappings, no update of pod default/p" in answer.placement.problem


@pytest.mark.parametrize(
    ("pod", "requests"),
    [
        (asking("p", {GPU: "2", "cpu": "1"}, {GPU: "1"}), {"container-0-request-1": 2, "container-1-request-0": 1}),
        # An init container that ends leaves its devices to those that come later; one that stays has its own.
        (asking("p", {GPU: "2"}, init=({GPU: "1"},)), {"container-1-request-0": 2}),
        (
            asking("p", {GPU: "1"}, init=({GPU: "3"}, {GPU: "2"})),
            {"container-0-request-0": 2, "container-2-request-0": 1},
        ),
        (
            asking("p", {GPU: "1"}, init=({GPU: "1", "restartPolicy": "Always"}, {GPU: "2"})),
            {"container-0-request-0": 1, "container-1-request-0": 1, "container-2-request-0": 1},
        ),
        (asking("p", {"cpu": "1"}, {GPU: "0"}), {}),
    ],
)
def test_the_claim_has_a_request_for_each_long_running_container(pod: Document, requests: dict[str, int]) -> None:
    claim = special_claim(decode(SchedulingPod, pod), {GPU: "gpu"})
    listed = [(one.name, one.exactly) for one in claim.spec.devices.requests]
    assert {name: exactly.count for name, exactly in listed if exactly is not None} == requests


def classes(*made: tuple[str, Any, str]) -> list[DeviceClass]:
    return [
        decode(
            DeviceClass, {"metadata": {"name": name, "creationTimestamp": at}, "spec": {"extendedResourceName": its}}
        )
        for name, at, its in made
    ]


def test_the_newest_class_with_the_name_wins_and_then_the_first() -> None:
    old, new = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    asked = {GPU: 1}
    assert classes_behind(asked, classes(("b", new, GPU), ("a", old, GPU))) == {GPU: "b"}
    assert classes_behind(asked, classes(("b", new, GPU), ("a", new, GPU), ("ab", new, GPU))) == {GPU: "a"}
    assert classes_behind({GPU: 0, "cpu": 1}, classes(("b", new, GPU))) == {}
