from typing import Any

from dranode.api.manifests import SourceDocument
from dranode.sim.allocator.features import Features
from dranode.sim.report.cluster import ClusterSeen, cluster_seen
from dranode.sim.report.picture import cluster_picture
from tests.fakes.clusters import DRIVER, slice_document


def seen(*documents: dict[str, Any]) -> ClusterSeen:
    return cluster_seen(SourceDocument("dump.yaml", index, document) for index, document in enumerate(documents))


def claim(name: str, *devices: str, **more: Any) -> dict[str, Any]:
    results = [{"request": "r", "driver": "d", "pool": "n", "device": device} for device in devices]
    status: dict[str, Any] = {"allocation": {"devices": {"results": results}}} if devices else {}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", **more.pop("metadata", {})},
        "status": {**status, **more},
    }


def pod(name: str, *, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ns"}, "spec": spec or {}, "status": status}


def test_a_claims_pods_come_from_reservations_owners_and_pods() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": "u"}
    reserved = [{"resource": "pods", "name": "reserved", "uid": "u"}]
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    documents = (
        claim("c", "gpu-0", metadata={"ownerReferences": [owner]}, reservedFor=reserved),
        pod(
            "by-status",
            spec={"resourceClaims": [entry]},
            phase="Running",
            resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "c"}],
        ),
        pod("by-name", spec={"resourceClaims": [{"name": "x", "resourceClaimName": "c"}]}),
        pod("by-extended-resource", extendedResourceClaimStatus={"resourceClaimName": "c"}),
    )
    (shown,) = seen(*documents).fleet_claims()
    assert set(shown.pods) == {
        f"ns/{name}" for name in ("owner", "reserved", "by-status", "by-name", "by-extended-resource")
    }
    assert [share.device.device for share in shown.shares] == ["gpu-0"]


def test_a_pod_group_is_a_note_on_its_claim_and_not_a_pod() -> None:
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "crew", "uid": "u"}
    member = pod("crew-0", spec={"resourceClaims": [{"name": "x", "resourceClaimName": "c"}]})
    (shown,) = seen(claim("c", "gpu-0", reservedFor=[group]), member).fleet_claims()
    assert (shown.pods, shown.remarks) == (("ns/crew-0",), ("is reserved for podgroup crew",))


def test_cpus_come_from_the_status_that_a_driver_writes() -> None:
    devices = [
        {"driver": "d", "pool": "n", "device": "a", "data": {"cpus": "0-3"}},
        {"driver": "d", "pool": "n", "device": "b", "data": {"cpus": "8"}},
        {"driver": "d", "pool": "n", "device": "c", "data": {"cpus": 5}},
        {"driver": "d", "pool": "n", "device": "d", "data": None},
        "nonsense",
    ]
    (shown,) = seen(claim("c", "a", devices=devices)).fleet_claims()
    assert shown.cpus == {"n": "0-3,8"}


def test_a_document_that_does_not_decode_is_named_and_the_others_are_read() -> None:
    broken = {"kind": "ResourceClaim", "metadata": {"name": "broken"}, "status": {"allocation": 7}}
    half = {**broken, "metadata": {"name": "half"}, "status": {"allocation": {"devices": {"results": [{"device": 5}]}}}}
    read = seen(broken, claim("whole", "gpu-0"), half)
    assert list(read.claims) == ["ns/whole"]
    assert any("dump.yaml, document 3 (ResourceClaim half) cannot be read" in note for note in read.notes)
    assert any("dump.yaml, document 1 (ResourceClaim broken) cannot be read" in note for note in read.notes)


def test_every_missing_kind_is_named() -> None:
    notes = " ".join(seen().notes)
    for kind in ("ResourceSlice", "ResourceClaim", "Node", "Pod", "DeviceClass", "Event"):
        assert f"no {kind} was read" in notes
    assert "no Pod is" not in " ".join(seen(pod("p")).notes)


def test_nodes_show_what_keeps_pods_away() -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "n"},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "kubelet is silent"}]},
    }
    healthy = {
        "kind": "Node",
        "metadata": {"name": "m"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert seen(node, healthy).node_remarks == {"n": ("not Ready: kubelet is silent", "cordoned"), "m": ()}


def test_ended_pods_are_left_out_and_the_newest_warning_is_first() -> None:
    def event(message: str, time: str, **about: str) -> dict[str, Any]:
        involved = {"kind": "Pod", "namespace": "ns", "name": "p", **about}
        return {
            "kind": "Event",
            "metadata": {"name": message},
            "type": "Warning",
            "reason": "Failed",
            "message": message,
            "lastTimestamp": time,
            "involvedObject": involved,
        }

    documents = (
        pod("p", phase="Pending"),
        pod("done", phase="Succeeded"),
        event("older", "2026-11-22T07:00:00Z"),
        event("newer", "2026-11-22T07:05:00Z"),
        event("of a node", "2026-11-22T07:05:00Z", kind="Node"),
    )
    (only,) = seen(*documents).pods
    assert (only.name, only.warnings) == ("ns/p", ("Failed: newer", "Failed: older"))


def test_a_template_without_claims_leaves_nothing_to_generate() -> None:
    entries = [{"name": "none", "resourceClaimTemplateName": "t"}, {"name": "late", "resourceClaimTemplateName": "t"}]
    (read,) = seen(pod("p", spec={"resourceClaims": entries}, resourceClaimStatuses=[{"name": "none"}])).pods
    assert (read.claims, read.ungenerated) == ((), ("late",))


def rule(name: str, effect: str = "NoSchedule", **selector: str) -> dict[str, Any]:
    spec = {"deviceSelector": selector, "taint": {"key": "maintenance", "value": "fan", "effect": effect}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


def test_the_taints_of_rules_are_on_their_devices_with_the_rules_name() -> None:
    cluster = seen(slice_document("n", 2), rule("fans", device="gpu-1"), rule("hint", "None", driver=DRIVER))
    picture = cluster_picture(cluster, None, Features(), title="t")
    first, second = picture.nodes[0].devices
    assert first.taints == ("maintenance=fan:None (rule hint)",)
    assert second.taints == ("maintenance=fan:NoSchedule (rule fans)", "maintenance=fan:None (rule hint)")
    assert not first.closed  # the effect None keeps nothing away
    assert second.closed


def test_unreadable_rules_are_reported() -> None:
    strange = rule("strange")
    strange["spec"]["deviceSelector"] = {"deviceClassName": "gpu"}
    notes = seen(slice_document("n"), strange).notes
    assert any("DeviceTaintRule strange" in note and "its taints are not shown" in note for note in notes)
    lacking = "no DeviceTaintRule was read"
    assert any(note.startswith(lacking) for note in seen(slice_document("n")).notes)
    assert not any(note.startswith(lacking) for note in cluster_seen([], ["DeviceTaintRule"]).notes)
