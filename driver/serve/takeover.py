"""At start: whose are the CDI specs without a record, and the records without an owner?"""

from __future__ import annotations

import logging

from dranode.driver.core.api.errors import DranodeError, LedgerError, UnreadError
from dranode.driver.core.claims.reconcile import Attestation, named, overlaps, refusals, unpublished
from dranode.driver.core.claims.record import Record
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.witnesses import Witnesses

log = logging.getLogger(__name__)


def take_over(node: NodeClaims, witnesses: Witnesses) -> bool:
    """Put on record what was left behind, with the names and pods that others know of it; False if that has to wait.

    Without their answers it is on record all the same and holds what its spec says; it gets its name later.

    Raises:
        DranodeError: another driver's claims lie on the node that cannot be taken over; nothing has been changed.
    """
    try:
        unfinished = node.unfinished.records()
        sentence = unpublished(node.store.book.records(), node.inventory)
        if sentence is not None:
            log.warning("driver=%s: %s", node.plugin.driver, sentence)
        if not unfinished:
            return True
        attested = witnesses.far(witnesses.near(unfinished), unfinished)
        refused = refusals(unfinished, attested, node.plugin)
        if refused:
            raise DranodeError("; ".join(refused))
        for sentence in overlaps(unfinished, node.store.book.held):
            log.error("driver=%s: %s", node.plugin.driver, sentence)
        put_on_record(node, unfinished, attested)
    except UnreadError:
        return False
    except LedgerError as error:
        # Nothing is handed out while the ledger cannot be read, and then what lies there is held.
        driver = node.plugin.driver
        log.error("driver=%s: what was left behind has to wait: %s", driver, error)  # noqa: TRY400 - no mistake of ours
        return False
    return True


def put_on_record(node: NodeClaims, unfinished: tuple[Record, ...], attested: Attestation) -> tuple[Record, ...]:
    """Put on record what others say of unfinished records; those that have changed come back.

    Raises:
        LedgerError: the ledger cannot be written.
    """
    put = node.unfinished.complete(
        (record, named(record, attested, node.inventory, node.plugin, node.pool)) for record in unfinished
    )
    for record in put:
        log.warning(
            "claim=%s uid=%s driver=%s taken over devices=%s cpus=%s held=%s pods=%s",
            record.ref,
            record.uid,
            node.plugin.driver,
            ",".join(record.devices) or "unknown",
            record.cpus or "-",
            record.held or "-",
            ",".join(map(str, record.pods)) or "unknown",
        )
    return put
