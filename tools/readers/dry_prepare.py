"""Decides a Prepare without doing anything: by the ledger, the CDI specs and the hardware as they are now.

It is decided by what the driver itself decides with, so a refusal is the sentence that kubelet gets.
"""

from __future__ import annotations

from dataclasses import dataclass

from dranode.api.errors import ClaimError, DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.allocation import results_of
from dranode.driver.claims.answers import refused_by_error
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.inventory import Inventory
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.prepare import Circumstances, decide_claim
from dranode.driver.claims.record import LOST_RECORD, Record, holdings, missing_claims, unknown_claim
from dranode.driver.node.ledger import Contents
from dranode.driver.node.ledger_recovery import SpecRecords
from dranode.driver.node.specs import Specs


@dataclass(frozen=True, slots=True)
class DryAnswer:
    """The outcome of a dry Prepare.

    Attributes:
        refusal: the sentence with which it would be refused; empty if it would not be.
        unseen: why that could not be decided; empty if it could.
    """

    refusal: str = ""
    unseen: str = ""


def dry_prepare(claim: ResourceClaim, contents: Contents, specs: Specs, plugin: Plugin, pool: str) -> DryAnswer:
    """Decide a Prepare of a claim that is not on record.

    Args:
        claim: the claim; it is allocated.
        contents: the driver's ledger.
        specs: its CDI specs.
        plugin: the driver, with the options that it runs with.
        pool: the name of the pool in which the node's devices are published.
    """
    try:
        inventory = plugin.discover()
        lying = specs.uids()
    except DranodeError as error:
        return DryAnswer(unseen=str(error))
    other = _other_options(claim, plugin, inventory)
    if other:
        return DryAnswer(unseen=other)
    ref = ClaimRef.of(claim)
    records, blocked = _known(contents, lying, specs, plugin)
    held = Held.of(holdings((record for record in records if record.uid != ref.uid), plugin.sources))
    try:
        decide_claim(ref, claim, None, Circumstances(plugin, inventory, held, pool, blocked))
    except ClaimError as error:
        return DryAnswer(refusal=str(error))
    except Exception as error:  # noqa: BLE001 - a driver that fails so refuses the claim with this sentence
        return DryAnswer(refusal=str(refused_by_error(ref, plugin.driver, error)))
    return DryAnswer()


def _other_options(claim: ResourceClaim, plugin: Plugin, inventory: Inventory) -> str:
    """Return why the driver that looks is not the one that runs: it would not publish what was allocated."""
    try:
        results = results_of(claim.status.allocation, plugin.driver)
    except DranodeError:
        return ""
    missing = [result.device for result in results if inventory.device(result.device) is None]
    if not missing:
        return ""
    return (
        f"with these options {plugin.driver} has no device {', '.join(missing)} here; pass the options of serve, or "
        "see whether the hardware is gone: dranode slices"
    )


def _known(contents: Contents, lying: frozenset[str], specs: Specs, plugin: Plugin) -> tuple[list[Record], str | None]:
    """Return what is known to be held, and why nothing new is handed out; None if it is."""
    blocked = [missing_claims(contents.doubt, plugin.driver)] if contents.doubt else []
    damaged = {
        row.uid: f"its row is damaged ({row.reason}) and no CDI spec says what it holds" for row in contents.damaged
    }
    on_file = {record.uid: record for record in contents.records}
    records: list[Record] = []
    for uid in sorted({*on_file, *damaged, *lying}):
        record = on_file.get(uid)
        if record is None or record.lost:
            record = SpecRecords(plugin, specs).record(uid)
        records.append(record)
        if record.lost:
            blocked.append(unknown_claim(uid, damaged.get(uid, LOST_RECORD), plugin.driver))
    return records, blocked[0] if blocked else None
