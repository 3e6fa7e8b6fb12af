"""Decides about claims without an owner or a user, from the answers of kubelet, the runtime and the API server.

    on the node                     what the others answer                       decision
    spec or record without a name   kubelet or the API server knows its UID      named: it gets its name and its pods
    the same                        it has another driver's devices              refused: that driver drains its node
    record                          its claim was deleted, no container uses it  orphan: unprepared after 10 minutes

Until then such a claim keeps what it holds: a missing answer releases nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from dranode.api.errors import ClaimGoneError, DranodeError
from dranode.api.resource import ResourceClaim, ResourceClaimConsumerReference
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.hooks import Recovers
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.prepare import Relation, adopt, allocated_claim, check_pools, relation_to
from dranode.driver.claims.record import Record
from dranode.driver.claims.users import UsedClaim

ORPHAN_SECONDS: Final = 600.0
"""How long an orphan is kept, in seconds."""


class Attestation(msgspec.Struct, frozen=True):
    """What others say about the claims on this node.

    Attributes:
        uses: the claims that kubelet has given to containers, by UID; None if it did not answer.
        running: UIDs of the claims that the runtime's containers have; None if it has not listed its containers.
        claims: the API server's answers, by UID; claims that it was not asked about do not appear.
    """

    uses: Mapping[str, UsedClaim] | None = None
    running: frozenset[str] | None = None
    claims: Mapping[str, ResourceClaim | DranodeError] = msgspec.field(default_factory=dict)

    def use(self, uid: str) -> UsedClaim | None:
        """Return what kubelet says about a claim; None if it says nothing."""
        return (self.uses or {}).get(uid)

    def claim(self, uid: str) -> ResourceClaim | None:
        """Return the claim itself; None if it was not fetched, or has another UID."""
        claim = self.claims.get(uid)
        return claim if isinstance(claim, ResourceClaim) and claim.metadata.uid == uid else None

    def gone(self, uid: str) -> bool:
        """Return whether the claim is known not to exist: there is no claim of its name, or one with another UID.

        An answer without a UID does not count as another claim.
        """
        claim = self.claims.get(uid)
        # Any other error means that nothing is known, so the claim is kept.
        return isinstance(claim, ClaimGoneError) or (
            isinstance(claim, ResourceClaim) and claim.metadata.uid not in ("", uid)
        )


def named(
    record: Record, attested: Attestation, inventory: Inventory, plugin: Plugin, pool: str | None = None
) -> Record:
    """Complete an unfinished record with what others say; what it holds is not changed. `pool` is this node's pool."""
    claim, use = attested.claim(record.uid), attested.use(record.uid)
    # The API server's answer comes first, because it has the UIDs of the pods and the allocation.
    if claim is not None:
        ref = ClaimRef(claim.metadata.namespace, claim.metadata.name, record.uid)
        record = _with_owner(record, ref, claim.status.reserved_for)
        return _completed(record, claim, inventory, plugin, pool)
    if use is not None:
        # kubelet does not say the pods' UIDs, so it has to be asked each time whether a pod may use the claim.
        pods = (ResourceClaimConsumerReference(resource="pods", name=name, uid="") for name in use.pods)
        return _with_owner(record, use.ref, tuple(pods))
    return record


def _with_owner(record: Record, ref: ClaimRef, pods: tuple[ResourceClaimConsumerReference, ...]) -> Record:
    return msgspec.structs.replace(record, namespace=ref.namespace, name=ref.name, pods=pods)


def _completed(record: Record, claim: ResourceClaim, inventory: Inventory, plugin: Plugin, pool: str | None) -> Record:
    try:
        allocated = allocated_claim(record.ref, claim, plugin)
        check_pools(allocated, pool)
        # A claim that is allocated to other devices by now is left to its next Prepare, which undoes it first.
        if relation_to(allocated, record) is not Relation.RECOVERED:
            return record
        return adopt(allocated, claim, record, inventory, plugin)
    except Exception:  # noqa: BLE001 - the claim's next Prepare reports the error
        # For example, a configuration that this driver does not accept. The claim keeps what it holds.
        return record


def refusals(records: Iterable[Record], attested: Attestation, plugin: Plugin) -> tuple[str, ...]:
    """Return a sentence for each unfinished record whose claim cannot be taken over."""
    if not isinstance(plugin, Recovers):
        return ()
    return tuple(
        f"claim {_ref(record, attested)} was allocated device {device} by {owner}, which cannot be taken over; drain "
        "the node while that driver runs, then start this one"
        for record in records
        for device, owner in sorted((device, plugin.foreign(device)) for device in _devices(record, attested, plugin))
        if owner
    )


def _ref(record: Record, attested: Attestation) -> ClaimRef:
    use = attested.use(record.uid)
    return record.ref if record.name or use is None else use.ref


def _devices(record: Record, attested: Attestation, plugin: Plugin) -> frozenset[str]:
    use, claim = attested.use(record.uid), attested.claim(record.uid)
    devices = use.devices if use is not None else frozenset()
    if claim is not None:
        # A result that cannot be read is reported by the next Prepare; here it must not stop the driver.
        results = readable_results(claim.status.allocation)
        devices |= {result.device for result in results if result.driver == plugin.driver}
    return devices


def overlaps(records: Iterable[Record], held: Held) -> Iterator[str]:
    """Yield a sentence for each unfinished record whose CPUs another claim has too; both claims keep them."""
    for record in records:
        for other, cpus in held.cpu_holders(record.held).items():
            if other.uid != record.uid:
                yield (
                    f"claims {record.ref} and {other} were both given CPUs {cpus} before this driver started; "
                    "recreate the pods of one of them"
                )


def unpublished(records: Iterable[Record], inventory: Inventory) -> str | None:
    """Return a sentence about claims that hold devices which the node does not publish now; None if there are none.

    The scheduler only knows published devices by their names. Such a claim keeps what it holds, but the scheduler does
    not see that, and may allocate the same again, which then cannot be prepared.
    """
    pairs = [(record, device) for record in records for device in record.devices if inventory.device(device) is None]
    if not pairs:
        return None
    record, device = pairs[0]
    count = len({record.uid for record, _ in pairs})
    return (
        f"prepared claims hold devices that this node does not publish now ({count}, such as {device} of claim "
        f"{record.ref}): what they hold stays held, but the scheduler does not count it; recreate their pods if the "
        "mode or the grouping was changed"
    )


def unused(records: Iterable[Record], attested: Attestation) -> tuple[Record, ...]:
    """Return the records of claims that no container has, if both kubelet and the runtime have answered."""
    # The one that has not answered may know a container with the claim.
    if attested.uses is None or attested.running is None:
        return ()
    used = attested.uses.keys() | attested.running
    return tuple(record for record in records if record.uid not in used)


def orphans(records: Iterable[Record], attested: Attestation) -> tuple[Record, ...]:
    """Return those of the unused records whose claims were deleted.

    A claim without a name cannot be fetched. It counts as deleted if kubelet lists other claims but not this one. A
    kubelet that lists none may not support listing claims at all.
    """
    return tuple(record for record in records if (attested.gone(record.uid) if record.name else bool(attested.uses)))


class Waiting(msgspec.Struct, frozen=True):
    """The orphans at the last check, with the time at which each was found, in seconds of one monotonic clock."""

    since: Mapping[str, float] = msgspec.field(default_factory=dict)

    def seen(self, records: Iterable[Record], now: float) -> Waiting:
        """Return the orphans after another check. If a claim is not an orphan now, its time starts again later."""
        return Waiting({record.uid: self.since.get(record.uid, now) for record in records})

    def new_since(self, before: Waiting) -> frozenset[str]:
        """Return the orphans that are new since the check before."""
        return frozenset(self.since.keys() - before.since.keys())

    def due(self, now: float) -> frozenset[str]:
        """Return the orphans that are due to be unprepared."""
        return frozenset(uid for uid, since in self.since.items() if now - since >= ORPHAN_SECONDS)
