"""The API server: what a driver asks about slices and claims, and how it copes with a server that fails or is older."""

import copy
from collections.abc import Callable
from typing import Any, Final

from dranode.api.errors import number_of
from dranode.sanity.apiserver import RequestFault
from dranode.sanity.bench import OTHER_DRIVER, Bench
from dranode.sanity.breach import Unable, expect, listed
from dranode.sanity.check import must, should
from dranode.sanity.checks.slices import (
    CONTROLLER,
    SLICES,
    delete_slices,
    expect_back,
    published_slices,
    settled_content,
    take_a_device_out,
)
from dranode.sanity.kinds import KubeDocument, kind_of


@must("slices-conflict", "Kubernetes API conventions: 409 Conflict; get, compare, write")
def conflicts_are_overcome(bench: Bench) -> None:
    """A write that ends in a conflict is repeated.

    The server answers the next two writes with 409.
    """
    _overcomes(bench, RequestFault("PUT", SLICES, 1, status=409), RequestFault("POST", SLICES, 1, status=409))


@must("slices-server-error", f"{CONTROLLER}: a failed sync is repeated")
def server_errors_are_overcome(bench: Bench) -> None:
    """A write that fails on the server is repeated.

    The server answers the next requests for slices with 503.
    """
    _overcomes(bench, *(RequestFault(method, SLICES, 2, status=503) for method in ("PUT", "POST", "GET")))


def _overcomes(bench: Bench, *faults: RequestFault) -> None:
    before = settled_content(bench)
    bench.server().faults.extend(faults)
    delete_slices(bench)
    expect_back(bench, before, "writes failed")


@must("slices-server-restart", "client-go reflectors: list and watch again after a connection is lost")
def a_restarted_server_is_served(bench: Bench) -> None:
    """After an outage of the API server, slices are maintained as before.

    The server goes away and comes back, and then a slice is deleted.
    """

    def go_and_come() -> None:
        bench.server().stop()
        bench.wait(0.3)
        bench.server().start()

    _outlives(bench, go_and_come)


@must("slices-expired", "Kubernetes API concepts: 410 Gone; list again")
def an_expired_watch_is_renewed(bench: Bench) -> None:
    """After the history of a watch has expired (410), slices are maintained as before.

    The server forgets its history, and then the watches end.
    """

    def expire() -> None:
        objects = bench.server().objects
        with objects.changed:
            objects.version += 1000
        objects.forget()

    _outlives(bench, expire)


def _outlives(bench: Bench, happens: Callable[[], object]) -> None:
    before = settled_content(bench)
    happens()
    bench.wait(min(bench.quiet, 0.5))
    delete_slices(bench)
    expect_back(bench, before, "the server came back")


@should(
    "slices-selected", f"{CONTROLLER}: field selector spec.driver and spec.nodeName; a cluster has slices for each node"
)
def slices_are_selected(bench: Bench) -> None:
    """Lists and watches of slices select those of the driver or the node.

    Looks at every list since the driver started.
    """
    published_slices(bench)
    kind = kind_of(SLICES)
    lists = [seen for seen in bench.server().requests("GET", kind.resource) if seen.path.endswith(kind.resource)]
    if not lists:
        raise Unable("the driver lists no slices")
    plain = [seen for seen in lists if "spec." not in seen.query.get("fieldSelector", "")]
    expect(not plain, f"{len(plain)} of {len(lists)} lists have no selector", "set the field selectors")


@should("slices-watched", "Kubernetes API concepts: efficient detection of changes")
def slices_are_watched(bench: Bench) -> None:
    """Slices are watched, not listed over and over.

    Counts the lists during a time without events.
    """
    settled_content(bench)

    def lists() -> int:
        seen = bench.server().requests("GET", SLICES)
        return sum(each.path.endswith(SLICES) and each.query.get("watch") not in ("true", "1") for each in seen)

    before = lists()
    bench.wait(bench.quiet)
    count = lists() - before
    expect(count <= 1, f"{count} lists of slices within {bench.quiet:g} s", "watch from the version of the list")


@should("slices-locked", "Kubernetes API concepts: optimistic concurrency by metadata.resourceVersion")
def updates_are_based_on_a_version(bench: Bench) -> None:
    """Updates contain the resourceVersion that they are based on.

    Somebody else changes a slice, so that the driver has to update it.
    """
    before = settled_content(bench)
    document = next((slice_ for slice_ in bench.slices() if slice_["spec"].get("devices")), bench.slices()[0])
    take_a_device_out(bench, document)
    expect_back(bench, before, "a device was taken out of a slice")
    updates = [seen for seen in bench.server().requests("PUT", SLICES) if isinstance(seen.body, dict)]
    if not updates:
        raise Unable("the driver recreates slices instead of updating them")
    blind = [seen for seen in updates if not seen.body["metadata"].get("resourceVersion")]
    expect(
        not blind, f"{len(blind)} of {len(updates)} updates have no resourceVersion", "send metadata.resourceVersion"
    )


@should("slices-v1beta2", "kubeletplugin helper: v1, then v1beta2, then v1beta1")
def v1beta2_is_used(bench: Bench) -> None:
    """Where the server has no v1 of resource.k8s.io, v1beta2 is used.

    The server is like one of Kubernetes 1.33.
    """
    _older_server(bench, ("v1beta2", "v1beta1"))


@should("slices-v1beta1", "kubeletplugin helper: v1, then v1beta2, then v1beta1")
def v1beta1_is_used(bench: Bench) -> None:
    """Where the server has only v1beta1 of resource.k8s.io, that is used.

    The server is like one of Kubernetes 1.32.
    """
    _older_server(bench, ("v1beta1",))


def _older_server(bench: Bench, versions: tuple[str, ...]) -> None:
    process, server = bench.started(), bench.server()
    before = _restarted(bench)
    newest, server.versions = server.versions, versions
    try:
        process.kill()
        bench.disconnect()
        delete_slices(bench)
        process.start()
        bench.connect()
        expect_back(bench, before, f"a start before a server with {versions[0]}")
        bench.prepared(bench.claim(bench.devices()))
    finally:
        bench.clean()
        server.versions = newest
        process.kill()
        bench.disconnect()


@must(
    "slices-after-restart",
    f"{CONTROLLER}: slices are matched by name and content; needless generations make schedulers start over",
)
def restarts_leave_slices(bench: Bench) -> None:
    """A driver that restarts finds its slices and does not change them.

    Compares names, generations and contents before and after.
    """
    before = _restarted(bench)
    names = _names(bench)
    versions = _versions(bench)
    bench.restart()
    bench.wait(bench.quiet)
    expect(settled_content(bench) == before, "the slices have other contents", "publish the same for the same devices")
    now = _names(bench)
    expect(now == names, f"the slices are {now}, and were {names}", "match the existing slices before writing")
    changed = len(_versions(bench) - versions)
    expect(not changed, f"{number_of(changed, 'slice')} changed, but not in content", "publish in a stable order")


def _versions(bench: Bench) -> set[str]:
    return {document["metadata"]["resourceVersion"] for document in bench.slices()}


def _names(bench: Bench) -> str:
    return listed(f"{each['metadata']['name']} (generation {each['spec']['pool']['generation']})"
                  for each in bench.slices())  # fmt: skip


def _restarted(bench: Bench) -> list[Any]:
    """Return the content that the driver has published a while after a start.

    Checks before may have left slices that it has still to repair, or that lack what the server has dropped then: a
    driver need not try again while it runs. One that starts does both at once.
    """
    bench.restart()
    bench.wait(2 * bench.quiet)
    return settled_content(bench)


# ResourceClaims: what a driver asks about them, and what it must not change.


_STATUS: Final = "KEP-4817; resource.k8s.io/v1 types.go, ResourceClaimStatus.devices: each driver owns its own entries"
_DELETED: Final = "2026-01-01T00:00:00Z"


@must("prepare-claim-untouched", _STATUS)
def claims_are_left_as_they_are(bench: Bench) -> None:
    """Prepare and Unprepare change nothing in a claim except the driver's own entries in status.devices.

    The claim also has a result and a status entry of another driver.
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

    Looks at the requests for claims so far, and at those while one claim is prepared.
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

    The claim has a deletion timestamp while a pod still uses it.
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
