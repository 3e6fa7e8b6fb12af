"""The claims that came back without all that is to be known of them, and what keeps new ones waiting."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dranode.driver.core.claims.effects import Commit, WriteFiles
from dranode.driver.core.claims.record import Record
from dranode.driver.node.decision_lock import DecisionLock
from dranode.driver.node.interpreter import Interpreter
from dranode.driver.node.record_store import RecordStore


class UnfinishedClaims(msgspec.Struct):
    """The unfinished claims of one driver: after a takeover, and after the ledger or a row of it was lost.

    Attributes:
        store: the records.
        lock: the lock on decisions.
        interpreter: what writes the files of those that are completed.
    """

    store: RecordStore
    lock: DecisionLock
    interpreter: Interpreter

    def records(self) -> tuple[Record, ...]:
        """The claims of which only what they hold is known, or not even that.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self.lock.held():
            return tuple(record for record in self.store.book.records() if not record.fingerprint)

    def complete(self, pairs: Iterable[tuple[Record, Record]]) -> tuple[Record, ...]:
        """Put on record what was learned of unfinished records, as pairs of before and after, and write their files.

        A record that has changed meanwhile stays as it is; what was put on record comes back.

        Raises:
            LedgerError: the ledger cannot be written; nothing of it is on record then.
        """
        with self.lock.held():
            put = tuple(after for before, after in pairs if self._is_news(before, after))
            if put:
                with self.store.transaction():
                    self.store.commit(Commit(put=put))
            self.interpreter.carry_out(map(WriteFiles, filter(self.interpreter.files.writable, put)))
            return put

    def _is_news(self, before: Record, after: Record) -> bool:
        entry = self.store.book.entry(before.uid)
        return entry is not None and entry.on_record == before and (after != before or not entry.on_file)

    def missing(self) -> tuple[str, ...]:
        """Return why no new claims are prepared since the ledger or a row of it was lost, a sentence each.

        Raises:
            UnreadError: the ledger cannot be read.
        """
        with self.lock.held():
            return self.store.missing()

    def forget_missing(self) -> tuple[str, ...]:
        """Prepare new claims again; what kept them back comes back. Claims with a CDI spec stay held.

        Raises:
            UnreadError: the ledger cannot be read.
            LedgerError: it cannot be written.
        """
        with self.lock.held():
            missing = self.store.missing()
            if missing:
                self.store.forget_missing()
            return missing
