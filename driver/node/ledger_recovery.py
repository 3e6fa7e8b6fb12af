"""Keeps a copy beside the ledger, and brings the ledger back from it, from its own rows and from CDI specs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dranode.api.errors import LedgerError
from dranode.driver.claims.answers import Commit
from dranode.driver.claims.hooks import Recovers
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Copied, Record, copied, prepared_under, recovered, salvaged
from dranode.driver.node.ledger import Contents, CorruptLedgerError, Ledger, copy_path, move_aside
from dranode.driver.node.ledger_copy import LedgerCopy, refuse_behind, rows_in
from dranode.driver.node.specs import Specs

log = logging.getLogger(__name__)


class LedgerRecovery:
    """The copy of one ledger, under the lock on decisions.

    Attributes:
        path: the ledger's file.
        boot_id: of this boot of the machine; empty while it is not known.
        doubt: why claims may be missing in the ledger; empty if none is.
        notes: the driver's notes, as JSON; empty if it has none.
        notes_lost: why they may lack what the driver has noted, until it writes others; empty if they do not.
    """

    def __init__(self, path: Path) -> None:
        """Name the ledger; nothing is opened."""
        self.boot_id = ""
        self.doubt = ""
        self.notes = ""
        self.notes_lost = ""
        self.path = path
        self._copy = LedgerCopy(copy_path(path))
        # The commits of the transaction at hand, with their numbers.
        self._commits: list[tuple[int, Commit]] = []

    def reconciled(self, ledger: Ledger, contents: Contents) -> Contents:
        """The ledger's contents, mended by the copy; the copy says the same then.

        Raises:
            CorruptLedgerError: the copy has commits that the ledger lacks, or may have.
            LedgerError: the copy cannot be used, or the ledger not be written.
        """
        copied = self._copy.read(contents.bodies)
        refuse_behind(self.path, contents, copied)
        if copied is not None and contents.damaged and copied.whole and copied.commits == contents.commits:
            contents = self._mended(ledger, contents, copied)
        if contents.notes_damage:
            contents = self._with_notes(ledger, contents, copied)
        self.doubt, self.notes = contents.doubt, "" if contents.notes_damage else contents.notes
        if contents.notes_damage:
            self.lose_notes(f"they were damaged: {contents.notes_damage}")
        elif copied is not None:
            self.notes_lost = copied.notes_lost
        now = self._copied(contents.commits, {record.uid: record for record in contents.records})
        # What is damaged has to be in the copy for the day when it can be mended. A copy that says the same serves on,
        # also one that was closed: the next commit's line ends that.
        if not contents.damaged and (copied is None or replace(copied, closed=False) != now):
            self._write(now)
        return contents

    def _copied(self, commits: int, records: Mapping[str, Record]) -> Copied:
        return Copied(commits, records, self.doubt, self.boot_id, notes=self.notes, notes_lost=self.notes_lost)

    def _with_notes(self, ledger: Ledger, contents: Contents, copied: Copied | None) -> Contents:
        """Return the contents with the notes of the copy, if that has all of them."""
        if copied is None or copied.notes_lost or not copied.whole or copied.commits != contents.commits:
            return contents
        with ledger.transaction():
            ledger.set_notes(copied.notes)
        # A version that writes no checksums has written the same to both.
        if copied.notes != contents.notes:
            log.error("ledger=%s: the driver's notes were damaged and are written again from the copy", self.path)
        return ledger.read()

    def lose_notes(self, reason: str) -> None:
        """Note that the driver may have noted more than there is now."""
        if reason != self.notes_lost:
            log.error("ledger=%s: the driver's notes are lost: %s", self.path, reason)
        self.notes_lost = reason

    def _mended(self, ledger: Ledger, contents: Contents, copied: Copied) -> Contents:
        if copied.records.keys() != {
            *(record.uid for record in contents.records),
            *(row.uid for row in contents.damaged),
        }:
            return contents
        with ledger.transaction():
            ledger.commit(put=(copied.records[row.uid] for row in contents.damaged))
        for row in contents.damaged:
            log.error(
                "claim=%s uid=%s ledger=%s: its row was damaged and is written again: %s",
                copied.records[row.uid].ref,
                row.uid,
                self.path,
                row.reason,
            )
        return ledger.read()

    def begin(self) -> None:
        """A transaction begins."""
        self._commits = []

    def note(self, number: int, commit: Commit) -> None:
        """A commit of the transaction, with its number."""
        self._commits.append((number, commit))
        if commit.notes is not None:
            self.notes, self.notes_lost = commit.notes, ""

    def follow(self, on_file: Callable[[], Mapping[str, Record]], *, damaged: bool) -> None:
        """Let the copy follow the transaction that is on disk now.

        Args:
            on_file: what the ledger has.
            damaged: whether it has rows besides that cannot be read.

        Raises:
            LedgerError: the copy lacks a commit and cannot be removed either.
        """
        for number, commit in self._commits:
            if not self._copy.append(number, commit.put, commit.drop, commit.notes):
                last, _ = self._commits[-1]
                if damaged:
                    self._copy.forget()
                else:
                    self._write(self._copied(last, on_file()))
                break

    def _write(self, copied: Copied) -> None:
        try:
            self._copy.write(copied)
        except LedgerError as error:
            # The ledger is whole, and a copy that lags behind it is worse than none.
            log.warning("ledger=%s: %s", self.path, error)
            self._copy.forget()

    def close(self) -> None:
        """Flush the copy."""
        self._copy.close()

    def rebuild(self, cause: CorruptLedgerError, specs: Mapping[str, Record]) -> None:
        """Put a new ledger in the place of one that is damaged, with all that is known of its claims.

        Args:
            cause: what is wrong with it.
            specs: what the CDI specs on the node say, by UID.

        Raises:
            LedgerError: it cannot be done; it is tried again from what there is.
        """
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        copied = self._copy.read()
        rows, unread = _rows_of(files)
        found = salvaged(copied, specs, rows, self.boot_id, unread)
        # First what is known: a process that dies from here on leaves it in the copy.
        self._copy.write(found)
        aside = move_aside(self.path)
        log.error(
            "ledger=%s: %s; it is kept as %s and %d claims are on record again",
            self.path,
            cause,
            aside,
            len(found.records),
        )
        ledger = Ledger(self.path)
        try:
            with ledger.transaction():
                ledger.restore(found.records.values(), found.commits, found.doubt, found.notes)
                ledger.set_meta("boot_id", prepared_under(copied, specs, self.boot_id))
        finally:
            ledger.close()


def _rows_of(files: Iterable[Path]) -> tuple[tuple[Record, ...], str]:
    """Return the records that stand in these files, and why there may be others; the latter is empty if none can."""
    rows: list[Record] = []
    unread: list[str] = []
    for path in files:
        try:
            rows.extend(rows_in(path))
        except OSError as error:
            unread.append(f"{path} cannot be read ({error.strerror})")
    return tuple(rows), ", and ".join(unread)


# Records as CDI specs tell them: what is left of a claim where the ledger does not say what it holds.


class SpecRecords(msgspec.Struct, frozen=True):
    """The records of one driver's CDI specs.

    Attributes:
        plugin: the driver, which may know a form of specs that is given.
        specs: the CDI specs.
    """

    plugin: Plugin
    specs: Specs

    def uids(self) -> tuple[str, ...]:
        """The claims that have a spec, in order.

        Raises:
            LedgerError: the CDI directory cannot be listed.
        """
        return tuple(sorted(self.specs.uids()))

    def all(self) -> Mapping[str, Record]:
        """Return what every spec says, by UID.

        Raises:
            LedgerError: the CDI directory cannot be listed.
        """
        return {uid: self.record(uid) for uid in self.uids()}

    def record(self, uid: str) -> Record:
        """Return what a claim's spec says: the copy of its record, else what the driver reads there.

        Lost if neither is.
        """
        spec = self.specs.read(uid)
        if spec is None:
            return Record(uid=uid)
        copy = copied(uid, spec)
        if copy is not None:
            return copy
        try:
            grant = self.plugin.recover(uid, spec) if isinstance(self.plugin, Recovers) else None
        except Exception:
            log.exception("uid=%s driver=%s: its CDI spec is not understood", uid, self.plugin.driver)
            grant = None
        return Record(uid=uid) if grant is None else recovered(uid, grant)
