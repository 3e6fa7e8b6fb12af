from __future__ import annotations

from typing import Any

from dranode.driver.core.api.source_document import SourceDocument
from dranode.driver.picture.fleet import WaitingPod
from dranode.sim.allocator.features import Features
from dranode.sim.report.cluster import cluster_seen
from dranode.sim.report.waiting import waiting

CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
}


def slice_of(node: str, count: int = 2) -> dict[str, Any]:
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": node},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{number}"} for number in range(count)],
        },
    }


def claim(name: str, count: int, *held: str) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": count}}
    results = [{"request": "r", "driver": "gpu.example.com", "pool": "n", "device": device} for device in held]
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": results}}} if held else {},
    }


def pod(name: str, *claims: str, phase: str = "Pending", message: str = "", **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    entries = [{"name": each, "resourceClaimName": each} for each in claims]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"resourceClaims": entries, **spec},
        "status": {"phase": phase, "conditions": conditions},
    }


def judged(*documents: dict[str, Any]) -> dict[str, WaitingPod]:
    sources = (SourceDocument("f", number, each) for number, each in enumerate((CLASS, *documents)))
    return {each.name: each for each in waiting(cluster_seen(sources), Features())}


def test_the_schedulers_words_come_first_then_the_allocators() -> None:
    found = judged(slice_of("n"), claim("held", 1, "gpu-0"), claim("big", 2), pod("p", "big", message="0/1 nodes"))
    (scheduler, allocator) = found["ns/p"].reasons
    assert scheduler == "kube-scheduler: 0/1 nodes"
    assert "does not fit on node n" in allocator
    assert found["ns/p"].claims == ("ns/big",)


def test_each_pod_is_judged_on_the_cluster_as_it_is() -> None:
    found = judged(slice_of("n"), claim("a", 2), claim("b", 2), pod("p", "a"), pod("q", "b"))
    assert found["ns/p"].reasons == found["ns/q"].reasons == ("by its claims alone it would fit on node n now",)


def test_a_pod_may_go_only_where_its_selector_lets_it() -> None:
    node = {"kind": "Node", "metadata": {"name": "n", "labels": {"disk": "hdd"}}}
    found = judged(slice_of("n"), node, claim("a", 1), pod("p", "a", nodeSelector={"disk": "ssd"}))
    assert "would fit" not in " ".join(found["ns/p"].reasons)


def test_claims_that_are_missing_or_not_generated_are_named() -> None:
    entry = {"name": "late", "resourceClaimTemplateName": "t"}
    late = {**pod("late"), "spec": {"resourceClaims": [entry]}}
    found = judged(slice_of("n"), pod("p", "gone"), late)
    assert found["ns/p"].reasons == ("there is no claim ns/gone",)
    assert found["ns/late"].reasons == ('the claim of its entry "late" is not generated yet',)


def test_a_pod_whose_claims_are_allocated_waits_for_what_its_events_say() -> None:
    event = {
        "kind": "Event",
        "metadata": {"name": "e"},
        "type": "Warning",
        "reason": "FailedPrepareDynamicResources",
        "message": "the driver is not registered",
        "involvedObject": {"kind": "Pod", "namespace": "ns", "name": "p"},
    }
    held = claim("held", 1, "gpu-0")
    assert judged(slice_of("n"), held, pod("p", "held"), event)["ns/p"].reasons == (
        "FailedPrepareDynamicResources: the driver is not registered",
    )
    (silent,) = judged(slice_of("n"), held, pod("p", "held"))["ns/p"].reasons
    assert silent == "nothing that was read says why; see kubectl describe pod -n ns p"


def test_who_runs_or_has_no_claims_does_not_wait_and_a_claim_without_a_pod_does() -> None:
    found = judged(slice_of("n"), claim("a", 1), claim("lonely", 9), pod("p", "a", phase="Running"), pod("plain"))
    assert list(found) == ["ns/lonely"]
    assert found["ns/lonely"].reasons[0].startswith("no pod that was read uses it")
    assert "does not fit" in found["ns/lonely"].reasons[1]


def test_without_slices_or_classes_nothing_is_guessed() -> None:
    sources = (SourceDocument("f", 0, claim("a", 1)), SourceDocument("f", 1, pod("p", "a")))
    (only,) = waiting(cluster_seen(sources), Features())
    assert only.reasons == ("nothing that was read says why; see kubectl describe pod -n ns p",)
