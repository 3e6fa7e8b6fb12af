"""Carries effects out, in order; nothing else of the driver acts on a claim's behalf."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from typing import assert_never

import msgspec

from dranode.driver.core.api.errors import DranodeError
from dranode.driver.core.claims.answers import Refused, refused_by_error
from dranode.driver.core.claims.effects import (
    Commit,
    Configure,
    Decision,
    Effect,
    RemoveFiles,
    Restore,
    WriteFiles,
)
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.claims.hooks import Configures, Tunes, was_tuned
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.record import Record
from dranode.driver.core.claims.tuning import tuning_claims
from dranode.driver.node.claim_files import ClaimFiles
from dranode.driver.node.ledger_notes import LedgerNotes
from dranode.driver.node.record_store import RecordStore

log = logging.getLogger(__name__)


class Interpreter(msgspec.Struct):
    """Does what effects say, under the lock on decisions.

    Attributes:
        plugin: the driver, which knows its hardware.
        store: the records.
        files: the claims' files.
    """

    plugin: Plugin
    store: RecordStore
    files: ClaimFiles

    def execute(self, decision: Decision) -> dict[str, Refused]:
        """Commit what was decided, then carry its effects out; failures come by UID.

        Raises:
            LedgerError: it cannot be committed.
        """
        if decision.commit:
            self.commit(decision.commit, failures=())
        return self.carry_out(decision.effects)

    def carry_out(self, effects: Iterable[Effect]) -> dict[str, Refused]:
        """Carry effects out in order; one that fails ends its claim's effects and no other's. Failures come by UID.

        Raises:
            LedgerError: a commit among them cannot be made.
        """
        failures: dict[str, Refused] = {}
        for effect in effects:
            if isinstance(effect, Commit):
                self.commit(effect, failures)
                continue
            claim = _claim_of(effect)
            if claim.uid in failures:
                continue
            try:
                self.act(effect)
            except DranodeError as error:
                log.warning("claim=%s uid=%s driver=%s: %s", claim, claim.uid, self.plugin.driver, error)
                failures[claim.uid] = Refused(str(error))
            except Exception as error:
                name = type(effect).__name__
                log.exception("claim=%s uid=%s driver=%s: %s failed", claim, claim.uid, self.plugin.driver, name)
                failures[claim.uid] = refused_by_error(claim, self.plugin.driver, error)
        return failures

    def commit(self, commit: Commit, failures: Container[str]) -> None:
        """Commit what belongs to claims that have not failed.

        Raises:
            LedgerError: it cannot be committed.
        """
        kept = Commit(
            put=tuple(record for record in commit.put if record.uid not in failures),
            drop=tuple(uid for uid in commit.drop if uid not in failures),
        )
        if kept:
            with self.store.transaction():
                self.store.commit(kept)

    def act(self, effect: Configure | Restore | WriteFiles | RemoveFiles) -> None:
        """Carry one effect out.

        Raises:
            DranodeError: it cannot be.
        """
        match effect:
            case Configure(record):
                self._configure(record)
            case Restore(record):
                self._restore(record)
            case WriteFiles(record):
                self.files.write_and_note(record)
            case RemoveFiles(claim, requests):
                self.files.remove(claim, requests)
            case _:
                assert_never(effect)

    def _configure(self, record: Record) -> None:
        if isinstance(self.plugin, Configures) and self.plugin.configures(record.grants):
            self.plugin.configure(record.ref, record.grants)
        if isinstance(self.plugin, Tunes) and self.plugin.tunes(record.grants):
            self.tune(self.plugin, preparing=True)

    def _restore(self, record: Record) -> None:
        if isinstance(self.plugin, Tunes) and was_tuned(self.plugin, record):
            self.tune(self.plugin, preparing=False)
        if isinstance(self.plugin, Configures) and self.plugin.configures(record.grants):
            self.plugin.restore(record.ref, record.grants)

    def tune(self, plugin: Tunes, *, preparing: bool) -> None:
        """Bring the machine's settings into the state that the claims on record need.

        Raises:
            DranodeError: they cannot be, or the driver's notes not be written.
        """
        claims = tuning_claims(plugin, self.store.book.known(), preparing=preparing)
        plugin.tune(claims, LedgerNotes(self.store))


def _claim_of(effect: Configure | Restore | WriteFiles | RemoveFiles) -> ClaimRef:
    return effect.claim if isinstance(effect, RemoveFiles) else effect.record.ref
