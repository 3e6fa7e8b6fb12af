from typing import Any

from dranode.api.manifests import SourceDocument
from dranode.show.picture.fleet import WaitingPod
from dranode.sim.allocator.features import Features
from dranode.sim.report.cluster import cluster_seen
from dranode.sim.report.picture import waiting
from tests.fakes.clusters import CLASS, slice_document


def slice_of(node: str, count: int = 2) -> dict[str, Any]:
    return slice_document(node, count)


def claim(name: str, count: int, *held: str) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": count}}
    results = [{"request": "r", "driver": "gpu.example.com", "pool": "w", "device": device} for device in held]
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


def node(name: str = "w", **labels: str) -> dict[str, Any]:
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": room}}


def sources(*documents: dict[str, Any]) -> list[SourceDocument]:
    return [SourceDocument("f", number, each) for number, each in enumerate(documents)]


def judged(*documents: dict[str, Any]) -> dict[str, WaitingPod]:
    found, notes = waiting(cluster_seen(sources(CLASS, node(), *documents)), Features())
    assert notes == ()
    return {each.name: each for each in found}


def test_the_schedulers_message_comes_before_the_models() -> None:
    found = judged(slice_of("w"), claim("held", 1, "gpu-0"), claim("big", 2), pod("p", "big", message="0/1 nodes"))
    scheduler, model, *groups = found["ns/p"].reasons
    assert scheduler == "kube-scheduler: 0/1 nodes"
    assert model == "the simulated scheduler says: 0/1 nodes are available: 1 cannot allocate all claims."
    assert groups[0].startswith("1 node: cannot allocate all claims. Request r needs 2 devices")
    assert found["ns/p"].claims == ("ns/big",)


def test_each_pod_is_judged_on_the_cluster_as_it_is() -> None:
    found = judged(slice_of("w"), claim("a", 2), claim("b", 2), pod("p", "a"), pod("q", "b"))
    for name in ("ns/p", "ns/q"):
        assert found[name].reasons[0] == "it fits on node w now"


def test_other_reasons_than_claims_are_reported() -> None:
    found = judged(slice_of("w"), claim("a", 1), pod("p", "a", nodeSelector={"disk": "ssd"}))
    assert "didn't match Pod's node affinity/selector" in found["ns/p"].reasons[0]


def test_claims_that_are_missing_or_not_generated_are_named() -> None:
    entry = {"name": "late", "resourceClaimTemplateName": "t"}
    late = {**pod("late"), "spec": {"resourceClaims": [entry]}}
    found = judged(slice_of("w"), pod("p", "gone"), late)
    assert found["ns/p"].reasons == ("claim ns/gone does not exist",)
    assert found["ns/late"].reasons == ('the claim for its entry "late" does not exist yet',)


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
    assert judged(slice_of("w"), held, pod("p", "held", nodeName="w"), event)["ns/p"].reasons == (
        "FailedPrepareDynamicResources: the driver is not registered",
    )
    (silent,) = judged(slice_of("w"), held, pod("p", "held", nodeName="w"))["ns/p"].reasons
    assert silent == "the reason is unknown; see kubectl describe pod -n ns p"


def test_only_pods_with_claims_and_lonely_claims_wait() -> None:
    found = judged(slice_of("w"), claim("a", 1), claim("lonely", 9), pod("p", "a", phase="Running"), pod("plain"))
    assert list(found) == ["ns/lonely"]
    assert found["ns/lonely"].reasons[0].startswith("no known pod uses it")


def test_without_slices_classes_or_nodes_nothing_is_guessed() -> None:
    for documents in ((slice_of("w"), CLASS), (CLASS, node()), (slice_of("w"), node())):
        (only,), notes = waiting(cluster_seen(sources(claim("a", 1), pod("p", "a"), *documents)), Features())
        assert only.reasons == ("the reason is unknown; see kubectl describe pod -n ns p",)
        assert notes == ()


def test_what_the_model_cannot_judge_is_noted_and_the_pod_is_still_shown() -> None:
    broken = {"matchExpressions": [{"key": "a", "operator": "Near"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [broken]}}}
    documents = sources(CLASS, node(), slice_of("w"), claim("a", 1), pod("p", "a", message="m", affinity=affinity))
    (only,), _ = waiting(cluster_seen(documents), Features())
    assert only.reasons[0] == "kube-scheduler: m"


def test_a_broken_document_does_not_keep_other_pods_from_being_judged() -> None:
    broken = {"kind": "ResourceClaim", "metadata": {"name": "broken"}, "status": {"allocation": 7}}
    assert judged(broken, slice_of("w"), claim("a", 1), pod("p", "a"))["ns/p"].reasons[0] == "it fits on node w now"
