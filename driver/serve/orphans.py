"""From time to time: names for claims that have none yet, and an end for claims that kubelet will not unprepare.

A claim that was deleted while kubelet or the driver was away is never unprepared by kubelet, and a driver that was
killed while it wrote a CDI spec never comes back to the file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dranode.cdi.directory import remove_abandoned
from dranode.driver.core.claims.events import Notify, OrphanUnprepared, notify_none
from dranode.driver.core.claims.reconcile import PATIENCE, Waiting, orphans, unused
from dranode.driver.core.claims.record import Record
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.takeover import put_on_record
from dranode.driver.serve.witnesses import Witnesses

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""How often to look."""


class Orphans(msgspec.Struct):
    """Looks after the claims of one node.

    Attributes:
        node: whose claims.
        witnesses: who is asked about them.
        notify: makes known to people which claims were let go of.
        clock: seconds, monotonic.
        stopping: set once this instance no longer looks after claims.
        released: how many were let go of since start.
    """

    node: NodeClaims
    witnesses: Witnesses
    notify: Notify = notify_none
    clock: Callable[[], float] = time.monotonic
    stopping: threading.Event = msgspec.field(default_factory=threading.Event)
    released: int = 0
    _waiting: Waiting = msgspec.field(default_factory=Waiting)

    def waiting(self) -> int:
        """Return how many orphans there are."""
        return len(self._waiting.since)

    def look(self) -> None:
        """Look once.

        Raises:
            UnreadError: the ledger cannot be used.
        """
        remove_abandoned(self.node.files.specs.directory)
        if self.node.files.metadata is not None:
            remove_abandoned(self.node.files.metadata.folder)
        records = self.node.records()
        attested = self.witnesses.near(records)
        unfinished = tuple(record for record in records if not record.fingerprint)
        suspects = unused(records, attested)
        # The API server is asked about the few claims that are odd, never about all of them.
        attested = self.witnesses.far(attested, {record.uid: record for record in (*unfinished, *suspects)}.values())
        if self.stopping.is_set():
            # The API server may have taken its time.
            return
        named = {record.uid: record for record in put_on_record(self.node, unfinished, attested)}
        self._mind([named.get(record.uid, record) for record in orphans(suspects, attested)])

    def _mind(self, orphaned: list[Record]) -> None:
        now = self.clock()
        before, self._waiting = self._waiting, self._waiting.seen(orphaned, now)
        fresh, due = self._waiting.fresh(before), self._waiting.due(now)
        for record in orphaned:
            if record.uid in fresh:
                log.warning(
                    "claim=%s uid=%s driver=%s is gone and nobody uses it: it is unprepared in %.0f minutes",
                    record.ref,
                    record.uid,
                    self.node.plugin.driver,
                    PATIENCE / 60,
                )
        if due:
            self._release([record for record in orphaned if record.uid in due])

    def _release(self, due: list[Record]) -> None:
        answers = self.node.release(due)
        for record in due:
            # A claim that was prepared again meanwhile has no answer, and one that failed is tried again.
            if record.uid not in answers or answers[record.uid] is not None:
                continue
            self.released += 1
            message = (
                f"claim {record.ref} was unprepared, because it does not exist any more and neither kubelet nor a "
                f"container has used it for {PATIENCE / 60:.0f} minutes"
            )
            log.warning("claim=%s uid=%s driver=%s: %s", record.ref, record.uid, self.node.plugin.driver, message)
            self.notify(OrphanUnprepared(record.ref, message))
