"""ResourceClaims in the API server: what a driver asks about them, and what it leaves as it is."""

from __future__ import annotations

import copy
from typing import Any, Final

from dranode.sanity.bench import OTHER_DRIVER, Bench
from dranode.sanity.breach import expect
from dranode.sanity.check import must, should
from dranode.sanity.kinds import KubeDocument, kind_of

_STATUS: Final = "KEP-4817; resource.k8s.io/v1 types.go, ResourceClaimStatus.devices: each driver owns its own entries"
_DELETED: Final = "2026-01-01T00:00:00Z"


@must("prepare-claim-untouched", _STATUS)
def claims_are_left_as_they_are(bench: Bench) -> None:
    """Prepare and Unprepare change nothing in a claim except the driver's own entries in status.devices.

    A claim with a result and a status of another driver too.
    """
    (device,) = bench.devices()
    other = {"driver": OTHER_DRIVER, "pool": "elsewhere", "device": "its-own"}
    claim = bench.make_claim([device.result("mine"), {**other, "request": "other"}])
    entry = {**other, "conditions": [], "data": {"of": "another driver"}}
    claim = bench.change(claim, lambda document: document["status"].update({"devices": [entry]}))
    before = _others(bench, claim.identity.name, claim.identity.namespace)
    for act in (bench.prepared, bench.unprepared):
        act(claim)
        bench.wait(min(bench.quiet, 1.0))
        now = _others(bench, claim.identity.name, claim.identity.namespace)
        changed = sorted(part for part in before.keys() | now.keys() if before.get(part) != now.get(part))
        expect(
            not changed, f"{', '.join(changed)} of the claim changed", "apply only your own entries of status.devices"
        )


@should(
    "prepare-claims-got",
    "KEP-4381: kubelet names the claims; what every node lists, the API server serves thousands of times",
)
def claims_are_got_by_name(bench: Bench) -> None:
    """Claims are fetched one by one, by the names that kubelet sends, not listed or watched in all namespaces.

    The requests for claims so far, and while one is prepared.
    """
    bench.prepared(bench.claim(bench.devices()))
    everywhere = [
        seen.path
        for seen in bench.server().requests("GET", "/resourceclaims")
        if seen.path.endswith("/resourceclaims") and "metadata.name=" not in seen.query.get("fieldSelector", "")
    ]
    expect(
        not everywhere, f"{everywhere[0] if everywhere else ''} was listed or watched", "fetch claims by their names"
    )


@must(
    "prepare-being-deleted",
    "kubelet, pkg/kubelet/cm/dra/manager.go: it unprepares once the pod's containers have ended",
)
def deleted_claims_stay_prepared(bench: Bench) -> None:
    """A claim that is being deleted stays prepared until kubelet unprepares it.

    A deletion timestamp, while a pod has the claim.
    """
    claim = bench.claim(bench.devices())
    (answer,) = bench.prepared(claim)
    before = bench.edits_if_any(claim, answer)
    bench.change(claim, lambda document: document["metadata"].update({"deletionTimestamp": _DELETED}))
    bench.wait(bench.quiet)
    if before:
        now = bench.edits(claim, answer)
        expect(now == before, f"the edits are {now}, but were {before}", "release a claim only in Unprepare")
    bench.unprepared(claim)


def _others(bench: Bench, name: str, namespace: str) -> dict[str, Any]:
    """The parts of a claim that are not this driver's, by where they stand."""
    document: KubeDocument = copy.deepcopy(bench.server().objects.get(kind_of("resourceclaims"), namespace, name))
    status = document.get("status", {})
    entries = [entry for entry in status.pop("devices", []) if entry.get("driver") != bench.driver]
    kept = ("annotations", "labels", "finalizers", "ownerReferences", "uid")
    return {
        "spec": document.get("spec"),
        "other drivers' status.devices": entries,
        **{f"status.{key}": value for key, value in status.items()},
        **{f"metadata.{key}": document["metadata"].get(key) for key in kept},
    }
