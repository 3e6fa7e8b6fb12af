"""Checks on the forms of allocations: alternatives, shares, admin access, many results."""

from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import OfferedDevice, together

_TYPES: Final = "k8s.io/api/resource/v1/types.go"
_RESULTS: Final = 32


@must(
    "prepare-subrequest",
    f"KEP-4816; {_TYPES}, DeviceRequestAllocationResult.request; kubeletplugin helper, which strips the subrequest",
)
def alternatives_are_named_by_their_request(bench: Bench) -> None:
    """For a result of request `a/b` the answer names request `a`: kubelet knows only top-level names.

    The name that containers use in `resources.claims[].request`.
    """
    claim = bench.claim(bench.devices(), requests=("any/second",))
    (answer,) = bench.prepared(claim)
    names = {name for device in answer.devices for name in device.requests}
    expect(names <= {"any"}, f"the answer has the requests {listed(names)}", "answer with the part before the slash")


@must(
    "prepare-share-id", f"KEP-5075; {_TYPES}, DeviceRequestAllocationResult.shareID; dra/v1/api.proto, Device.share_id"
)
def shares_are_answered(bench: Bench) -> None:
    """The answer contains the shareID of the allocation result as share_id.

    A claim takes one share of a device that claims can share.
    """
    claim = bench.claim(bench.devices(shareable=True))
    (answer,) = bench.prepared(claim, version=_v1(bench))
    answer.need_devices()
    shares = {result["shareID"] for result in claim.results}
    answered = {device.share_id for device in answer.devices}
    expect(
        answered <= shares and answered,
        f"the answer has {shown(answered)}, and the allocation {shown(shares)}",
        "copy shareID",
    )


@must("prepare-no-share-id", "dra/v1/api.proto, Device.share_id: optional; kubelet compares it with the allocation's")
def whole_devices_have_no_share(bench: Bench) -> None:
    """share_id is not set for a device that was allocated as a whole.

    Checks that the field is absent, which is not the same as empty.
    """
    (answer,) = bench.prepared(bench.claim(bench.devices(shareable=False)), version=_v1(bench))
    answered = [device.share_id for device in answer.devices if device.share_id is not None]
    expect(not answered, f"share_id is set to {shown(answered)}", "leave the field unset")


@must("prepare-shared-device", f"KEP-5075; {_TYPES}, Device.allowMultipleAllocations")
def a_device_is_shared(bench: Bench) -> None:
    """Two claims can have shares of one device at the same time.

    Each claim gets one share.
    """
    (device,) = _shared(bench, 2)
    first, second = bench.claim([device]), bench.claim([device])
    (before,), (after,) = bench.prepared(first), bench.prepared(second)
    expect([before] == bench.prepared(first), "the first claim's answer has changed", "keep shares apart")
    expect(after.devices or not before.devices, "the second claim is answered without devices", "keep shares apart")


@must("prepare-shares-in-one-claim", "KEP-5075; kubelet e2e_node, Device ShareID: same device with two ShareIDs")
def a_claim_has_two_shares(bench: Bench) -> None:
    """One claim can have two shares of one device, each of them answered.

    Both requests are for the same device.
    """
    (device,) = _shared(bench, 2)
    claim = bench.claim([device, device])
    (answer,) = bench.prepared(claim, version=_v1(bench))
    answer.need_devices()
    shares = {(result["request"], result["shareID"]) for result in claim.results}
    answered = {(name, entry.share_id) for entry in answer.devices for name in entry.requests}
    if {share for _, share in answered} == {None}:
        # That they have none is another check's finding.
        shares = {(request, None) for request, _ in shares}
    expect(answered == shares, f"the answer has {shown(answered)}, the allocation {shown(shares)}", "answer each share")


@must("prepare-share-kept", "KEP-5075; kubeletplugin helper: Unprepare undoes what Prepare of that claim did")
def another_share_is_kept(bench: Bench) -> None:
    """Unpreparing one claim does not change another claim's share of the same device.

    Compares the CDI specs of the claim that stays.
    """
    (device,) = _shared(bench, 2)
    stays, goes = bench.claim([device]), bench.claim([device])
    (answer,) = bench.prepared(stays)
    before = bench.edits(stays, answer)
    bench.prepared(goes)
    bench.unprepared(goes)
    expect(bench.edits(stays, answer) == before, "the other claim's edits have changed", "keep state by claim")
    expect(bench.prepared(stays) == [answer], "the other claim's answer has changed", "keep state by claim")


@should("prepare-admin-access", f"KEP-5018; {_TYPES}, DeviceRequest.adminAccess: the device can be in use by others")
def admins_share_devices(bench: Bench) -> None:
    """A claim with admin access gets a device that another claim holds, without taking it from that claim.

    One claim has the device; the other one monitors it.
    """
    (device,) = bench.devices(shareable=False)
    holder = bench.claim([device])
    (before,) = bench.prepared(holder)
    admin = bench.make_claim([{**device.result("r0"), "adminAccess": True}])
    bench.prepared(admin)
    bench.unprepared(admin)
    expect(
        bench.prepared(holder) == [before],
        "the holder's answer has changed",
        "do not count admin access as use of the device",
    )
    if before.cdi:
        bench.specs.edits(before.cdi)


@must(
    "prepare-admin-holds-nothing",
    f"KEP-5018; {_TYPES}, DeviceRequest.adminAccess: such claims take no part in the allocation of devices",
)
def admins_hold_nothing(bench: Bench) -> None:
    """A device that a claim uses with admin access can still be prepared for the claim it is allocated to.

    The monitoring claim is prepared first, and the ordinary claim after it.
    """
    (device,) = bench.devices(shareable=False)
    admin = bench.make_claim([{**device.result("r0"), "adminAccess": True}])
    if reason := bench.refused(admin):
        raise Unable(f"the driver refuses admin access: {reason}")
    bench.prepared(bench.claim([device]))


@should("prepare-many-results", f"{_TYPES}, AllocationResultsMaxSize: {_RESULTS}")
def many_results_are_prepared(bench: Bench) -> None:
    """A claim with as many results as the API allows is prepared.

    The claim has 32 results, or as many as there are devices and shares.
    """
    devices = _many(bench)
    if len(devices) < 2:  # noqa: PLR2004 - one is what every other check has
        raise Unable("the driver publishes a single device that cannot be shared")
    claim = bench.claim(devices)
    (answer,) = bench.prepared(claim)
    bench.see_ids_resolve(answer)
    bench.unprepared(claim)


def _many(bench: Bench) -> list[OfferedDevice]:
    return [device for device in together(bench.offers()) for _ in range(device.shares())][:_RESULTS]


def _shared(bench: Bench, shares: int) -> list[OfferedDevice]:
    devices = [device for device in bench.offers() if device.shareable and device.shares() >= shares]
    if not devices:
        raise Unable(f"the driver publishes no device that {shares} claims can share")
    return devices[:1]


def _v1(bench: Bench) -> str:
    if "v1.DRAPlugin" not in bench.info.versions:
        raise Unable("the driver does not serve v1, and v1beta1 has no share ids")
    return "v1.DRAPlugin"
