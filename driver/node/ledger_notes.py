"""A driver's notes in its ledger, beside the claims."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from dranode.driver.core.claims.effects import Commit
from dranode.driver.node.record_store import RecordStore

log = logging.getLogger(__name__)


@dataclass
class LedgerNotes:
    """The `Notes` of one driver, under the lock on decisions.

    Attributes:
        store: the records, beside which the notes are.
    """

    store: RecordStore

    def read(self) -> Any:
        """Return the notes as plain JSON; None if there are none, or if they were damaged, which the log says."""
        try:
            return msgspec.json.decode(self.store.recovery.notes or b"null")
        except msgspec.DecodeError as error:
            log.error(  # noqa: TRY400 - the sentence says it all
                "ledger=%s: the driver's notes are damaged (%s), so what claims changed on the machine is not known; "
                "a reboot sets it anew",
                self.store.recovery.path,
                error,
            )
            return None

    def write(self, notes: Any) -> None:
        """Put the notes on record, if they are others than before.

        Raises:
            LedgerError: they cannot be written.
        """
        text = "" if notes is None else msgspec.json.encode(notes, order="sorted").decode()
        if text != self.store.recovery.notes:
            with self.store.transaction():
                self.store.commit(Commit(notes=text))
