"""Decides Prepare and Unprepare: claims and what other claims hold go in, decisions come out.

The order of commits and effects makes crashes harmless. A claim is on record before anything is done for it and until
everything is undone, so it is on record whenever it may hold something on the node:

    Prepare     Commit(STARTED) -> Configure -> Commit(COMPLETED) -> WriteFiles   with hardware to configure
                Commit(COMPLETED) -> WriteFiles                                   without
    Unprepare   Commit(STARTED) -> Restore -> RemoveFiles -> Commit(drop)         with hardware to restore
                RemoveFiles -> Commit(drop)                                       without

After a crash, kubelet calls again and everything is repeated from the start. That is always right: `Configure` and
`Restore` can be repeated, and the files are derived from the record.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Protocol

import msgspec
from msgspec.structs import replace

from dranode.api.documents import encode_json
from dranode.api.errors import ClaimConflictError, ClaimError, DocumentError, DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import (
    Answer,
    Changed,
    Commit,
    Configure,
    Decision,
    Effect,
    NotEnforced,
    Refused,
    RemoveFiles,
    Restore,
    WriteFiles,
)
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, configs_for, results_of
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.hooks import Recovers, needs_configuring, plain_grants, was_configured
from dranode.driver.claims.metadata import POD_CLAIM_NAME, requests_of
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.record import ClaimState, Record, fingerprint, record_of, uid_problem


def allocated_claim(ref: ClaimRef, claim: ResourceClaim, plugin: Plugin) -> AllocatedClaim:
    """Return this driver's part of a claim, with decoded configurations. Other drivers' parts are not read.

    Raises:
        ClaimError: the claim has another UID or an unusable one, is not allocated, or one of this driver's results or
            configurations is not valid.
    """
    # A claim that was deleted and created again has another UID, and kubelet means the deleted one.
    if claim.metadata.uid != ref.uid:
        raise ClaimError(
            f"claim {ref} is now another claim: its UID is {claim.metadata.uid or 'missing'}, "
            f"but kubelet asked for {ref.uid}; recreate the pod"
        )
    problem = uid_problem(ref.uid)
    if problem is not None:
        raise ClaimError(f"claim {ref} cannot be prepared because its UID {problem}; recreate the claim")
    allocation = claim.status.allocation
    if allocation is None:
        raise ClaimError(
            f"claim {ref} has no allocation, so there is nothing to prepare; recreate its pod, so that the scheduler "
            "allocates it"
        )
    try:
        pairs = tuple(
            (result, configs_for(result, allocation.devices.config, claim.spec.devices))
            for result in results_of(allocation, plugin.driver)
        )
    except DocumentError as error:
        raise ClaimError(f"claim {ref} cannot be prepared because its allocation cannot be read: {error}") from error
    return AllocatedClaim(
        ref,
        tuple(
            AllocatedResult(
                result, tuple(replace(config, parameters=plugin.parse_config(config)) for config in configs)
            )
            for result, configs in pairs
        ),
    )


def duplicate_uids(refs: Iterable[ClaimRef]) -> dict[str, Refused]:
    """Return a refusal for each UID that several claims of one call have: there is only one answer for each UID."""
    by_uid: dict[str, dict[ClaimRef, None]] = {}
    for ref in refs:
        by_uid.setdefault(ref.uid, {})[ref] = None
    return {
        uid: Refused(
            f"claims {' and '.join(map(str, claims))} have the same UID {uid} in one call, so neither is prepared; "
            "recreate their pods"
        )
        for uid, claims in by_uid.items()
        if len(claims) > 1
    }


def check_pools(claim: AllocatedClaim, pool: str | None) -> None:
    """Refuse devices of other pools than this node's; with None the pool is not checked.

    Every node has devices with the same names, so the name alone does not identify a device of this node.

    Raises:
        ClaimError: a result is from another pool.
    """
    for result in (part.result for part in claim.results):
        if pool is not None and result.pool != pool:
            raise ClaimError(
                f'request "{result.request}" of claim {claim.ref} was allocated device "{result.device}" of pool '
                f'"{result.pool}", but this node\'s pool is "{pool}"; delete the claim so that it is allocated again'
            )


def without_repeated_configs(claim: AllocatedClaim) -> AllocatedClaim:
    """Return the claim without repeated configurations. Fingerprints include them, so that old records stay valid."""
    return replace(
        claim,
        results=tuple(
            replace(result, configs=tuple(config for config in result.configs if not config.repeated))
            for result in claim.results
        ),
    )


class Relation(Enum):
    """How a claim relates to its record.

    NEW: there is no record. SAME: the record is for this allocation. CHANGED: it is for another allocation. RECOVERED:
    only the CDI spec says what the claim holds. LOST: nothing says what it holds.
    """

    NEW = auto()
    SAME = auto()
    RECOVERED = auto()
    LOST = auto()
    CHANGED = auto()


def relation_to(claim: AllocatedClaim, record: Record | None) -> Relation:
    """Return how a claim relates to its record."""
    if record is None:
        return Relation.NEW
    if record.lost:
        return Relation.LOST
    if record.fingerprint:
        return Relation.SAME if record.fingerprint == fingerprint(claim) else Relation.CHANGED
    # A CDI spec of another driver may say which CPUs a claim has, but not from which results.
    return Relation.RECOVERED if not record.grants or _granted(record) == _allocated(claim) else Relation.CHANGED


def _granted(record: Record) -> list[tuple[object, ...]]:
    return [(grant.request, grant.pool, grant.device, grant.share_id, grant.admin) for grant in record.grants]


def _allocated(claim: AllocatedClaim) -> list[tuple[object, ...]]:
    results = (result.result for result in claim.results)
    return [
        (result.request, result.pool, result.device, result.share_id, bool(result.admin_access)) for result in results
    ]


class Circumstances(msgspec.Struct, frozen=True):
    """What a decision depends on besides the claim and its record.

    Attributes:
        plugin: the driver.
        inventory: the hardware that it has found.
        held: what claims on record hold, and claims of the same call that were decided already.
        pool: the name of the pool in which the devices are published; None if claims may come from any pool.
        blocked: why no new claim may be prepared; None if new claims may be prepared.
        not_enforced: why containers are not held to claims; None if they are.
    """

    plugin: Plugin
    inventory: Inventory
    held: Held
    pool: str | None = None
    blocked: str | None = None
    not_enforced: NotEnforced | None = None


def decide_claim(ref: ClaimRef, claim: ResourceClaim, record: Record | None, given: Circumstances) -> Record | Changed:
    """Decide what a claim gets; it may be on record already.

    Returns:
        The record to commit, without grants if nothing of the claim is this driver's; `Changed` if the claim is
        prepared for another allocation than it has now.

    Raises:
        ClaimConflictError: another claim holds what this one was allocated.
        ClaimError: the claim cannot be prepared as it is, no new claims may be prepared, or containers would not be
            held to the claim.
    """
    allocated = allocated_claim(ref, claim, given.plugin)
    # This applies to claims on record too: kubelet asks again before it creates a new sandbox, and its containers would
    # not be pinned.
    why = given.not_enforced
    if why is not None and not why.chosen and any(not result.result.admin_access for result in allocated.results):
        raise ClaimError(why.message)
    relation = relation_to(allocated, record)
    # Containers may already run with what the record says, so a repeated Prepare has the same answer.
    if relation is Relation.SAME and record is not None:
        return refreshed(record, claim)
    # Only after the check of the record: a claim on record stays prepared even if the pool has another name by now.
    check_pools(allocated, given.pool)
    if relation is Relation.CHANGED and record is not None:
        return Changed(record)
    if relation is Relation.RECOVERED and record is not None:
        return adopt(allocated, claim, record, given.inventory, given.plugin)
    # A lost claim does not block itself: its allocation says what it holds, which is decided again here.
    if relation is Relation.NEW and allocated.results and given.blocked is not None:
        raise ClaimError(given.blocked)
    _check_devices(allocated, given.held, given.inventory)
    grant = given.plugin.grant(without_repeated_configs(allocated), given.held, given.inventory)
    return _record(allocated, claim, grant, given.plugin)


def _record(allocated: AllocatedClaim, claim: ResourceClaim, grant: ClaimGrant, plugin: Plugin) -> Record:
    # STARTED until its hardware is configured: after a crash, Unprepare then knows that it may have to be restored.
    state = ClaimState.STARTED if needs_configuring(plugin, grant.grants) else ClaimState.COMPLETED
    record = refreshed(record_of(allocated, grant, (), state), claim)
    # The ledger writes all claims of a call together, so a grant that cannot be written would fail them all.
    try:
        encode_json(record)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ClaimError(
            f"claim {allocated.ref} cannot be recorded: {plugin.driver} returned a grant that is not plain JSON, for "
            f"example in Grant.state: {error}; this is an error of the driver"
        ) from error
    return record


def refused_beforehand(
    ref: ClaimRef, claim: ResourceClaim, plugin: Plugin, pool: str, published: Inventory | None
) -> str:
    """Return why a Prepare of the claim would fail, whatever the ledger says; empty if nothing is wrong with the claim.

    Args:
        ref: the claim.
        claim: the claim as it is in the API server.
        plugin: its driver, which only has to decode its configurations.
        pool: the name of the node's pool.
        published: the devices of the pool; None if they are unknown.
    """
    try:
        allocated = allocated_claim(ref, claim, plugin)
        check_pools(allocated, pool)
        if published is not None:
            _check_devices(allocated, Held(), published)
    except ClaimError as error:
        return str(error)
    return ""


def _check_devices(claim: AllocatedClaim, held: Held, inventory: Inventory) -> None:
    # The claim's own devices so far, and whether it has only a share of each.
    own: dict[str, bool] = {}
    for result in (part.result for part in claim.results):
        device = inventory.device(result.device)
        if device is None:
            raise ClaimError(
                f'request "{result.request}" of claim {claim.ref} was allocated device "{result.device}" of pool '
                f'"{result.pool}", which this node does not have; delete the claim so that it is allocated again'
            )
        # Admin access takes nothing from other claims.
        if result.admin_access:
            continue
        # Whether a holder has the device whole follows from its grant: the device may have been published with other
        # properties when that claim was prepared.
        share = bool(device.allow_multiple_allocations and (result.share_id or result.consumed_capacity))
        holders = held.holders(inventory.sources_of(result.device), whole=share)
        if holders:
            raise ClaimConflictError(
                f'claim {claim.ref} was allocated {"a share of " if share else ""}device "{result.device}", which '
                f"claim {' and '.join(map(str, holders))} still holds{' whole' if share else ''}; it can be prepared "
                "once that one is unprepared"
            )
        # Two shares of one device are fine, but not a share beside the whole device.
        if result.device in own and not (share and own[result.device]):
            raise ClaimError(
                f'claim {claim.ref} was allocated device "{result.device}" twice, which cannot be shared; delete the '
                "claim so that it is allocated again"
            )
        own[result.device] = share


def adopt(
    allocated: AllocatedClaim, claim: ResourceClaim, record: Record, inventory: Inventory, plugin: Plugin
) -> Record:
    """Complete a recovered record with the claim's allocation. What the claim holds is not decided again.

    Raises:
        ClaimError: a configuration of the claim contradicts the machine.
    """
    # Containers may already run on what the record says, so that stays.
    grants = record.grants
    if not grants and isinstance(plugin, Recovers):
        recovered = ClaimGrant((), cpus=record.cpus, held=record.held)
        grants = plugin.adopted(without_repeated_configs(allocated), recovered, inventory)
    elif not grants:
        grants = plain_grants(allocated)
    completed = _record(allocated, claim, ClaimGrant(grants), plugin)
    return msgspec.structs.replace(completed, edits=record.edits, cpus=record.cpus, held=record.held)


def refreshed(record: Record, claim: ResourceClaim) -> Record:
    """Return the record with the claim's current pods, and the name by which its pod refers to it."""
    pods, name = claim.status.reserved_for, claim.metadata.annotations.get(POD_CLAIM_NAME, "")
    if (pods, name) == (record.pods, record.pod_claim_name):
        return record
    return msgspec.structs.replace(record, pods=pods, pod_claim_name=name)


def prepare_decision(records: Iterable[Record], on_record: Callable[[str], Record | None]) -> Decision:
    """Return the decision that prepares these records; a record that `on_record` returns is not committed again."""
    records = tuple(records)
    effects: list[Effect] = []
    changed = tuple(record for record in records if on_record(record.uid) != record)
    started = tuple(record for record in records if record.state is ClaimState.STARTED)
    if started:
        effects.extend(Configure(record) for record in started)
        # One commit for all claims of the call, because each commit is flushed to the disk.
        effects.append(Commit(put=tuple(completed(record) for record in started)))
    # Also for records that have not changed, because their files may have been lost.
    effects.extend(map(WriteFiles, records))
    return Decision(Commit(put=changed), tuple(effects))


def unprepare_decision(
    claims: Iterable[ClaimRef], on_record: Mapping[str, Record], damaged: Iterable[str], plugin: Plugin
) -> Decision:
    """Return the decision that undoes these claims. A claim without a record may still have files.

    Args:
        claims: the claims to undo.
        on_record: their records, by UID.
        damaged: the UIDs of claims that are known only by a damaged row.
        plugin: the driver.
    """
    # A call may name a claim twice. It is undone once, and both entries get the same answer.
    claims = tuple(dict.fromkeys(claims))
    records = tuple({claim.uid: on_record[claim.uid] for claim in claims if claim.uid in on_record}.values())
    # STARTED again before the hardware is restored, so that a crash in between does not leave it as COMPLETED.
    started = tuple(restarted(record) for record in records if was_configured(plugin, record))
    effects: list[Effect] = [Restore(record) for record in started]
    for claim in claims:
        record = on_record.get(claim.uid)
        effects.append(RemoveFiles(claim, requests_of(record) if record else ()))
    # The records go last: as long as hardware or files are left, the claim keeps its devices.
    dropped = (*(record.uid for record in records), *damaged)
    if dropped:
        effects.append(Commit(drop=dropped))
    return Decision(Commit(put=started), tuple(effects))


def restarted(record: Record) -> Record:
    """Return the record of a claim whose hardware may be in any state."""
    return msgspec.structs.replace(record, state=ClaimState.STARTED)


def completed(record: Record) -> Record:
    """Return the record of a claim whose hardware is configured."""
    return msgspec.structs.replace(record, state=ClaimState.COMPLETED)


# Returns whether the caller still waits for the answer. A call that was given up must not be carried out later: kubelet
# may have called the opposite method since, and got its answer.
Awaited = Callable[[], bool]


def always() -> bool:
    """Return True, because the caller of a Python function always waits for its result."""
    return True


class Claims(Protocol):
    """The source of claims: the API server, or a folder."""

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Return each claim as it is now, or the error for a claim that cannot be fetched."""


class Preparer(Protocol):
    """The node that decides and acts: `dranode.driver.node.node.NodeClaims`."""

    def prepare(
        self, claims: Mapping[ClaimRef, ResourceClaim | DranodeError], awaited: Awaited = always
    ) -> Mapping[str, Answer]:
        """Prepare claims; returns an answer for each, by UID."""

    def unprepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Mapping[str, Refused | None]:
        """Unprepare claims; returns for each, by UID, None or why it cannot be unprepared."""


class Reporter(Protocol):
    """Reports the results of calls to the cluster. Every method returns at once."""

    def prepared(self, claims: Mapping[ClaimRef, ResourceClaim | DranodeError], answers: Mapping[str, Answer]) -> None:
        """Report the answers to a Prepare, by UID."""

    def unprepared(self, answers: Mapping[ClaimRef, Refused | None]) -> None:
        """Report the answers to an Unprepare."""
