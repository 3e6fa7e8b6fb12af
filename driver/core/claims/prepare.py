"""Prepare and Unprepare, decided: claims and what others hold in, records and effects out.

The order of effects is what makes a crash harmless. A claim is on record before anything is done for it and until
everything is undone, so it is on record whenever the node may hold something of it:

    Prepare     Commit(STARTED) -> Configure -> Commit(COMPLETED) -> files        with hardware to configure
                Commit(COMPLETED) -> files                                        without
    Unprepare   Commit(STARTED) -> Restore -> files -> Commit(drop)               with hardware to restore
                files -> Commit(drop)                                             without

where files are WriteSpec -> WriteMetadata, and RemoveMetadata -> RemoveSpec. Repeating either from the start is always
right: `Configure` and `Restore` may be repeated, the files are derived data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto

import msgspec

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import ClaimConflictError, ClaimError, DocumentError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.allocation import results_of
from dranode.driver.core.claims.answers import Refused
from dranode.driver.core.claims.configs import configs_for
from dranode.driver.core.claims.effects import (
    Commit,
    Configure,
    Effect,
    RemoveMetadata,
    RemoveSpec,
    Restore,
    WriteMetadata,
    WriteSpec,
)
from dranode.driver.core.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant
from dranode.driver.core.claims.held import ClaimRef, Held
from dranode.driver.core.claims.hooks import Recovers, needs_configuring, plain_grants
from dranode.driver.core.claims.inventory import Inventory
from dranode.driver.core.claims.metadata import POD_CLAIM_NAME, requests_of
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import ClaimState, Record, fingerprint, record_of, uid_problem


class Known(Enum):
    """How a Prepare relates to the claim's record.

    RECOVERED: what the claim holds is known from its CDI spec alone. LOST: nothing but that it exists is known.
    CHANGED: the record is of another allocation.
    """

    NEW = auto()
    SAME = auto()
    RECOVERED = auto()
    LOST = auto()
    CHANGED = auto()


def allocated(ref: ClaimRef, claim: ResourceClaim, plugin: Plugin) -> AllocatedClaim:
    """The part of a claim that is this driver's, configurations decoded; other drivers' parts are never read.

    Raises:
        ClaimError: the claim has another UID or an impossible one, is not allocated, or a result or a configuration
            of ours is not valid.
    """
    if claim.metadata.uid != ref.uid:
        raise ClaimError(
            f"claim {ref} is now another claim: its UID is {claim.metadata.uid or 'missing'}, "
            f"and {ref.uid} was asked for; recreate the pod"
        )
    problem = uid_problem(ref.uid)
    if problem is not None:
        raise ClaimError(f"claim {ref} cannot be prepared, for its UID {problem}; recreate the claim")
    allocation = claim.status.allocation
    if allocation is None:
        raise ClaimError(f"claim {ref} has no allocation, so there is nothing to prepare")
    try:
        ours = tuple(
            (result, configs_for(result, allocation.devices.config)) for result in results_of(allocation, plugin.driver)
        )
    except DocumentError as error:
        raise ClaimError(f"claim {ref} cannot be prepared, for its allocation cannot be read: {error}") from error
    return AllocatedClaim(
        ref,
        tuple(
            AllocatedResult(
                result, tuple(replace(config, parameters=plugin.parse_config(config)) for config in configs)
            )
            for result, configs in ours
        ),
    )


def twins(refs: Iterable[ClaimRef]) -> dict[str, Refused]:
    """A refusal for every UID under which one call names several claims: it has one answer, and nobody knows whose."""
    by_uid: dict[str, dict[ClaimRef, None]] = {}
    for ref in refs:
        by_uid.setdefault(ref.uid, {})[ref] = None
    return {
        uid: Refused(
            f"claims {' and '.join(map(str, same))} were asked for in one call with the same UID {uid}, so neither is "
            "prepared; recreate their pods"
        )
        for uid, same in by_uid.items()
        if len(same) > 1
    }


def check_pools(claim: AllocatedClaim, pool: str | None) -> None:
    """Refuse what was allocated from another pool than `pool`, the one in which this node's devices are published.

    Device names repeat from node to node, so the devices of another pool may be here by name and are not meant. None
    compares nothing.

    Raises:
        ClaimError: a result is of another pool.
    """
    for result in (each.result for each in claim.results):
        if pool is not None and result.pool != pool:
            raise ClaimError(
                f'request "{result.request}" of claim {claim.ref} was allocated device "{result.device}" of pool '
                f'"{result.pool}", but this node\'s pool is "{pool}"; delete the claim so that it is allocated anew'
            )


def known(claim: AllocatedClaim, record: Record | None) -> Known:
    """Whether the claim is on record, and with the same allocation."""
    if record is None:
        return Known.NEW
    if record.lost:
        return Known.LOST
    if record.fingerprint:
        return Known.SAME if record.fingerprint == fingerprint(claim) else Known.CHANGED
    return Known.RECOVERED if not record.grants or _results(record) == _asked(claim) else Known.CHANGED


def _results(record: Record) -> list[tuple[object, ...]]:
    return [(grant.request, grant.pool, grant.device, grant.share_id, grant.admin) for grant in record.grants]


def _asked(claim: AllocatedClaim) -> list[tuple[object, ...]]:
    results = (each.result for each in claim.results)
    return [(one.request, one.pool, one.device, one.share_id, bool(one.admin_access)) for one in results]


def decide(claim: AllocatedClaim, asked: ResourceClaim, held: Held, inventory: Inventory, plugin: Plugin) -> Record:
    """Decide what a claim is given. `held` is what all other claims hold.

    Raises:
        ClaimConflictError: another claim holds what this one was allocated.
        ClaimError: the claim cannot be prepared as it is.
    """
    _check_devices(claim, held, inventory)
    return _record(claim, plugin.grant(_counting(claim), held, inventory), asked, plugin)


def _record(claim: AllocatedClaim, grant: ClaimGrant, asked: ResourceClaim, plugin: Plugin) -> Record:
    state = ClaimState.STARTED if needs_configuring(plugin, grant.grants) else ClaimState.COMPLETED
    return refreshed(record_of(claim, grant, (), state), asked)


def _counting(claim: AllocatedClaim) -> AllocatedClaim:
    """The claim with the configurations that count. The record's fingerprint is of all, as it has always been."""
    return replace(
        claim,
        results=tuple(
            replace(each, configs=tuple(config for config in each.configs if not config.repeated))
            for each in claim.results
        ),
    )


def _check_devices(claim: AllocatedClaim, held: Held, inventory: Inventory) -> None:
    mine: set[str] = set()
    for result in (each.result for each in claim.results):
        device = inventory.device(result.device)
        if device is None:
            raise ClaimError(
                f'request "{result.request}" of claim {claim.ref} was allocated device "{result.device}" of pool '
                f'"{result.pool}", which this node does not have; delete the claim so that it is allocated anew'
            )
        if result.admin_access or device.allow_multiple_allocations:
            continue
        holders = held.device_holders(result.device)
        if holders:
            raise ClaimConflictError(
                f'claim {claim.ref} was allocated device "{result.device}", which claim '
                f"{' and '.join(map(str, holders))} still holds; it can be prepared once that one is unprepared",
                frozenset(holder.uid for holder in holders),
            )
        if result.device in mine:
            raise ClaimError(f'claim {claim.ref} was allocated device "{result.device}" twice, which cannot be shared')
        mine.add(result.device)


def adopt(claim: AllocatedClaim, asked: ResourceClaim, record: Record, inventory: Inventory, plugin: Plugin) -> Record:
    """A recovered record completed by the claim's own allocation; what the claim holds stays as it was.

    Raises:
        ClaimError: a configuration of the claim contradicts the machine.
    """
    found = ClaimGrant(record.grants, cpus=CPUSet.parse(record.cpus), held=CPUSet.parse(record.held))
    grants = record.grants
    if not grants:
        grants = (
            plugin.adopted(_counting(claim), found, inventory) if isinstance(plugin, Recovers) else plain_grants(claim)
        )
    named = _record(claim, ClaimGrant(grants), asked, plugin)
    return msgspec.structs.replace(named, edits=record.edits, cpus=record.cpus, held=record.held)


def refreshed(record: Record, asked: ResourceClaim) -> Record:
    """The record with what the claim says of its pods now: which may use it, and how they call it."""
    pods, name = asked.status.reserved_for, asked.metadata.annotations.get(POD_CLAIM_NAME, "")
    if (pods, name) == (record.pods, record.pod_claim_name):
        return record
    return msgspec.structs.replace(record, pods=pods, pod_claim_name=name)


def prepare_effects(records: Iterable[Record], before: Mapping[str, Record]) -> tuple[Effect, ...]:
    """The effects that bring these records about; records that stand as they are cost no commit."""
    records = tuple(records)
    effects: list[Effect] = []
    changed = tuple(record for record in records if before.get(record.uid) != record)
    if changed:
        effects.append(Commit(put=changed))
    started = tuple(record for record in records if record.state is ClaimState.STARTED)
    if started:
        effects.extend(Configure(record) for record in started)
        effects.append(Commit(put=tuple(completed(record) for record in started)))
    for record in records:
        effects += (WriteSpec(record), WriteMetadata(record))
    return tuple(effects)


def unprepare_effects(
    claims: Iterable[ClaimRef], on_record: Mapping[str, Record], plugin: Plugin
) -> tuple[Effect, ...]:
    """The effects that undo these claims; one that is not on record may still have left files behind."""
    claims = tuple(dict.fromkeys(claims))
    records = tuple({claim.uid: on_record[claim.uid] for claim in claims if claim.uid in on_record}.values())
    effects: list[Effect] = []
    started = tuple(restarted(record) for record in records if needs_configuring(plugin, record.grants))
    if started:
        effects.append(Commit(put=started))
        effects.extend(Restore(record) for record in started)
    for claim in claims:
        record = on_record.get(claim.uid)
        effects += (RemoveMetadata(claim, requests_of(record) if record else ()), RemoveSpec(claim.uid))
    if records:
        effects.append(Commit(drop=tuple(record.uid for record in records)))
    return tuple(effects)


def restarted(record: Record) -> Record:
    """The record of a claim whose hardware may be in any state."""
    return msgspec.structs.replace(record, state=ClaimState.STARTED)


def completed(record: Record) -> Record:
    """The record of a claim whose hardware is configured."""
    return msgspec.structs.replace(record, state=ClaimState.COMPLETED)
