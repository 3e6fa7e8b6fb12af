"""Says why a driver prepares no new claims although its ledger can be read: the devices of some claims are not known.

Whatever was handed out might be held by one of them, so every new claim waits until they are unprepared, their CDI
specs can be read again, or an administrator says that they are gone (`dranode forget-lost`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dranode.driver.core.claims.record import Record

LOST_RECORD: Final = "its record is lost and no CDI spec says what it holds"


def missing_claims(doubt: str, driver: str) -> str:
    """The sentence on a ledger that may lack claims; `doubt` says why it may."""
    return (
        f"nothing new is handed out on this node: {doubt}; delete the pods whose claims `dranode claims` does not "
        f"list, or drain the node, then run `{_command(driver)}`"
    )


def unknown_claim(uid: str, reason: str, driver: str) -> str:
    """The sentence on one claim that may hold anything."""
    return (
        f"nothing new is handed out while the claim with UID {uid} may hold anything: {reason}; "
        "delete the pods that use that claim, so that it is unprepared, or, if there is no such claim, run "
        f"`{_command(driver)}`"
    )


def doubts(doubt: str, records: Iterable[Record], driver: str) -> tuple[str, ...]:
    """Return what a ledger itself says, a sentence each: claims may be missing, or nothing is known of some records."""
    lost = (unknown_claim(record.uid, LOST_RECORD, driver) for record in records if record.lost)
    return (*((missing_claims(doubt, driver),) if doubt else ()), *lost)


def _command(driver: str) -> str:
    return f"dranode forget-lost --driver {driver}"
