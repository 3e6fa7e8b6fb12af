"""Devices that stand for resources of their node (KEP-5517)."""

from __future__ import annotations

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
    """A node of 8 CPUs with two devices that stand for something of it."""
    devices = [{"name": f"gpu-{number}", "nodeAllocatableResources": resources} for number in range(2)]
    return [node_document("a", "8"), slice_document("a", devices), CLASS, template_document("t-one")]


def answers(*documents: Document, gates: str = ON) -> list[PodAnswer]:
    questions = questions_of(*documents, features=Features.parse(gates))
    return list(questions.answers(questions.selected(())))


FOUR = {"cpu": {"mapping": {"deviceMultiplier": "4"}}}


def test_a_device_takes_the_cpus_that_it_stands_for() -> None:
    pods = [pod_document("p", "1", claims=["t-one"]), pod_document("q", "1", claims=["t-one"])]
    first, second = answers(*cpus(**FOUR), *pods)
    assert first.placement.node == "a"
    assert second.choice.message == "0/1 nodes are available: 1 Insufficient cpu."
    assert second.placement.refusals["a"].plugin == "DynamicResources"
    assert [each.placement.node for each in answers(*cpus(**FOUR), *pods, gates="")] == ["a", "a"]


def test_what_a_device_needs_besides_counts_for_each_container_that_uses_it() -> None:
    pod = pod_document("p", "1", claims=["t-one"])
    overhead = {"cpu": {"overhead": {"perPod": "2", "perContainer": "3"}}}
    container = pod["spec"]["containers"][0]
    container["resources"]["claims"] = [{"name": "t-one"}]
    pod["spec"]["containers"] = [container, {**container, "name": "d"}]
    (answer,) = answers(*cpus(**overhead), pod)
    # 2 containers ask 1 each; 2 for the pod and 3 for each container: 10 of 8.
    assert answer.placement.node is None
    (shortage,) = answer.placement.refusals["a"].shortages
    assert (shortage.requested, shortage.free) == (10_000, 8_000)


def test_a_claim_that_stands_for_cpus_is_for_one_pod() -> None:
    held = claim_document("c", on=("a", "gpu-0"), users=["q"])
    documents = [*cpus(**FOUR), held, pod_document("q", claims=["c"], node="a")]
    (answer,) = answers(*documents, pod_document("p", claims=["c"]))
    assert "claim c has a mapped device and cannot be shared across pods" in answer.choice.message
    overhead = {"cpu": {"overhead": {"perPod": "1"}}}
    documents = [*cpus(**overhead), held, pod_document("q", claims=["c"], node="a")]
    (answer,) = answers(*documents, pod_document("p", claims=["c"]))
    assert answer.placement.node == "a"


def test_what_bound_pods_have_by_their_devices_is_taken() -> None:
    bound = pod_document("b", "1", node="a")
    mapping = [{"name": "cpu", "quantity": "6"}]
    bound["status"] = {"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c", "mapping": mapping}]}
    waiting = pod_document("p", "2")
    (answer,) = answers(node_document("a", "8"), bound, waiting)
    assert answer.placement.node is None
    (answer,) = answers(node_document("a", "8"), bound, waiting, gates="")
    assert answer.placement.node == "a"


def test_what_is_asked_for_the_whole_pod_has_to_cover_its_devices() -> None:
    pod = pod_document("p", "1", claims=["t-one"], resources={"requests": {"cpu": "3"}})
    (answer,) = answers(*cpus(**FOUR), pod)
    assert "pod level request for cpu is insufficient to cover" in answer.choice.message
    roomy = pod_document("p", "1", claims=["t-one"], resources={"requests": {"cpu": "5"}})
    (answer,) = answers(*cpus(**FOUR), roomy)
    assert answer.placement.node == "a"


def test_the_gate_is_refused_where_the_api_was_another() -> None:
    features = Features.parse(ON, release("1.36"))
    questions = questions_of(node_document("a"), pod_document("p"), features=features)
    with pytest.raises(UsageError, match=r"can be simulated from 1.37"):
        list(questions.answers(questions.selected(())))


def test_a_claim_of_which_only_a_part_is_on_a_node_ends_the_attempt_as_in_kube_scheduler() -> None:
    everywhere = slice_document("far", [{"name": "gpu-0", "nodeAllocatableResources": FOUR}])
    everywhere["spec"] = {**everywhere["spec"], "allNodes": True}
    del everywhere["spec"]["nodeName"]
    held = claim_document("c", on=("a", "gpu-0"), users=["q"])
    both = [{**held["status"]["allocation"]["devices"]["results"][0], "pool": pool} for pool in ("a", "far")]
    held["status"]["allocation"]["devices"]["results"] = both
    documents = [node_document("a"), slice_document("a"), node_document("b"), everywhere, CLASS, held]
    (answer,) = answers(*documents, pod_document("p", claims=["c"]))
    assert "device gpu-0 not found in pool a" in answer.placement.problem


def test_a_device_that_its_pool_has_for_another_node_is_not_on_this_one() -> None:
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
