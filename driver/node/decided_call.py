"""The claims of one call, decided one after the other: each sees what those before it were given."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from dranode.driver.core.api.errors import ClaimConflictError, DranodeError
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.answers import Changed, ClaimOutcome, Conflict, Prepared, Refused, refused_by_error
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.prepare import Circumstances, decide_claim
from dranode.driver.core.claims.record import Record
from dranode.driver.node.record_store import RecordStore

log = logging.getLogger(__name__)


class DecidedCall(msgspec.Struct):
    """The decision on the claims of one call.

    Attributes:
        outcomes: of the claims for which nothing is to be done, by UID.
        records: of the others, by UID.
    """

    outcomes: dict[str, ClaimOutcome] = msgspec.field(default_factory=dict)
    records: dict[str, Record] = msgspec.field(default_factory=dict)


def decide_call(
    asked: Mapping[ClaimRef, ResourceClaim], before: Mapping[str, Record], store: RecordStore, given: Circumstances
) -> DecidedCall:
    """Decide the claims of a call inside a transaction, and reserve what they are given; nothing is committed.

    Args:
        asked: the claims.
        before: what is known of them, by UID.
        store: the records.
        given: what the decisions depend on besides.
    """
    call = DecidedCall()
    for ref, claim in asked.items():
        decided = _decided(ref, claim, before.get(ref.uid), store, given)
        if not isinstance(decided, Record):
            call.outcomes[ref.uid] = decided
        elif decided.grants:
            call.records[ref.uid] = decided
            store.reserve(decided)
        else:
            # A claim of which nothing is this driver's holds nothing and leaves no record.
            call.outcomes[ref.uid] = Prepared()
    return call


def _decided(
    ref: ClaimRef, claim: ResourceClaim, record: Record | None, store: RecordStore, given: Circumstances
) -> Record | Refused | Conflict | Changed:
    """The decision on a claim as a value, whatever it meets."""
    driver = given.plugin.driver
    try:
        store.refuse_damaged(ref)
        return decide_claim(ref, claim, record, given)
    except ClaimConflictError as error:
        return Conflict(str(error), error.holders)
    except DranodeError as error:
        return Refused(str(error))
    except Exception as error:
        log.exception("claim=%s uid=%s driver=%s: no decision", ref, ref.uid, driver)
        return refused_by_error(ref, driver, error)
