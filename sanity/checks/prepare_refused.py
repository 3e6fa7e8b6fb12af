"""NodePrepareResources: claims that cannot be prepared, and claims that must not be mistaken for one another."""

import time
import uuid
from typing import Final

from dranode.sanity.apiserver import RequestFault
from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.checks.prepare import HELPER, KUBELET
from dranode.sanity.claims import BenchClaim, OfferedDevice, deallocate, missing_claim
from dranode.sanity.kubelet import CALL_SECONDS, ClaimIdentity, DriverCallError


@must("prepare-unknown", f"{HELPER}: the helper gets the claim from the API server, and fails where it cannot")
def unknown_claims_are_refused(bench: Bench) -> None:
    """A claim that does not exist is refused.

    Sends a name that no claim has.
    """
    bench.server()
    expect(
        bench.refused(missing_claim()),
        "a claim that does not exist was prepared",
        "get the claim before you prepare it",
    )


@should("prepare-unknown-named", "KEP-4381: kubelet puts the driver's error into an event of the pod")
def errors_name_the_claim(bench: Bench) -> None:
    """The error for a claim names the claim, for the reader of the pod's events.

    Looks at the error for a claim that does not exist.
    """
    bench.server()
    claim = missing_claim()
    text = bench.refused(claim)
    expect(claim.identity.name in text, f'the error is "{text}"', "put namespace and name of the claim into the error")


@must("prepare-not-allocated", f"{HELPER}: the helper verifies that claims are allocated")
def unallocated_claims_are_refused(bench: Bench) -> None:
    """A claim without an allocation is refused.

    The claim's status is empty.
    """
    claim = bench.claim(bench.devices())
    bench.change(claim, deallocate)
    expect(bench.refused(claim), "a claim without an allocation was prepared", "check status.allocation first")


@must("prepare-unknown-device", "KEP-4381: allocations can be older than what the node has now")
def unknown_devices_are_refused(bench: Bench) -> None:
    """A claim for a device that the driver does not have is refused.

    The device's name is not published.
    """
    result = {**bench.devices()[0].result("r0"), "device": "no-such-device-of-sanity"}
    expect(
        bench.refused(bench.make_claim([result])),
        "a claim for a device that does not exist was prepared",
        "look up the device",
    )


@should("prepare-unknown-pool", "KEP-4381: a device is named by driver, pool and device")
def unknown_pools_are_refused(bench: Bench) -> None:
    """A claim for a device in a pool that the driver does not have is refused.

    No driver has a pool of this name.
    """
    result = {**bench.devices()[0].result("r0"), "pool": "no-such-pool-of-sanity"}
    expect(
        bench.refused(bench.make_claim([result])),
        "a claim for a pool that does not exist was prepared",
        "compare pool and device",
    )


@must("prepare-server-error", f"{KUBELET}: a refused claim is sent again; the deadline of a call is 45 s")
def a_failing_server_is_survived(bench: Bench) -> None:
    """While the API server fails, Prepare is refused within kubelet's 45 s; afterwards it succeeds.

    The server answers every request for a claim with 500.
    """
    claim = bench.claim(bench.devices())
    server = bench.server()
    asked = len(server.requests("GET", "resourceclaims"))
    server.faults.append(RequestFault("GET", "resourceclaims", times=1000, status=500))
    began = time.monotonic()
    refusal = bench.refused(claim)
    took = time.monotonic() - began
    if len(server.requests("GET", "resourceclaims")) == asked:
        raise Unable(
            "the driver did not ask the API server for the claim (it watches claims, or has them from elsewhere)"
        )
    expect(refusal, "the claim was prepared although the API server failed", "refuse what could not be read")
    expect(took < CALL_SECONDS, f"the call took {took:.0f} s", "give up before kubelet's deadline")
    server.faults.clear()
    bench.prepared(claim)


@must(
    "prepare-server-away",
    f"{KUBELET}: a restarted kubelet asks for the claims of every running pod, whatever the API server does",
)
def a_missing_server_is_survived(bench: Bench) -> None:
    """While the API server is unreachable, a prepared claim gets its old answer or an error; afterwards its old answer.

    The server refuses connections.
    """
    claim = bench.claim(bench.devices())
    (first,) = bench.prepared(claim)
    bench.server().stop()
    began = time.monotonic()
    try:
        answer = bench.prepare(claim).get(claim.uid)
        expect(
            answer is None or answer.error or answer == first,
            f"the answer is {shown(answer)}",
            "answer from the record",
        )
    except DriverCallError:
        pass
    took = time.monotonic() - began
    expect(took < CALL_SECONDS, f"the call took {took:.0f} s", "give up before kubelet's deadline")
    bench.server().start()
    (again,) = bench.prepared(claim)
    expect(again == first, f"afterwards the answer is {shown(again)}", "answer from the record")


@must(
    "prepare-refused-frees",
    f"{HELPER}, UnprepareResourceClaims: undoes whatever PrepareResourceClaims did, of a claim that failed too",
)
def refused_claims_hold_nothing(bench: Bench) -> None:
    """A claim that was refused and then unprepared holds none of its devices.

    Prepares another claim with the same device afterwards.
    """
    device = bench.devices()[0]
    _refuse_half(bench, device)
    bench.prepared(bench.claim([device]))


@must(
    "cdi-refused-leaves-nothing",
    f"{HELPER}, UnprepareResourceClaims: undoes whatever PrepareResourceClaims did, of a claim that failed too",
)
def refused_claims_leave_no_spec(bench: Bench) -> None:
    """A claim that was refused and then unprepared leaves nothing in the CDI folder.

    Compares the folder before and after, and searches it for the claim's UID.
    """
    before = set(bench.specs.listing())
    claim = _refuse_half(bench, bench.devices()[0])
    after = bench.specs.listing()
    left = sorted(name for name, content in after.items() if name not in before or claim.uid.encode() in content)
    expect(
        not left,
        f"{', '.join(left)} is left in {bench.specs.folder}",
        "write specs once every device of a claim is granted",
    )


def _refuse_half(bench: Bench, device: OfferedDevice) -> BenchClaim:
    """Have a claim with a device, and with one that does not exist, refused and unprepared.

    Raises:
        Unable: it is prepared.
    """
    missing = {**device.result("second"), "device": "no-such-device-of-sanity"}
    claim = bench.make_claim([device.result("first"), missing])
    if not bench.refused(claim):
        raise Unable("the driver prepares a claim for a device that does not exist (prepare-unknown-device)")
    bench.unprepared(claim)
    return claim


@must("prepare-other-uid", f"{HELPER}: a claim whose UID differs from that of the call got replaced")
def replaced_claims_are_refused(bench: Bench) -> None:
    """A claim that was deleted and recreated under the same name is refused for its old UID.

    The object has another UID than the one that kubelet sends.
    """
    claim = bench.claim(bench.devices())
    other = BenchClaim(ClaimIdentity(claim.identity.namespace, claim.identity.name, str(uuid.uuid4())), claim.document)
    expect(
        bench.refused(other),
        f"claim {claim.identity} was prepared for a UID that it does not have",
        "compare metadata.uid",
    )


@must("prepare-recreated", f"{HELPER}: claims are told apart by UID; the name can be used again")
def recreated_claims_are_prepared(bench: Bench) -> None:
    """A claim that was recreated under the same name is prepared once the old one is unprepared.

    Both claims have the same name and device, and different UIDs.
    """
    old = bench.claim(bench.devices())
    bench.prepared(old)
    new = bench.make_claim(
        old.results, identity=ClaimIdentity(old.identity.namespace, old.identity.name, str(uuid.uuid4()))
    )
    bench.refused(new)  # what it says while the device is held is another check's business
    bench.unprepared(old)
    (answer,) = bench.prepared(new)
    expect(
        {device.device for device in answer.devices} <= {result["device"] for result in new.results},
        f"the new claim got {shown(answer.devices)}",
        "keep records by claim UID",
    )


@should("prepare-reallocated", "KEP-4381: a claim that is not in use can be deallocated and allocated again")
def reallocated_claims_are_prepared(bench: Bench) -> None:
    """A claim that was unprepared, deallocated and allocated again is prepared with its new devices.

    The UID stays the same and the device changes.
    """
    first, second = bench.devices(2)
    claim = bench.claim([first])
    bench.prepared(claim)
    bench.unprepared(claim)
    bench.change(claim, deallocate)
    anew = bench.make_claim([second.result("r0")], identity=claim.identity)
    (answer,) = bench.prepared(anew)
    names = {device.device for device in answer.devices}
    expect(
        names <= {second.name},
        f"the claim has {listed(names)}, not {second.name}",
        "keep no record of an unprepared claim",
    )


@must(
    "prepare-replaced",
    f"{HELPER}: claims are told apart by UID; kubelet unprepares the old claim once its pod has ended",
)
def replaced_claims_get_their_own(bench: Bench) -> None:
    """While the old claim is still prepared, one recreated under the same name gets its own devices or an error.

    Both claims have the same name, and different UIDs and devices.
    """
    first, second = bench.several_devices(2)
    old = bench.claim([first])
    (before,) = bench.prepared(old)
    identity = ClaimIdentity(old.identity.namespace, old.identity.name, str(uuid.uuid4()))
    new = bench.make_claim([second.result("r0")], identity=identity)
    try:
        answer = bench.prepare(new).get(new.uid)
    except DriverCallError:
        answer = None
    devices = () if answer is None or answer.error else answer.devices
    allocated = {(result["pool"], result["device"]) for result in new.results}
    shares = {None, *(result.get("shareID") for result in new.results)}
    wrong = [
        device for device in devices if (device.pool, device.device) not in allocated or device.share_id not in shares
    ]
    expect(not wrong, f"the new claim got {shown(wrong)}", "keep records by claim UID")
    bench.unprepared(new)
    bench.see_ids_resolve(before)
    bench.unprepared(old)


# Two claims for one device, and two claims whose names or UIDs are nearly the same.


_HELPER: Final = "kubeletplugin/draplugin.go, PrepareResourceClaims: the driver is the last line of defense"


@should("prepare-held", _HELPER)
def held_devices_are_refused(bench: Bench) -> None:
    """A device that is prepared for one claim is refused for another.

    Two claims are allocated the same exclusive device.
    """
    (device,) = bench.devices(shareable=False)
    bench.prepared(bench.claim([device]))
    other = bench.claim([device])
    expect(
        bench.refused(other),
        f"{device.name} is prepared for two claims",
        "check who holds a device before you hand it out",
    )


@should("prepare-held-in-call", _HELPER)
def one_call_gives_a_device_once(bench: Bench) -> None:
    """Of two claims for the same device in one call, at most one is prepared.

    Both claims are in one list.
    """
    (device,) = bench.devices(shareable=False)
    claims = [bench.claim([device]), bench.claim([device])]
    try:
        answers = bench.prepare(*claims)
    except DriverCallError:
        return
    given = [uid for uid, answer in answers.items() if not answer.error]
    expect(len(given) < len(claims), f"{device.name} is prepared for two claims", "decide about claims one by one")


@must("prepare-refused-leaves-holder", "kubeletplugin helper: Unprepare undoes what Prepare of that claim did")
def refusals_leave_the_holder_alone(bench: Bench) -> None:
    """A claim that is refused because its device is held changes nothing for the holder, even when it is unprepared.

    Prepares and unprepares the claim that came too late.
    """
    (device,) = bench.devices(shareable=False)
    holder, late = bench.claim([device]), bench.claim([device])
    (before,) = bench.prepared(holder)
    enforced = bench.refused(late)
    bench.unprepared(late)
    expect(bench.prepared(holder) == [before], "the holder's answer has changed", "undo only what that claim had")
    if before.cdi:
        bench.specs.edits(before.cdi)
    expect(
        not enforced or bench.refused(bench.claim([device])),
        f"{device.name} is free after the Unprepare of a claim that never had it",
        "free a device only with the claim that holds it",
    )


@must("prepare-freed", "kubeletplugin helper, UnprepareResourceClaims; KEP-4381")
def freed_devices_are_given_again(bench: Bench) -> None:
    """A device is prepared for another claim once its holder is unprepared.

    Prepares and unprepares three claims with the same device, one after the other.
    """
    (device,) = bench.devices()
    for _ in range(3):
        claim = bench.claim([device])
        bench.prepared(claim)
        bench.unprepared(claim)


_UID: Final = "Kubernetes, object names and IDs: a UID alone is unique over the time and space of a cluster"


@must("prepare-namesakes", _UID)
def namesakes_are_apart(bench: Bench) -> None:
    """Claims of the same name in two namespaces are different claims.

    Prepares both and unprepares one; the other has to stay.
    """
    first, second = bench.several_devices(2)
    _stay_apart(
        bench, bench.claim([first], name="same", namespace="one"), bench.claim([second], name="same", namespace="two")
    )


@must("prepare-similar-uids", _UID)
def similar_uids_are_apart(bench: Bench) -> None:
    """Claims whose UIDs differ in one character are different claims.

    The first or the last character differs, which a driver that shortens UIDs would not see.
    """
    text = str(uuid.uuid4())
    for other in (_changed(text, 0), _changed(text, len(text) - 1)):
        first, second = bench.several_devices(2)
        claims = [
            bench.make_claim([device.result("")], identity=ClaimIdentity("sanity", f"claim-{number}", uid))
            for number, (device, uid) in enumerate(((first, text), (second, other)))
        ]
        _stay_apart(bench, claims[0], claims[1])
        bench.unprepared(claims[1])


@must("unprepare-similar-names", _UID)
def similar_names_are_apart(bench: Bench) -> None:
    """Unprepare does not touch other claims whose names begin with the claim's name.

    Unprepares `a` while `a-1` is prepared.
    """
    first, second = bench.several_devices(2)
    _stay_apart(bench, bench.claim([first], name="a"), bench.claim([second], name="a-1"))


def _stay_apart(bench: Bench, gone: BenchClaim, kept: BenchClaim) -> None:
    """Prepare both, unprepare the first, and check that nothing has changed for the second.

    Raises:
        Breach: one has something of the other, or is let go of with it.
    """
    answers = bench.prepared(gone, kept)
    for claim, answer in zip((gone, kept), answers, strict=True):
        expect(
            answer.named <= claim.allocated,
            f"claim {claim.identity} ({claim.uid}) got {listed(answer.named)}",
            "keep records by claim UID",
        )
    before = [bench.edits_if_any(claim, answer) for claim, answer in zip((gone, kept), answers, strict=True)]
    bench.unprepared(gone)
    what = f"claim {kept.identity} ({kept.uid}), after {gone.identity} ({gone.uid}) was unprepared"
    now = bench.edits_if_any(kept, answers[1])
    expect(now == before[1], f"{what}, has the edits {now}, but had {before[1]}", "name files by the whole UID")
    (again,) = bench.prepared(kept)
    expect(
        again == answers[1],
        f"{what}, is answered with {shown(again)}, but was answered with {shown(answers[1])}",
        "keep records by claim UID",
    )


def _changed(text: str, at: int) -> str:
    other = "a" if text[at] != "a" else "b"
    return text[:at] + other + text[at + 1 :]
