"""Keeps the ledger's copy up to date, and rebuilds a lost ledger from the copy, its own rows and the CDI specs.

What follows from the sources that are left is decided by `salvaged` and its neighbors in `driver/node/lost_ledger.py`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dranode.api.errors import LedgerError
from dranode.driver.claims.answers import Commit
from dranode.driver.claims.hooks import Recovers
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record, record_in_spec, recovered
from dranode.driver.node.ledger import Contents, CorruptLedgerError, Ledger, copy_path, move_aside
from dranode.driver.node.ledger_copy import LedgerCopy, refuse_behind, rows_in
from dranode.driver.node.lost_ledger import Copied, prepared_under, salvaged
from dranode.driver.node.specs import Specs

log = logging.getLogger(__name__)


class LedgerRecovery:
    """The copy of one ledger. Use it under the lock on decisions.

    Attributes:
        path: the ledger's file.
        boot_id: the id of this boot of the machine; empty while it is not known.
        loss: why claims may be missing in the ledger; empty if none are missing.
        notes: the driver's notes, as JSON; empty if there are none.
        notes_lost: why the notes may be incomplete, until the driver writes new ones; empty if they are complete.
    """

    def __init__(self, path: Path) -> None:
        """Name the ledger; nothing is opened."""
        self.boot_id = ""
        self.loss = ""
        self.notes = ""
        self.notes_lost = ""
        self.path = path
        self._copy = LedgerCopy(copy_path(path))
        # The commits of the current transaction, with their numbers.
        self._commits: list[tuple[int, Commit]] = []

    def reconciled(self, ledger: Ledger, contents: Contents) -> Contents:
        """Repair damaged rows and notes from the copy, and bring the copy up to date; returns the ledger's contents.

        Raises:
            CorruptLedgerError: the copy has commits that the ledger lacks, or may have some.
            LedgerError: the copy cannot be used, or the ledger cannot be written.
        """
        copied = self._copy.read(contents.bodies)
        refuse_behind(self.path, contents, copied)
        # Only a copy of the very same commit can replace rows: an older one could bring back devices that were
        # released.
        if copied is not None and contents.damaged and copied.whole and copied.commits == contents.commits:
            contents = self._with_repaired_rows(ledger, contents, copied)
        if contents.notes_damage:
            contents = self._with_notes(ledger, contents, copied)
        self.loss, self.notes = contents.loss, "" if contents.notes_damage else contents.notes
        if contents.notes_damage:
            self.lose_notes(f"they were damaged: {contents.notes_damage}")
        elif copied is not None:
            self.notes_lost = copied.notes_lost
        now = self._copied(contents.commits, {record.uid: record for record in contents.records})
        # While rows are damaged the copy is kept, because it may have them intact. A copy that says the same as the
        # ledger stays in use, even a closed one: the line of the next commit ends that state.
        if not contents.damaged and (copied is None or replace(copied, closed=False) != now):
            self._write(now)
        return contents

    def _copied(self, commits: int, records: Mapping[str, Record]) -> Copied:
        return Copied(commits, records, self.loss, self.boot_id, notes=self.notes, notes_lost=self.notes_lost)

    def _with_notes(self, ledger: Ledger, contents: Contents, copied: Copied | None) -> Contents:
        """Return the contents with the notes of the copy, if the copy is complete."""
        if copied is None or copied.notes_lost or not copied.whole or copied.commits != contents.commits:
            return contents
        with ledger.transaction():
            ledger.set_notes(copied.notes)
        # If both are the same, only the checksum was missing: a version without checksums wrote them.
        if copied.notes != contents.notes:
            log.error("ledger=%s: the driver's notes were damaged and are written again from the copy", self.path)
        return ledger.read()

    def lose_notes(self, reason: str) -> None:
        """Note that the driver's notes may be incomplete, and log it once."""
        if reason != self.notes_lost:
            log.error("ledger=%s: the driver's notes are lost: %s", self.path, reason)
        self.notes_lost = reason

    def _with_repaired_rows(self, ledger: Ledger, contents: Contents, copied: Copied) -> Contents:
        # Only if both have the same claims: a damaged UID would otherwise bring back another claim.
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
        """Begin a transaction."""
        self._commits = []

    def note(self, number: int, commit: Commit) -> None:
        """Note a commit of the transaction, with its number."""
        # Not written to the copy yet: the transaction may still fail.
        self._commits.append((number, commit))
        if commit.notes is not None:
            self.notes, self.notes_lost = commit.notes, ""

    def follow(self, on_file: Callable[[], Mapping[str, Record]], *, damaged: bool) -> None:
        """Append the transaction to the copy, after it was committed to the ledger.

        Args:
            on_file: returns the intact records of the ledger, in case the copy has to be rewritten.
            damaged: whether the ledger has damaged rows as well.

        Raises:
            LedgerError: the copy lacks a commit and cannot be deleted either.
        """
        for number, commit in self._commits:
            if not self._copy.append(number, commit.put, commit.drop, commit.notes):
                last, _ = self._commits[-1]
                # A rewritten copy would lack the damaged rows and still count as complete.
                if damaged:
                    self._copy.forget()
                else:
                    self._write(self._copied(last, on_file()))
                break

    def _write(self, copied: Copied) -> None:
        try:
            self._copy.write(copied)
        except LedgerError as error:
            # The ledger is intact, and no copy is better than one that lacks a commit.
            log.warning("ledger=%s: %s", self.path, error)
            self._copy.forget()

    def close(self) -> None:
        """Flush the copy."""
        self._copy.close()

    def rebuild(self, cause: CorruptLedgerError, specs: Mapping[str, Record]) -> None:
        """Replace a damaged ledger by a new one, with everything that is known about its claims.

        Args:
            cause: what is wrong with the damaged one.
            specs: what the CDI specs on the node say, by UID.

        Raises:
            LedgerError: a step failed. The next call tries again with what is left, and nothing is lost in between.
        """
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        copied = self._copy.read()
        rows, unread = _rows_of(files)
        rescued = salvaged(copied, specs, rows, self.boot_id, unread)
        # The copy first: if the process dies before the new ledger is complete, the next start finds everything there.
        self._copy.write(rescued)
        aside = move_aside(self.path)
        log.error(
            "ledger=%s: %s; it is kept as %s and %d claims are on record again",
            self.path,
            cause,
            aside,
            len(rescued.records),
        )
        ledger = Ledger(self.path)
        try:
            with ledger.transaction():
                ledger.restore(rescued.records.values(), rescued.commits, rescued.loss, rescued.notes)
                # If the rescued claims are from before a reboot, their hardware has to be configured again; the boot id
                # says so.
                ledger.set_meta("boot_id", prepared_under(copied, specs, self.boot_id))
        finally:
            ledger.close()


def _rows_of(files: Iterable[Path]) -> tuple[tuple[Record, ...], str]:
    """Return the intact records in these files, and which files could not be read (empty if all could)."""
    rows: list[Record] = []
    unread: list[str] = []
    for path in files:
        try:
            rows.extend(rows_in(path))
        except OSError as error:
            unread.append(f"{path} cannot be read ({error.strerror})")
    return tuple(rows), ", and ".join(unread)


class SpecRecords(msgspec.Struct, frozen=True):
    """The records that CDI specs contain, for claims that the ledger does not know or whose rows are damaged.

    Attributes:
        plugin: the driver, which may be able to read specs without a copy of the record (`Recovers`).
        specs: the CDI specs.
    """

    plugin: Plugin
    specs: Specs

    def uids(self) -> tuple[str, ...]:
        """Return the UIDs of the claims that have a spec, in order.

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
        """Return what a claim's spec says: the copy of its record, or what the driver reads in the spec.

        If it says neither, the record is a lost one (`Record.lost`).
        """
        # A spec that cannot be read says nothing, so the claim may hold any device.
        spec = self.specs.read(uid)
        if spec is None:
            return Record(uid=uid)
        copy = record_in_spec(uid, spec)
        if copy is not None:
            return copy
        try:
            # The spec may be of another driver of the same kind that ran here before, such as dra-driver-cpu.
            grant = self.plugin.recover(uid, spec) if isinstance(self.plugin, Recovers) else None
        except Exception:
            log.exception("uid=%s driver=%s: its CDI spec is not understood", uid, self.plugin.driver)
            grant = None
        return Record(uid=uid) if grant is None else recovered(uid, grant)
