"""Prepare and Unprepare, decided: claims and what others hold in, decisions out.

The order of commits and effects is what makes a crash harmless. A claim is on record before anything is done for it and
until everything is undone, so it is on record whenever the node may hold something of it:

    Prepare     Commit(STARTED) -> Configure -> Commit(COMPLETED) -> WriteFiles   with hardware to configure
                Commit(COMPLETED) -> WriteFiles                                   without
    Unprepare   Commit(STARTED) -> Restore -> RemoveFiles -> Commit(drop)         with hardware to restore
                RemoveFiles -> Commit(drop)                                       without

Repeating either from the start is always right: `Configure` and `Restore` may be repeated, the files are derived data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Protocol

import msgspec
from msgspec.structs import replace

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

# The part of a claim that is this driver's, and what of it is refused before anything is decided.


def allocated(ref: ClaimRef, claim: ResourceClaim, plugin: Plugin) -> AllocatedClaim:
    """The part of a claim that is this driver's, configurations decoded; other drivers' parts are never read.

    Raises:
        ClaimError: the claim has another UID or an impossible one, is not allocated, or a result or a configuration
            of ours is not valid.
    """
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
        ours = tuple(
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
            for result, configs in ours
        ),
    )


def twins(refs: Iterable[ClaimRef]) -> dict[str, Refused]:
    """A refusal for every UID under which one call names several claims: it has one answer, which could be of any."""
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
                f'"{result.pool}", but this node\'s pool is "{pool}"; delete the claim so that it is allocated again'
            )


def counting(claim: AllocatedClaim) -> AllocatedClaim:
    """The claim with the configurations that count. The record's fingerprint is of all, as it has always been."""
    return replace(
        claim,
        results=tuple(
            replace(each, configs=tuple(config for config in each.configs if not config.repeated))
            for each in claim.results
        ),
    )


class Known(Enum):
    """The relation of a Prepare to the claim's record.

    RECOVERED: what the claim holds is known from its CDI spec alone. LOST: nothing but that it exists is known.
    CHANGED: the record is of another allocation.
    """

    NEW = auto()
    SAME = auto()
    RECOVERED = auto()
    LOST = auto()
    CHANGED = auto()


def known(claim: AllocatedClaim, record: Record | None) -> Known:
    """Return whether the claim is on record, and with the same allocation."""
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


class Circumstances(msgspec.Struct, frozen=True):
    """The circumstances that a decision on a claim depends on besides the claim and its record.

    Attributes:
        plugin: the driver.
        inventory: what it has found.
        held: what the claims on record hold, and those that were decided before in the same call.
        pool: the name of the pool in which the devices are published; None if claims may come from any.
        blocked: why nothing new may be given to a claim; None if it may.
        not_enforced: why containers are not held to claims; None if they are.
    """

    plugin: Plugin
    inventory: Inventory
    held: Held
    pool: str | None = None
    blocked: str | None = None
    not_enforced: NotEnforced | None = None


def decide_claim(ref: ClaimRef, claim: ResourceClaim, record: Record | None, given: Circumstances) -> Record | Changed:
    """Decide what a claim gets, which may be on record already.

    Returns:
        What is to be on record, without grants if nothing of the claim is this driver's; `Changed` if the claim is
        prepared for another allocation than it has now.

    Raises:
        ClaimConflictError: another claim holds what this one was allocated.
        ClaimError: the claim cannot be prepared as it is, nothing new may be given to any, or no container would be
            held to it.
    """
    mine = allocated(ref, claim, given.plugin)
    # A claim on record too: kubelet asks again before it makes a sandbox, whose containers nobody would hold to it.
    why = given.not_enforced
    if why is not None and not why.chosen and any(not each.result.admin_access for each in mine.results):
        raise ClaimError(why.message)
    relation = known(mine, record)
    if relation is Known.SAME and record is not None:
        return refreshed(record, claim)
    check_pools(mine, given.pool)
    if relation is Known.CHANGED:
        return Changed(ref)
    if relation is Known.RECOVERED and record is not None:
        return adopt(mine, claim, record, given.inventory, given.plugin)
    # What was allocated to a lost claim says what it was given; only others have to wait for that.
    if relation is Known.NEW and mine.results and given.blocked is not None:
        raise ClaimError(given.blocked)
    return decide(mine, claim, given.held, given.inventory, given.plugin)


def decide(claim: AllocatedClaim, asked: ResourceClaim, held: Held, inventory: Inventory, plugin: Plugin) -> Record:
    """Decide what a claim is given. `held` is what all other claims hold.

    Raises:
        ClaimConflictError: another claim holds what this one was allocated.
        ClaimError: the claim cannot be prepared as it is.
    """
    _check_devices(claim, held, inventory)
    return _record(claim, plugin.grant(counting(claim), held, inventory), asked, plugin)


def _record(claim: AllocatedClaim, grant: ClaimGrant, asked: ResourceClaim, plugin: Plugin) -> Record:
    state = ClaimState.STARTED if needs_configuring(plugin, grant.grants) else ClaimState.COMPLETED
    return refreshed(record_of(claim, grant, (), state), asked)


def refused_beforehand(
    ref: ClaimRef, claim: ResourceClaim, plugin: Plugin, pool: str, published: Inventory | None
) -> str:
    """The sentence with which a Prepare is refused whatever hardware and ledger say; empty if it is not by these alone.

    Args:
        ref: the claim that is asked for.
        claim: as it is.
        plugin: its driver; only its reader of configurations is asked.
        pool: the name of the node's pool.
        published: the devices of the pool; None if they are not known.
    """
    try:
        mine = allocated(ref, claim, plugin)
        check_pools(mine, pool)
        if published is not None:
            _check_devices(mine, Held(), published)
    except ClaimError as error:
        return str(error)
    return ""


def _check_devices(claim: AllocatedClaim, held: Held, inventory: Inventory) -> None:
    mine: dict[str, bool] = {}
    for result in (each.result for each in claim.results):
        device = inventory.device(result.device)
        if device is None:
            raise ClaimError(
                f'request "{result.request}" of claim {claim.ref} was allocated device "{result.device}" of pool '
                f'"{result.pool}", which this node does not have; delete the claim so that it is allocated again'
            )
        if result.admin_access:
            continue
        # What was granted decides: the device may have been offered otherwise when a holder got it.
        share = bool(device.allow_multiple_allocations and (result.share_id or result.consumed_capacity))
        holders = held.holders(inventory.sources_of(result.device), whole=share)
        if holders:
            raise ClaimConflictError(
                f'claim {claim.ref} was allocated {"a share of " if share else ""}device "{result.device}", which '
                f"claim {' and '.join(map(str, holders))} still holds{' whole' if share else ''}; it can be prepared "
                "once that one is unprepared",
                frozenset(holder.uid for holder in holders),
            )
        if result.device in mine and not (share and mine[result.device]):
            raise ClaimError(
                f'claim {claim.ref} was allocated device "{result.device}" twice, which cannot be shared; delete the '
                "claim so that it is allocated again"
            )
        mine[result.device] = share


def adopt(claim: AllocatedClaim, asked: ResourceClaim, record: Record, inventory: Inventory, plugin: Plugin) -> Record:
    """A recovered record completed by the claim's own allocation; what the claim holds stays as it was.

    Raises:
        ClaimError: a configuration of the claim contradicts the machine.
    """
    found = ClaimGrant(record.grants, cpus=record.cpus, held=record.held)
    grants = record.grants
    if not grants:
        grants = (
            plugin.adopted(counting(claim), found, inventory) if isinstance(plugin, Recovers) else plain_grants(claim)
        )
    named = _record(claim, ClaimGrant(grants), asked, plugin)
    return msgspec.structs.replace(named, edits=record.edits, cpus=record.cpus, held=record.held)


def refreshed(record: Record, asked: ResourceClaim) -> Record:
    """The record with what the claim says of its pods now: which may use it, and how they call it."""
    pods, name = asked.status.reserved_for, asked.metadata.annotations.get(POD_CLAIM_NAME, "")
    if (pods, name) == (record.pods, record.pod_claim_name):
        return record
    return msgspec.structs.replace(record, pods=pods, pod_claim_name=name)


def prepared(records: Iterable[Record], before: Callable[[str], Record | None]) -> Decision:
    """The decision that brings these records about; one that `before` says is on record already costs no commit."""
    records = tuple(records)
    effects: list[Effect] = []
    changed = tuple(record for record in records if before(record.uid) != record)
    started = tuple(record for record in records if record.state is ClaimState.STARTED)
    if started:
        effects.extend(Configure(record) for record in started)
        effects.append(Commit(put=tuple(completed(record) for record in started)))
    effects.extend(map(WriteFiles, records))
    return Decision(Commit(put=changed), tuple(effects))


def unprepared(
    claims: Iterable[ClaimRef], on_record: Mapping[str, Record], damaged: Iterable[str], plugin: Plugin
) -> Decision:
    """The decision that undoes these claims; one that is not on record may still have left files behind.

    Args:
        claims: those that are to be undone.
        on_record: what is known of them, by UID.
        damaged: the UIDs of those of which nothing is known but that their rows are damaged.
        plugin: the driver.
    """
    claims = tuple(dict.fromkeys(claims))
    records = tuple({claim.uid: on_record[claim.uid] for claim in claims if claim.uid in on_record}.values())
    started = tuple(restarted(record) for record in records if was_configured(plugin, record))
    effects: list[Effect] = [Restore(record) for record in started]
    for claim in claims:
        record = on_record.get(claim.uid)
        effects.append(RemoveFiles(claim, requests_of(record) if record else ()))
    dropped = (*(record.uid for record in records), *damaged)
    if dropped:
        effects.append(Commit(drop=dropped))
    return Decision(Commit(put=started), tuple(effects))


def restarted(record: Record) -> Record:
    """The record of a claim whose hardware may be in any state."""
    return msgspec.structs.replace(record, state=ClaimState.STARTED)


def completed(record: Record) -> Record:
    """The record of a claim whose hardware is configured."""
    return msgspec.structs.replace(record, state=ClaimState.COMPLETED)


# The interfaces that kubelet's calls need: claims as they are now, and a node that prepares and unprepares them.

# Whether the caller still waits for the answer. What it has given up must not be carried out behind its back: kubelet
# may have asked for the opposite since, and been answered.
Awaited = Callable[[], bool]


def always() -> bool:
    """Say that somebody waits: whoever calls a function and not a service does."""
    return True


class Claims(Protocol):
    """The source of claims: the API server, or a folder."""

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Each claim as it is now, or the reason why it cannot be had."""


class Preparer(Protocol):
    """The node that decides and acts: `dranode.driver.node.node.NodeClaims`."""

    def prepare(
        self, claims: Mapping[ClaimRef, ResourceClaim | DranodeError], awaited: Awaited = always
    ) -> Mapping[str, Answer]:
        """Prepare claims; an answer for each, by UID."""

    def unprepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Mapping[str, Refused | None]:
        """Unprepare claims; for each, by UID, None or why it is not unprepared."""


class Reporter(Protocol):
    """Reports to the cluster what became of claims. Every method returns at once."""

    def prepared(self, claims: Mapping[ClaimRef, ResourceClaim | DranodeError], answers: Mapping[str, Answer]) -> None:
        """Report the answers to a Prepare, by UID."""

    def unprepared(self, answers: Mapping[ClaimRef, Refused | None]) -> None:
        """Report the answers to an Unprepare."""
