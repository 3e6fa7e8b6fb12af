"""Devices that somebody holds: the driver is the last line of defence against handing one out twice."""

from __future__ import annotations

from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import expect
from dranode.sanity.check import must, should
from dranode.sanity.kubelet import DriverCallError

_HELPER: Final = "kubeletplugin/draplugin.go, PrepareResourceClaims: the driver is the last line of defense"


@should(
    "prepare-held",
    "A device that is prepared for one claim is refused to another.",
    _HELPER,
)
def held_devices_are_refused(bench: Bench) -> None:
    """Two claims that were allocated the same exclusive device."""
    (device,) = bench.devices(shareable=False)
    bench.prepared(bench.claim([device]))
    other = bench.claim([device])
    expect(
        bench.refused(other), f"{device.name} is prepared for two claims", "look who holds a device before giving it"
    )


@should(
    "prepare-held-in-call",
    "Of two claims of one call to the same device at most one is prepared.",
    _HELPER,
)
def one_call_gives_a_device_once(bench: Bench) -> None:
    """Both in one list."""
    (device,) = bench.devices(shareable=False)
    claims = [bench.claim([device]), bench.claim([device])]
    try:
        answers = bench.prepare(*claims)
    except DriverCallError:
        return
    given = [uid for uid, answer in answers.items() if not answer.error]
    expect(len(given) < len(claims), f"{device.name} is prepared for two claims", "decide about claims one by one")


@must(
    "prepare-refused-leaves-holder",
    "A claim that is refused because its device is held changes nothing for the holder, unprepared or not.",
    "kubeletplugin helper: Unprepare undoes what Prepare of that claim did",
)
def refusals_leave_the_holder_alone(bench: Bench) -> None:
    """Prepare and Unprepare of the claim that came too late."""
    (device,) = bench.devices(shareable=False)
    holder, late = bench.claim([device]), bench.claim([device])
    (before,) = bench.prepared(holder)
    enforced = bench.refused(late)
    bench.unprepared(late)
    expect(bench.prepared(holder) == [before], "the holder's answer has changed", "undo what that claim had alone")
    if before.cdi:
        bench.specs.edits(before.cdi)
    expect(
        not enforced or bench.refused(bench.claim([device])),
        f"{device.name} is free after the Unprepare of a claim that never had it",
        "free a device by the claim that holds it",
    )


@must(
    "prepare-freed",
    "A device is prepared for another claim once its holder is unprepared.",
    "kubeletplugin helper, UnprepareResourceClaims; KEP-4381",
)
def freed_devices_are_given_again(bench: Bench) -> None:
    """Each of the driver's first devices, twice."""
    (device,) = bench.devices()
    for _ in range(3):
        claim = bench.claim([device])
        bench.prepared(claim)
        bench.unprepared(claim)
