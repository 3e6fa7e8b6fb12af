"""NodePrepareResources: claims that were made anew under their names, or allocated anew."""

from __future__ import annotations

import uuid

from dranode.sanity.bench import Bench
from dranode.sanity.breach import expect
from dranode.sanity.check import must, should
from dranode.sanity.checks.available import several_devices
from dranode.sanity.checks.prepare import HELPER
from dranode.sanity.claims import BenchClaim, deallocate
from dranode.sanity.kubelet import ClaimIdentity, DriverCallError


@must(
    "prepare-other-uid",
    "A claim that was deleted and made anew under its name is refused by its old UID.",
    f"{HELPER}: a claim whose UID differs from that of the call got replaced",
)
def replaced_claims_are_refused(bench: Bench) -> None:
    """The object has another UID than kubelet sends."""
    claim = bench.claim(bench.devices())
    other = BenchClaim(ClaimIdentity(claim.identity.namespace, claim.identity.name, str(uuid.uuid4())), claim.document)
    expect(
        bench.refused(other), f"claim {claim.identity} was prepared for a UID that it has not", "compare metadata.uid"
    )


@must(
    "prepare-recreated",
    "A claim that was made anew under its name is prepared, once the old one is unprepared.",
    f"{HELPER}: claims are told apart by UID; the name can be used again",
)
def recreated_claims_are_prepared(bench: Bench) -> None:
    """The same name, another UID, the same device."""
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
        f"the new claim got {answer.devices}",
        "keep records by claim UID",
    )


@should(
    "prepare-reallocated",
    "A claim that was unprepared, deallocated and allocated anew is prepared with its new devices.",
    "KEP-4381: a claim that is not in use can be deallocated and allocated again",
)
def reallocated_claims_are_prepared(bench: Bench) -> None:
    """Another device under the same UID."""
    first, second = bench.devices(2)
    claim = bench.claim([first])
    bench.prepared(claim)
    bench.unprepared(claim)
    bench.change(claim, deallocate)
    anew = bench.make_claim([second.result("r0")], identity=claim.identity)
    (answer,) = bench.prepared(anew)
    names = {device.device for device in answer.devices}
    expect(
        names <= {second.name}, f"the claim has {sorted(names)}, not {second.name}", "keep no record of what is undone"
    )


@must(
    "prepare-replaced",
    "A claim that was made anew under its name gets its own devices or an error while the old one is prepared.",
    f"{HELPER}: claims are told apart by UID; kubelet unprepares the old claim once its pod has ended",
)
def replaced_claims_get_their_own(bench: Bench) -> None:
    """The same name, another UID, another device."""
    first, second = several_devices(bench, 2)
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
    wrong = [each for each in devices if (each.pool, each.device) not in allocated or each.share_id not in shares]
    expect(not wrong, f"the new claim got {wrong}", "keep records by claim UID")
    bench.unprepared(new)
    if before.cdi and bench.places.cdi is not None:
        bench.specs.edits(before.cdi)
    bench.unprepared(old)
