"""NodeUnprepareResources: it has namespace, name and UID alone to go by, and is asked again until it succeeds."""

import uuid
from typing import Any, Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import BenchClaim
from dranode.sanity.kubelet import DRA_SERVICES, ClaimIdentity

_PROTO: Final = "k8s.io/kubelet/pkg/apis/dra/v1/api.proto"
_HELPER: Final = "kubeletplugin/draplugin.go, UnprepareResourceClaims"


def _stranger(name: str = "") -> BenchClaim:
    identity = ClaimIdentity("sanity", name or f"stranger-{uuid.uuid4().hex[:8]}", str(uuid.uuid4()))
    return BenchClaim(identity, {})


@must(
    "unprepare-answers",
    f"{_PROTO}, NodeUnprepareResourcesResponse.claims: every claim must have an entry, even an empty one",
)
def every_unprepare_is_answered(bench: Bench) -> None:
    """The answer has an entry for every claim of the call, by its UID, and no other entries.

    Prepares two claims, and unprepares them one by one.
    """
    claims = bench.two_claims()
    bench.prepared(*claims)
    for claim in claims:
        answers = bench.unprepare(claim)
        expect(set(answers) == {claim.uid}, f"the answer has {listed(answers)} for {claim.uid}", "key it by claim UID")


@must("unprepare-idempotent", f"{_HELPER}: the call must be idempotent")
def unprepare_repeats(bench: Bench) -> None:
    """A repeated Unprepare succeeds.

    Calls it three times.
    """
    claim = bench.claim()
    bench.prepared(claim)
    for _ in range(3):
        bench.unprepared(claim)


@must("unprepare-unknown", f"{_HELPER}: it is no error if a claim is not currently prepared")
def strangers_are_unprepared(bench: Bench) -> None:
    """Unprepare of a claim that was never prepared succeeds.

    Uses a claim that was never prepared.
    """
    bench.unprepared(_stranger())


@must("unprepare-batch", f"{_PROTO}, NodeUnprepareResourcesRequest.claims")
def a_batch_is_unprepared(bench: Bench) -> None:
    """Several claims of one call are each answered, known or not.

    The call has a prepared claim between two unknown ones.
    """
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(_stranger(), claim, _stranger())


@must("unprepare-deleted", f"{_HELPER}: the original claims may have been deleted already")
def deleted_claims_are_unprepared(bench: Bench) -> None:
    """A claim is unprepared after it was deleted from the API server.

    A force-deleted pod leaves such a claim.
    """
    claim = bench.claim(bench.devices())
    bench.prepared(claim)
    bench.forget(claim)
    bench.unprepared(claim)


@must(
    "unprepare-deallocated", f"{_HELPER}: only UID, namespace and name are known; the driver keeps what else it needs"
)
def deallocated_claims_are_unprepared(bench: Bench) -> None:
    """A claim is unprepared after its allocation was cleared.

    The device has to be free again.
    """
    (device,) = bench.devices()
    claim = bench.claim([device])
    bench.prepared(claim)
    bench.change(claim, _clear)
    bench.unprepared(claim)
    bench.prepared(bench.claim([device]))


@must(
    "unprepare-server-away", f"{_HELPER}: the claim is not fetched; a node has to be drained without its control plane"
)
def unprepare_needs_no_server(bench: Bench) -> None:
    """A claim is unprepared while the API server is away.

    The server refuses connections.
    """
    claim = bench.claim(bench.devices())
    bench.prepared(claim)
    bench.server().stop()
    bench.unprepared(claim)


@must("unprepare-other-uid", f"{_HELPER}: claims are told apart by UID")
def other_uids_are_left_alone(bench: Bench) -> None:
    """Unprepare of another UID leaves the claim of that name prepared.

    Uses the name of a prepared claim, with another UID.
    """
    claim = bench.claim(bench.devices())
    (before,) = bench.prepared(claim)
    seen = bench.edits(claim, before) if before.cdi else ""
    bench.unprepared(_stranger(claim.identity.name))
    if before.cdi:
        expect(bench.edits(claim, before) == seen, "the claim's CDI edits have changed", "keep state by claim UID")
    expect(bench.prepared(claim) == [before], "the claim's answer has changed", "keep state by claim UID")


@must(
    "unprepare-after-refusal",
    "kubelet, pkg/kubelet/cm/dra/manager.go: claims of a pod that never started are unprepared too",
)
def refused_claims_are_unprepared(bench: Bench) -> None:
    """A claim that could not be prepared can be unprepared.

    The claim has a device that does not exist.
    """
    result = {**bench.devices()[0].result("r0"), "device": "no-such-device-of-sanity"}
    claim = bench.make_claim([result])
    bench.refused(claim)
    bench.unprepared(claim)


@must("unprepare-then-prepare", "KEP-4381: a claim that several pods use one after another is prepared for each")
def claims_are_prepared_again(bench: Bench) -> None:
    """A claim that was unprepared can be prepared again.

    Does so three times, with the same devices.
    """
    claim = bench.claim()
    names = []
    for _ in range(3):
        (answer,) = bench.prepared(claim)
        names.append([(device.pool, device.device) for device in answer.devices])
        bench.unprepared(claim)
    expect(all(name == names[0] for name in names), f"the devices are {shown(names)}", "answer what is allocated")


@should("unprepare-empty-call", f"{_PROTO}, a list, which may be empty")
def empty_unprepares_are_answered(bench: Bench) -> None:
    """A call without claims gets an empty answer.

    Makes a call with no claim in it.
    """
    answers = bench.unprepare()
    expect(not answers, f"the answer has {listed(answers)}", "answer only for the claims of the call")


@must("unprepare-v1beta1", "kubelet takes the form that it knows; it may be another one after an update of kubelet")
def other_version_unprepares(bench: Bench) -> None:
    """What was prepared by one form of the service can be unprepared by the other.

    Prepares with v1 and unprepares with v1beta1; the device has to be free then.
    """
    if not set(DRA_SERVICES) <= set(bench.info.versions):
        raise Unable(f"the driver serves only {listed(bench.info.versions)}")
    (device,) = bench.devices()
    for prepares, unprepares in (tuple(DRA_SERVICES), tuple(DRA_SERVICES)[::-1]):
        claim = bench.claim([device])
        bench.prepared(claim, version=prepares)
        bench.unprepared(claim, version=unprepares)


def _clear(document: dict[str, Any]) -> None:
    document["status"] = {}
