"""Devices that represent resources of their node (KEP-5517)."""

from typing import Any

import pytest

from dranode.api.errors import UsageError
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.fit.questions import PodAnswer
from tests.fakes.clusters import (
    CLASS,
    Document,
    claim_document,
    node_document,
    pod_document,
    questions_of,
    slice_document,
    template_document,
)

ON = "DRANodeAllocatableResources=true"


def cpus(**resources: Any) -> list[Document]:
    """A node with 8 CPUs and two devices that represent some of them."""
    devices = [{"name": f"gpu-{number}", "nodeAllocatableResources": resources} for number in range(2)]
    return [node_document("a", "8"), slice_document("a", devices), CLASS, template_document("t-one")]


def answers(*documents: Document, gates: str = ON) -> list[PodAnswer]:
    questions = questions_of(*documents, features=Features.parse(gates))
    return list(questions.answers(questions.selected(())))


FOUR = {"cpu": {"mapping": {"deviceMultiplier": "4"}}}


def test_a_device_takes_the_cpus_that_it_represents() -> None:
    pods = [pod_document("p", "1", claims=["t-one"]), pod_document("q", "1", claims=["t-one"])]
    first, second = answers(*cpus(**FOUR), *pods)
    assert first.placement.node == "a"
    assert second.choice.message == "0/1 nodes are available: 1 Insufficient cpu."
    assert second.placement.refusals["a"].plugin == "DynamicResources"
    assert [group.detail for group in second.choice.groups] == [
        "The pod needs 5 CPUs, the node has 3 CPUs free (2 CPUs too few)"
    ]
    assert [each.placement.node for each in answers(*cpus(**FOUR), *pods, gates="")] == ["a", "a"]


def test_a_device_for_an_extended_resource_takes_its_cpus_as_well() -> None:
    # The class serves its implicit extended resource (kubernetes/kubernetes#141556).
    pods = [pod_document(name, "1") for name in "pq"]
    for pod in pods:
        pod["spec"]["containers"][0]["resources"]["limits"] = {"deviceclass.resource.kubernetes.io/gpu": 1}
    first, second = answers(*cpus(**FOUR), *pods)
    assert first.placement.node == "a"
    assert second.choice.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_a_devices_overhead_counts_for_each_container() -> None:
    pod = pod_document("p", "1", claims=["t-one"])
    overhead = {"cpu": {"overhead": {"perPod": "2", "perContainer": "3"}}}
    container = pod["spec"]["containers"][0]
    container["resources"]["claims"] = [{"name": "t-one"}]
    pod["spec"]["containers"] = [container, {**container, "name": "d"}]
    (answer,) = answers(*cpus(**overhead), pod)
    # Two containers ask for 1 each, plus 2 for the pod and 3 for each container: 10 of 8.
    assert answer.placement.node is None
    (shortage,) = answer.placement.refusals["a"].shortages
    assert (shortage.requested, shortage.free) == (10_000, 8_000)


def test_a_claim_that_represents_cpus_is_for_one_pod() -> None:
    held = claim_document("c", on=("a", "gpu-0"), users=["q"])
    documents = [*cpus(**FOUR), held, pod_document("q", claims=["c"], node="a")]
    (answer,) = answers(*documents, pod_document("p", claims=["c"]))
    assert "claim c has a mapped device and cannot be shared across pods" in answer.choice.message
    overhead = {"cpu": {"overhead": {"perPod": "1"}}}
    documents = [*cpus(**overhead), held, pod_document("q", claims=["c"], node="a")]
    (answer,) = answers(*documents, pod_document("p", claims=["c"]))
    assert answer.placement.node == "a"


def test_cpus_that_bound_pods_have_through_devices_are_taken() -> None:
    bound = pod_document("b", "1", node="a")
    mapping = [{"name": "cpu", "quantity": "6"}]
    bound["status"] = {"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c", "mapping": mapping}]}
    waiting = pod_document("p", "2")
    (answer,) = answers(node_document("a", "8"), bound, waiting)
    assert answer.placement.node is None
    (answer,) = answers(node_document("a", "8"), bound, waiting, gates="")
    assert answer.placement.node == "a"


def test_pod_level_requests_have_to_cover_the_devices() -> None:
    pod = pod_document("p", "1", claims=["t-one"], resources={"requests": {"cpu": "3"}})
    (answer,) = answers(*cpus(**FOUR), pod)
    assert "pod level request for cpu is insufficient to cover" in answer.choice.message
    roomy = pod_document("p", "1", claims=["t-one"], resources={"requests": {"cpu": "5"}})
    (answer,) = answers(*cpus(**FOUR), roomy)
    assert answer.placement.node == "a"


def test_the_gate_is_refused_in_releases_with_another_api() -> None:
    features = Features.parse(ON, release("1.36"))
    questions = questions_of(node_document("a"), pod_document("p"), features=features)
    with pytest.raises(UsageError, match=r"can be simulated from 1.37"):
        list(questions.answers(questions.selected(())))


def test_a_claim_that_is_partly_on_a_node_ends_the_attempt() -> None:
    everywhere = slice_document("far", [{"name": "gpu-0", "nodeAllocatableResources": FOUR}])
    everywhere["spec"] = {**everywhere["spec"], "allNodes": True}
    del everywhere["spec"]["nodeName"]
    held = claim_document("c", on=("a", "gpu-0"), users=["q"])
    both = [{**held["status"]["allocation"]["devices"]["results"][0], "pool": pool} for pool in ("a", "far")]
    held["status"]["allocation"]["devices"]["results"] = both
    documents = [node_document("a"), slice_document("a"), node_document("b"), everywhere, CLASS, held]
    (answer,) = answers(*documents, pod_document("p", claims=["c"]))
    assert "device gpu-0 not found in pool a" in answer.placement.problem


def test_a_device_of_another_node_in_the_pool_is_not_on_this_node() -> None:
    # kube-scheduler 1.37.1: devices of a pool with perDeviceNodeSelection.
    devices: list[Document] = [
        {"name": "gpu-0", "allNodes": True, "nodeAllocatableResources": FOUR},
        {"name": "gpu-1", "nodeName": "a", "nodeAllocatableResources": FOUR},
    ]
    fabric = slice_document("fabric", devices)
    fabric["spec"] = {**fabric["spec"], "perDeviceNodeSelection": True}
    del fabric["spec"]["nodeName"]
    held = claim_document("c", on=("fabric", "gpu-0"), users=["q"])
    (first,) = held["status"]["allocation"]["devices"]["results"]
    held["status"]["allocation"]["devices"]["results"] = [first, {**first, "device": "gpu-1"}]
    (answer,) = answers(node_document("b"), fabric, CLASS, held, pod_document("p", claims=["c"]))
    assert answer.placement.problem.endswith("device gpu-1, driver gpu.example.com: device gpu-1 does not match node")
