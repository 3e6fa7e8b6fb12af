"""Claims that must not be mixed up: two for one device, and two whose names or UIDs are nearly the same."""

from __future__ import annotations

import uuid
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import expect
from dranode.sanity.check import must, should
from dranode.sanity.claims import BenchClaim
from dranode.sanity.kubelet import ClaimIdentity, DriverCallError

_HELPER: Final = "kubeletplugin/draplugin.go, PrepareResourceClaims: the driver is the last line of defense"


@should("prepare-held", _HELPER)
def held_devices_are_refused(bench: Bench) -> None:
    """A device that is prepared for one claim is refused for another.

    Two claims that were allocated the same exclusive device.
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

    Both in one list.
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

    Prepare and Unprepare of the claim that came too late.
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

    Each of the driver's first devices, twice.
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

    Both prepared; one is let go of, and the other stays.
    """
    first, second = bench.several_devices(2)
    _stay_apart(
        bench, bench.claim([first], name="same", namespace="one"), bench.claim([second], name="same", namespace="two")
    )


@must("prepare-similar-uids", _UID)
def similar_uids_are_apart(bench: Bench) -> None:
    """Claims whose UIDs differ in one character are different claims.

    The first or the last character differs, as if by a name that was cut.
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

    `a`, beside `a-1`.
    """
    first, second = bench.several_devices(2)
    _stay_apart(bench, bench.claim([first], name="a"), bench.claim([second], name="a-1"))


def _stay_apart(bench: Bench, gone: BenchClaim, kept: BenchClaim) -> None:
    """Prepare both, unprepare the first, and see that all is as before for the second.

    Raises:
        Breach: one has something of the other, or is let go of with it.
    """
    answers = bench.prepared(gone, kept)
    for claim, answer in zip((gone, kept), answers, strict=True):
        expect(
            answer.named <= claim.allocated,
            f"claim {claim.identity} ({claim.uid}) got {sorted(answer.named)}",
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
        f"{what}, is answered with {again}, but was answered with {answers[1]}",
        "keep records by claim UID",
    )


def _changed(text: str, at: int) -> str:
    other = "a" if text[at] != "a" else "b"
    return text[:at] + other + text[at + 1 :]
