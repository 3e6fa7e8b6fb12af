"""A driver's notes in its ledger, beside the claims."""

from __future__ import annotations

from typing import Any

import msgspec

from dranode.driver.core.claims.effects import Commit
from dranode.driver.node.record_store import RecordStore


class LedgerNotes(msgspec.Struct):
    """The `Notes` of one driver, under the lock on decisions.

    Attributes:
        store: the records, beside which the notes are.
    """

    store: RecordStore

    @property
    def lost(self) -> str:
        """Return why notes may be missing; empty if none are."""
        return self.store.notes_lost()

    def read(self) -> Any:
        """Return the notes as plain JSON; None if there are none, or if they were damaged."""
        return msgspec.json.decode(self.store.recovery.notes or "null")

    def write(self, notes: Any) -> None:
        """Put the notes on record, if they are others than before.

        Raises:
            LedgerError: they cannot be written.
        """
        text = "" if notes is None else msgspec.json.encode(notes, order="sorted").decode()
        if text != self.store.recovery.notes or self.store.recovery.notes_lost:
            with self.store.transaction():
                self.store.commit(Commit(notes=text))
