"""NodePrepareResources: what is answered for claims that can be prepared."""

from typing import Any, Final

from dranode.sanity.bench import OTHER_DRIVER, Bench
from dranode.sanity.breach import Breach, Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import missing_claim
from dranode.sanity.kubelet import DRA_SERVICES, DriverCallError

PROTO: Final = "k8s.io/kubelet/pkg/apis/dra/v1/api.proto"
HELPER: Final = "k8s.io/dynamic-resource-allocation/kubeletplugin/draplugin.go"
KUBELET: Final = "kubelet, pkg/kubelet/cm/dra/manager.go"


@must(
    "prepare-answers", f"{PROTO}, NodePrepareResourcesResponse.claims; {KUBELET}: skipped and unknown claims are errors"
)
def every_claim_is_answered(bench: Bench) -> None:
    """The answer has an entry for every claim of the call, by its UID, and no other entries.

    Prepares a claim, and then another one while the first is prepared.
    """
    for claim in bench.two_claims():
        answers = bench.prepare(claim)
        expect(set(answers) == {claim.uid}, f"the answer has {listed(answers)} for {claim.uid}", "key it by claim UID")


@must("prepare-succeeds", "KEP-4381: the driver publishes what it can prepare")
def a_claim_is_prepared(bench: Bench) -> None:
    """A claim that was allocated published devices is prepared.

    Uses the simplest possible claim.
    """
    bench.prepared(bench.claim())


@must("prepare-published", "KEP-4381: the scheduler allocates any device of a complete pool that matches")
def every_device_is_prepared(bench: Bench) -> None:
    """Every device that is published can be prepared.

    Prepares each published device in turn, up to 64.
    """
    for device in [device for device in bench.offers() if not device.hindered][:64]:
        claim = bench.claim([device])
        bench.prepared(claim)
        bench.unprepared(claim)


@must("prepare-devices-named", f"{PROTO}, Device.pool_name and Device.device_name: required")
def devices_are_those_allocated(bench: Bench) -> None:
    """Each device of the answer has the pool and the name of an allocated one.

    Return what kubelet reports through its pod-resources API.
    """
    claim = bench.claim()
    (answer,) = bench.prepared(claim)
    other = sorted(answer.named - claim.allocated)
    expect(
        not other,
        f"the answer has {listed(other)}, and the allocation {listed(claim.allocated)}",
        "answer with pool and device as in status.allocation.devices.results",
    )


@should("prepare-devices-complete", "KEP-3695: kubelet's pod-resources API has the devices that the driver answered")
def every_device_is_answered(bench: Bench) -> None:
    """The answer contains every allocated device.

    Prepares two devices, if there are two.
    """
    claim = bench.claim(bench.several_devices(2))
    (answer,) = bench.prepared(claim)
    missing = claim.allocated - answer.named
    expect(not missing, f"the answer lacks {listed(missing)}", "answer every allocated device, with or without CDI ids")


@must(
    "prepare-request-names",
    f"{PROTO}, Device.request_names; kubelet gives a container the devices of the request that it names",
)
def requests_are_those_allocated(bench: Bench) -> None:
    """The request names of a device are those for which it was allocated.

    Two requests have one device each.
    """
    claim = bench.claim(bench.several_devices(2), requests=("first", "second"))
    (answer,) = bench.prepared(claim)
    expected = {
        (result["pool"], result["device"], result.get("shareID"), result["request"]) for result in claim.results
    }
    for device in answer.devices:
        # A share that is missing in the answer is another check's finding.
        names = {name for pool, allocated, share, name in expected
                 if (pool, allocated) == (device.pool, device.device)
                 and (None in (share, device.share_id) or share == device.share_id)}  # fmt: skip
        expect(
            not device.requests or set(device.requests) <= names,
            f"device {device.device} has the requests {listed(device.requests)}, but was allocated for {listed(names)}",
            "answer the request of the allocation result",
        )
        expect(
            device.requests or len(expected) == 1,
            f"device {device.device} has no request names, so that containers of every request get it",
            "answer the request of the allocation result",
        )


@must("prepare-count", "resource.k8s.io/v1 types.go, ExactDeviceRequest.count: one request may be given many devices")
def devices_of_one_request_are_answered(bench: Bench) -> None:
    """A driver that answers devices at all answers every device of a request that has several.

    One request has two devices, which the runtime finds by CDI.
    """
    (alone,) = bench.prepared(single := bench.claim())
    bench.unprepared(single)
    alone.need_devices()
    claim = bench.claim(bench.several_devices(2), requests=("both", "both"))
    (answer,) = bench.prepared(claim)
    expected = sorted((result["pool"], result["device"]) for result in claim.results)
    answered = sorted((device.pool, device.device) for device in answer.devices)
    expect(
        answered == expected,
        f"the answer has {listed(answered)}, and the allocation {listed(expected)}",
        "answer every result",
    )
    names = {name for device in answer.devices for name in device.requests}
    expect(names <= {"both"}, f"the answer has the requests {listed(names)}", "answer the request of the result")
    bench.see_ids_resolve(answer)


@must(
    "prepare-idempotent", f"{HELPER}, PrepareResourceClaims: the call must be idempotent, since kubelet may ask again"
)
def prepare_repeats(bench: Bench) -> None:
    """A repeated Prepare gives the same answer.

    Calls Prepare three times, as kubelet does after restarts.
    """
    claim = bench.claim()
    (first,) = bench.prepared(claim)
    for _ in range(2):
        (again,) = bench.prepared(claim)
        expect(
            again == first,
            f"the answer is {shown(again)} after {shown(first)}",
            "answer from the record of what was prepared",
        )


@must("prepare-batch", f"{PROTO}, NodePrepareResourcesRequest.claims; {KUBELET}: one call has all claims of a pod")
def a_batch_is_prepared(bench: Bench) -> None:
    """Several claims of one call are each answered with their own devices.

    Two claims have one device each.
    """
    claims = bench.pair_of_claims()
    answers = bench.prepared(*claims)
    for claim, answer in zip(claims, answers, strict=True):
        expect(
            answer.named <= claim.allocated,
            f"claim {claim.identity} got {listed(answer.named)}",
            "answer each claim by itself",
        )


@should(
    "prepare-batch-isolated",
    f"{PROTO}, NodePrepareResources: failures of single claims can be reported inside the response",
)
def a_bad_claim_fails_alone(bench: Bench) -> None:
    """A claim that cannot be prepared does not affect the others of its call.

    The call has a valid claim and one that does not exist.
    """
    good, bad = bench.claim(), missing_claim()
    try:
        answers = bench.prepare(good, bad)
    except DriverCallError as error:
        raise Breach(f"one unknown claim failed the whole call: {error}", "put the error into its own entry") from error
    expect(set(answers) == {good.uid, bad.uid}, f"the answer has {listed(answers)}", "answer every claim of the call")
    expect(not answers[good.uid].error, f'the good claim failed: "{answers[good.uid].error}"', "prepare it anyway")


@must("prepare-batch-recovers", f"{KUBELET}: kubelet sends the claims of a pod again until all of them are prepared")
def a_failed_batch_is_repeated(bench: Bench) -> None:
    """After a call in which one claim failed, the others can be prepared, and all can be unprepared.

    Prepares the valid claim alone, after a call that also had an invalid one.
    """
    good, bad = bench.claim(), missing_claim()
    try:
        answers = bench.prepare(good, bad)
    except DriverCallError:
        answers = {}
    expect(not (bad.uid in answers and not answers[bad.uid].error), "an unknown claim was prepared", "get every claim")
    bench.prepared(good)
    bench.unprepared(good, bad)


@must(
    "prepare-other-drivers", "KEP-4381: one claim may have devices of several drivers, each of which prepares its own"
)
def other_drivers_are_left_alone(bench: Bench) -> None:
    """Results of other drivers in a claim are ignored.

    The claim has two results, the first of them of another driver.
    """
    (device,) = bench.devices()
    other = {"request": "other", "driver": OTHER_DRIVER, "pool": "elsewhere", "device": "its-own", "adminAccess": False}
    claim = bench.make_claim([other, device.result("mine")])
    (answer,) = bench.prepared(claim)
    names = {entry.device for entry in answer.devices}
    expect("its-own" not in names, f"the answer has {listed(names)}", "prepare only results of your own driver")


@must("prepare-unknown-fields", "Kubernetes API conventions: clients must tolerate fields that they do not know")
def unknown_fields_are_passed_over(bench: Bench) -> None:
    """Fields of a newer API in claim, allocation and results are ignored.

    Adds a field that no API has yet at each level.
    """
    (device,) = bench.devices()
    claim = bench.make_claim([{**device.result("r0"), "ofSanity": {"a": [1]}}])
    bench.change(claim, _add_fields)
    bench.prepared(claim)


@should("prepare-empty-call", f"{PROTO}, NodePrepareResourcesRequest.claims: a list, which may be empty")
def empty_calls_are_answered(bench: Bench) -> None:
    """A call without claims gets an empty answer.

    Makes a call with no claim in it.
    """
    answers = bench.prepare()
    expect(not answers, f"the answer has {listed(answers)}", "answer only for the claims of the call")


@should("prepare-no-results", f"{PROTO}, NodePrepareResourceResponse.devices: a claim may have zero devices")
def empty_allocations_are_prepared(bench: Bench) -> None:
    """A claim that was allocated no devices of the driver gets an answer without devices.

    The allocation has no results.
    """
    claim = bench.make_claim([])
    (answer,) = bench.prepared(claim)
    expect(not answer.devices, f"the answer has {shown(answer.devices)}", "answer the allocated devices")


@should("prepare-listed-twice", f"{PROTO}, NodePrepareResourcesResponse.claims: a map by claim UID")
def doubles_are_answered_once(bench: Bench) -> None:
    """A claim that is listed twice in a call gets one answer.

    The same claim is in the list twice.
    """
    claim = bench.claim()
    answers = bench.prepare(claim, claim)
    expect(
        set(answers) == {claim.uid} and not answers[claim.uid].error,
        f"the answer is {shown(answers)}",
        "prepare it only once",
    )


@must("prepare-v1beta1-agrees", "k8s.io/kubelet/pkg/apis/dra/v1beta1/api.proto: the same messages, without share ids")
def both_versions_agree(bench: Bench) -> None:
    """Both versions of the service return the same devices.

    Prepares one claim through both.
    """
    if not set(DRA_SERVICES) <= set(bench.info.versions):
        raise Unable(f"the driver serves only {listed(bench.info.versions)}")
    claim = bench.claim()
    answers = [bench.prepared(claim, version=version)[0] for version in DRA_SERVICES]
    shown = [
        [(device.requests, device.pool, device.device, device.cdi) for device in answer.devices] for answer in answers
    ]
    expect(shown[0] == shown[1], f"v1 answers {shown[0]}, v1beta1 {shown[1]}", "build both from the same answer")


@must("prepare-long-names", "Kubernetes, object names; resource.k8s.io/v1 types.go, DeviceRequest.name")
def long_names_are_prepared(bench: Bench) -> None:
    """Claims with names as long as the API allows are prepared: namespace 63, claim 253, request 63 characters.

    Uses the longest names that are possible.
    """
    name = ".".join(["n" * 63] * 3 + ["n" * 61])
    claim = bench.make_claim([bench.devices()[0].result("")], name=name, namespace="s" * 63, requests=("q" * 63,))
    (answer,) = bench.prepared(claim)
    bench.see_ids_resolve(answer)
    bench.unprepared(claim)


def _add_fields(document: dict[str, Any]) -> None:
    document["ofSanity"] = True
    document["spec"]["devices"]["ofSanity"] = "x"
    document["status"]["ofSanity"] = {"a": 1}
    document["status"]["allocation"]["devices"]["ofSanity"] = []
