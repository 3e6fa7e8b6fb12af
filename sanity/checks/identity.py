"""Checks that a claim is told from others by its UID, all of it, and by nothing else."""

from __future__ import annotations

import uuid
from typing import Final

from dranode.sanity.bench import Bench
from dranode.sanity.breach import expect
from dranode.sanity.check import must
from dranode.sanity.checks.available import several_devices
from dranode.sanity.claims import BenchClaim
from dranode.sanity.kubelet import ClaimAnswer, ClaimIdentity

_UID: Final = "Kubernetes, object names and IDs: a UID alone is unique over the time and space of a cluster"


@must("prepare-namesakes", "Claims of one name in two namespaces are two claims.", _UID)
def namesakes_are_apart(bench: Bench) -> None:
    """Both prepared; one is let go of, and the other stays."""
    first, second = several_devices(bench, 2)
    _stay_apart(
        bench, bench.claim([first], name="same", namespace="one"), bench.claim([second], name="same", namespace="two")
    )


@must("prepare-similar-uids", "Claims whose UIDs differ in one character are two claims.", _UID)
def similar_uids_are_apart(bench: Bench) -> None:
    """The first or the last character differs, as if by a name that was cut."""
    text = str(uuid.uuid4())
    for other in (_changed(text, 0), _changed(text, len(text) - 1)):
        first, second = several_devices(bench, 2)
        claims = [
            bench.make_claim([device.result("")], identity=ClaimIdentity("sanity", f"claim-{number}", uid))
            for number, (device, uid) in enumerate(((first, text), (second, other)))
        ]
        _stay_apart(bench, claims[0], claims[1])
        bench.unprepared(claims[1])


@must("unprepare-similar-names", "Unprepare leaves claims alone whose names begin as the claim's.", _UID)
def similar_names_are_apart(bench: Bench) -> None:
    """`a`, beside `a-1`."""
    first, second = several_devices(bench, 2)
    _stay_apart(bench, bench.claim([first], name="a"), bench.claim([second], name="a-1"))


def _stay_apart(bench: Bench, gone: BenchClaim, kept: BenchClaim) -> None:
    """Prepare both, unprepare the first, and see that all is as before for the second.

    Raises:
        Breach: one has something of the other, or is let go of with it.
    """
    answers = bench.prepared(gone, kept)
    for claim, answer in zip((gone, kept), answers, strict=True):
        allocated = {(result["pool"], result["device"]) for result in claim.results}
        answered = {(device.pool, device.device) for device in answer.devices}
        expect(
            answered <= allocated,
            f"claim {claim.identity} ({claim.uid}) got {sorted(answered)}",
            "keep records by claim UID",
        )
    before = [_seen(bench, claim, answer) for claim, answer in zip((gone, kept), answers, strict=True)]
    bench.unprepared(gone)
    what = f"claim {kept.identity} ({kept.uid}), after {gone.identity} ({gone.uid}) was unprepared"
    now = _seen(bench, kept, answers[1])
    expect(now == before[1], f"{what}, has the edits {now}, and had {before[1]}", "name files by the whole UID")
    (again,) = bench.prepared(kept)
    expect(again == answers[1], f"{what}, is answered {again}, and was {answers[1]}", "keep records by claim UID")


def _seen(bench: Bench, claim: BenchClaim, answer: ClaimAnswer) -> str:
    return bench.edits(claim, answer) if answer.cdi and bench.places.cdi is not None else ""


def _changed(text: str, at: int) -> str:
    other = "a" if text[at] != "a" else "b"
    return text[:at] + other + text[at + 1 :]
