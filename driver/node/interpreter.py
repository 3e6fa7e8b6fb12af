"""Carries out the effects of decisions, in order. Nothing else in the driver acts for a claim.

A decision is a value (`driver/claims/answers.py`): first a commit, then effects. The commit comes first, so a crash at
any point leaves a record of what has to be undone or done again. All effects can be repeated.
"""

import logging
from collections.abc import Container, Iterable
from typing import assert_never

import msgspec

from dranode.api.errors import DranodeError
from dranode.driver.claims.answers import (
    Commit,
    Configure,
    Effect,
    Refused,
    RemoveFiles,
    Restore,
    WriteFiles,
    refused_by_error,
)
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.hooks import Configures, Tunes, tuning_claims, was_tuned
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record
from dranode.driver.machine.root import ReadOnlyMachineError
from dranode.driver.node.claim_files import ClaimFiles
from dranode.driver.node.record_store import LedgerNotes, RecordStore

log = logging.getLogger(__name__)


class Interpreter(msgspec.Struct):
    """Carries out effects, under the lock on decisions.

    Attributes:
        plugin: the driver, which knows its hardware.
        store: the records.
        files: the claims' files.
    """

    plugin: Plugin
    store: RecordStore
    files: ClaimFiles

    def carry_out(self, effects: Iterable[Effect]) -> dict[str, Refused]:
        """Carry out effects in order; returns the failures by UID.

        If an effect fails, the remaining effects of its claim are skipped; those of other claims are not affected.

        Raises:
            LedgerError: a commit among the effects failed.
        """
        failures: dict[str, Refused] = {}
        for effect in effects:
            if isinstance(effect, Commit):
                self.commit(effect, failures)
                continue
            claim = _claim_of(effect)
            # If hardware could not be configured, its CDI spec must not be written; if it could not be restored, the
            # record stays.
            if claim.uid in failures:
                continue
            try:
                self.act(effect)
            except DranodeError as error:
                log.warning("claim=%s uid=%s driver=%s: %s", claim, claim.uid, self.plugin.driver, error)
                failures[claim.uid] = Refused(str(error))
            except ReadOnlyMachineError as error:
                # Nothing was ever configured on a machine that cannot be written to, so there is nothing to restore.
                if not isinstance(effect, Restore):
                    failures[claim.uid] = Refused(
                        f"claim {claim} has to write /{str(error.filename).lstrip('/')}, but {error.strerror}; "
                        "try it on the machine itself, or with --machine scratch:DIR"
                    )
            except Exception as error:
                name = type(effect).__name__
                log.exception("claim=%s uid=%s driver=%s: %s failed", claim, claim.uid, self.plugin.driver, name)
                failures[claim.uid] = refused_by_error(claim, self.plugin.driver, error)
        return failures

    def commit(self, commit: Commit, failures: Container[str]) -> None:
        """Commit the changes of the claims that have not failed.

        Raises:
            LedgerError: the commit failed.
        """
        # The record of a claim whose restore failed is kept, so that its devices are not given out in that state.
        kept = Commit(
            put=tuple(record for record in commit.put if record.uid not in failures),
            drop=tuple(uid for uid in commit.drop if uid not in failures),
        )
        if kept:
            with self.store.transaction():
                self.store.commit(kept)

    def act(self, effect: Configure | Restore | WriteFiles | RemoveFiles) -> None:
        """Carry out one effect.

        Raises:
            DranodeError: it failed.
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
        """Change the machine's settings to what the claims on record need.

        Raises:
            DranodeError: a setting cannot be changed, or the driver's notes cannot be written.
        """
        # All claims decide together: a setting such as an interrupt's CPUs follows from the set of quiet claims, not
        # from the order in which they came.
        claims = tuning_claims(plugin, self.store.book.known(), preparing=preparing)
        plugin.tune(claims, LedgerNotes(self.store))


def _claim_of(effect: Configure | Restore | WriteFiles | RemoveFiles) -> ClaimRef:
    return effect.claim if isinstance(effect, RemoveFiles) else effect.record.ref
