"""The records of one driver's claims: the ledger on disk and the book in memory, which always agree.

This module keeps three promises:

- Nothing is given out twice. If it is not known what a claim holds, no new claim is prepared until that claim is
  unprepared, or until its CDI spec can be read, because any device might be its.
- A claim that was reported as prepared stays on record, also if its row is damaged or the ledger is lost: its CDI spec
  says what it holds.
- A CDI spec without a record counts as well. It was left by another driver of the same kind, or by a ledger that is
  gone. Its devices are held from the start; `dranode.driver.serve.orphans` finds out whose claim it is.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dranode.api.errors import ClaimError, LedgerError
from dranode.driver.claims.answers import Commit
from dranode.driver.claims.held import ClaimRef, Held, HeldDevice, Holding
from dranode.driver.claims.hooks import Tunes, was_configured, was_tuned
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.prepare import restarted
from dranode.driver.claims.record import LOST_RECORD, Record, Sources, Unread, missing_claims, unknown_claim
from dranode.driver.machine.presence import file_number
from dranode.driver.node.ledger import CorruptLedgerError, Damaged, Ledger
from dranode.driver.node.ledger_recovery import LedgerRecovery, SpecRecords
from dranode.driver.node.lost_ledger import NOTES_LOST
from dranode.driver.node.specs import Specs

log = logging.getLogger(__name__)


# The book has one entry for each claim, and everything else that a decision reads is an index of these entries. An
# entry comes from the claim's row in the ledger and from its CDI spec:
#
# row in the ledger   CDI spec               in the book
# whole               any                    the row's record, on record
# whole, marked lost  says what it holds     what the spec says, on record
# damaged             says what it holds     what the spec says, beside the damaged row
# damaged             says nothing           unknown: the claim may hold anything
# none                says what it holds     what the spec says, on record and in no file (a leftover)
# whole or none       says nothing           a lost record: the claim may hold anything


class Entry(msgspec.Struct, frozen=True):
    """What is known about one claim.

    Attributes:
        uid: the claim's UID.
        record: what it holds and whose it is, as far as is known; None if only its damaged row is known.
        damaged: its row, if the row cannot be read.
        on_file: whether the ledger has a row for it; a leftover has none.
    """

    uid: str
    record: Record | None
    damaged: Damaged | None = None
    on_file: bool = True

    @property
    def on_record(self) -> Record | None:
        """The record, unless the row is damaged."""
        return self.record if self.damaged is None else None

    @property
    def unknown(self) -> str | None:
        """Return why the claim may hold any device; None if it is known what it holds."""
        if self.record is not None:
            return LOST_RECORD if self.record.lost else None
        reason = self.damaged.reason if self.damaged is not None else "missing"
        return f"its row is damaged ({reason}) and no CDI spec says what it holds"

    def holding(self, sources: Sources) -> Holding | None:
        """Return what the claim is known to hold: the devices of its CDI spec, and those that a damaged row names."""
        if self.record is None:
            return None
        holding = self.record.holding(sources)
        named = (self.damaged.devices or ()) if self.damaged is not None else ()
        more = tuple(HeldDevice(name, sources(name, None)) for name in named if name not in holding.names)
        return replace(holding, devices=(*holding.devices, *more))


class RecordBook:
    """The entries of all claims. It is changed under the lock on decisions; any thread may look entries up.

    Attributes:
        held: what the claims hold.
        unknown: the UIDs of the claims that may hold any device, with the reasons.
        damaged: the damaged rows, by UID.
        version: a number that grows with every change.
        touched: the UIDs of the claims that changed since a reader emptied this set; None if all may have changed.
    """

    def __init__(self, sources: Sources) -> None:
        """Make an empty book for a driver with these `Plugin.sources`."""
        self._sources = sources
        self._entries: dict[str, Entry] = {}
        self.held = Held()
        self.unknown: dict[str, str] = {}
        self.damaged: dict[str, Damaged] = {}
        self.version = 0
        self.touched: frozenset[str] | None = None

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        # The indexes are only read under the lock on decisions, so they may be built one after another.
        fresh = {entry.uid: entry for entry in entries}
        self.held, self.unknown, self.damaged = Held(), {}, {}
        for entry in fresh.values():
            self._index(entry)
        # One assignment: another thread sees all old entries or all new ones.
        self._entries = fresh
        self.version += 1
        self.touched = None

    def enter(self, entry: Entry) -> None:
        """Add an entry, or replace the claim's entry."""
        self._entries[entry.uid] = entry
        self._drop(entry.uid)
        self._index(entry)
        self._touch(entry.uid)

    def forget(self, uid: str) -> None:
        """Remove a claim's entry."""
        self._entries.pop(uid, None)
        self._drop(uid)
        self._touch(uid)

    def _index(self, entry: Entry) -> None:
        holding, reason = entry.holding(self._sources), entry.unknown
        if holding is not None:
            self.held.add(holding)
        if reason is not None:
            self.unknown[entry.uid] = reason
        if entry.damaged is not None:
            self.damaged[entry.uid] = entry.damaged

    def _drop(self, uid: str) -> None:
        self.held.drop(uid)
        self.unknown.pop(uid, None)
        self.damaged.pop(uid, None)

    def _touch(self, uid: str) -> None:
        self.version += 1
        if self.touched is not None:
            self.touched = self.touched.union((uid,))

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries."""
        return tuple(self._entries.values())

    def entry(self, uid: str) -> Entry | None:
        """Return the entry of one claim."""
        return self._entries.get(uid)

    def records(self) -> tuple[Record, ...]:
        """Return the records, without those of claims whose rows are damaged."""
        return tuple(record for entry in self.entries() if (record := entry.on_record) is not None)

    def uids(self) -> frozenset[str]:
        """Return the UIDs of the claims on record."""
        return frozenset(record.uid for record in self.records())

    def record(self, uid: str) -> Record | None:
        """Return the record of one claim; None if it has none or its row is damaged."""
        entry = self.entry(uid)
        return None if entry is None else entry.on_record

    def known(self) -> tuple[Record, ...]:
        """Return what is known about all claims. A claim with a damaged row has the CPUs that its CDI spec says."""
        return tuple(entry.record for entry in self.entries() if entry.record is not None)

    def known_of(self, uids: Iterable[str]) -> Mapping[str, Record]:
        """Return what is known about some claims, by UID."""
        entries = filter(None, map(self.entry, uids))
        return {entry.uid: entry.record for entry in entries if entry.record is not None}

    def unreadable(self, uids: Iterable[str]) -> tuple[str, ...]:
        """Return which of some claims are known only by a damaged row."""
        return tuple(uid for uid in uids if uid in self.damaged and uid in self.unknown)

    def on_file(self) -> Mapping[str, Record]:
        """Return the records that the ledger has intact rows for, by UID."""
        records = (entry.on_record for entry in self.entries() if entry.on_file)
        return {record.uid: record for record in records if record is not None}


class RecordStore:
    """The claims on record. Not thread-safe: use it under the lock on decisions.

    Attributes:
        book: what is known about every claim.
        recovery: the copy of the ledger, and what the ledger was rebuilt from.
    """

    def __init__(self, plugin: Plugin, path: Path, specs: Specs) -> None:
        """Name the ledger; the first `refresh` opens it."""
        self.book = RecordBook(plugin.sources)
        self.recovery = LedgerRecovery(path)
        # The claims that were already reported as having the same CPUs.
        self._overlaps: frozenset[tuple[ClaimRef, ...]] = frozenset()
        self._plugin = plugin
        self._path = path
        self._specs = SpecRecords(plugin, specs)
        self._ledger: Ledger | None = None
        self._inodes: tuple[int, ...] = ()
        self._stale = True
        # Whether the next transaction can skip its own `refresh`, because nothing was done since the last one.
        self._fresh = False
        # Whether the rows of the ledger were ever read. Only then does the book say what is on record.
        self._rows_read = False
        # Damage that was found by writing, for example in an index. Reopening the file would not find it again.
        self._corrupt: CorruptLedgerError | None = None

    def close(self) -> None:
        """Close the ledger; the next `refresh` opens it again."""
        # A closing line says that the copy is complete, which is only true if the ledger was read.
        if self._ledger is not None and not self._stale:
            self.recovery.close()
        self._shut()

    def _shut(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def size(self) -> int:
        """Return the size of the ledger's file and its journal, in bytes."""
        size = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                size += self._path.with_name(self._path.name + suffix).stat().st_size
        return size

    def refresh(self) -> Ledger:
        """Open the ledger if necessary, and read it again if another instance has changed it.

        A corrupt ledger is moved aside and rebuilt from its copy, its rows and the CDI specs.

        Raises:
            LedgerError: the ledger cannot be used.
        """
        corrupt, self._corrupt = self._corrupt, None
        self._fresh = False
        try:
            # If the inode has changed, another instance has moved the corrupt file aside already.
            if corrupt is not None and _inodes(self._path)[:1] == self._inodes[:1]:
                raise corrupt
            ledger = self._opened()
            # Stays set until the file has been read completely, whatever fails before.
            self._stale = self._stale or ledger.changed()
            if self._stale:
                self._load(ledger)
            elif self.book.unknown:
                self._identify()
        except CorruptLedgerError as error:
            self._shut()
            ledger = self._rebuild(error)
        except LedgerError:
            # The next call opens it again and so checks the whole file: it may have been overwritten.
            self._shut()
            raise
        self._fresh = True
        return ledger

    def _opened(self) -> Ledger:
        # If another instance moved a corrupt file aside, our open file is the old one. If somebody removed the journal
        # or its index, an instance that opened the ledger before and one that opens it now would not see each other's
        # commits. Both show in the inodes.
        if self._ledger is not None and _inodes(self._path) == self._inodes:
            return self._ledger
        self._shut()
        self._ledger = Ledger(self._path)
        self._inodes = _inodes(self._path)
        self._stale = True
        return self._ledger

    def _load(self, ledger: Ledger) -> None:
        contents = self.recovery.reconciled(ledger, ledger.read())
        whole = tuple(Entry(record.uid, record) for record in contents.records)
        try:
            spec_uids = self._specs.uids()
        except LedgerError:
            # The CDI specs cannot be listed, so there may be leftovers that are not known. The rows count all the same,
            # and so does what specs have said about damaged rows before.
            damaged = (self._still_damaged(row) for row in contents.damaged)
            self.book.replace((*whole, *damaged))
            self._rows_read = True
            raise
        rows = (*whole, *(Entry(row.uid, None, row) for row in contents.damaged))
        on_file = {entry.uid for entry in rows}
        leftovers = (Entry(uid, Record(uid=uid), on_file=False) for uid in spec_uids if uid not in on_file)
        self.book.replace((*rows, *leftovers))
        for row in contents.damaged:
            log.error("uid=%s driver=%s: the ledger row is quarantined: %s", row.uid, self._plugin.driver, row.reason)
        self._identify()
        self._check_notes()
        self._report_overlaps()
        self._stale, self._rows_read = False, True

    def _check_notes(self) -> None:
        """Mark the driver's notes as lost if a leftover claim had settings changed, but no notes say which."""
        recovered = (entry.record for entry in self.book.entries() if not entry.on_file)
        if not self.recovery.notes and any(map(self._tuned, recovered)):
            self.recovery.lose_notes(NOTES_LOST)

    def _tuned(self, record: Record | None) -> bool:
        return isinstance(self._plugin, Tunes) and record is not None and was_tuned(self._plugin, record)

    def notes_lost(self) -> str:
        """Return why the driver's notes are incomplete; empty if nothing suggests that it had noted more."""
        signs = bool(self.recovery.notes) or any(map(self._tuned, self.book.known()))
        return self.recovery.notes_lost if signs else ""

    def _still_damaged(self, row: Damaged) -> Entry:
        before = self.book.entry(row.uid)
        return Entry(row.uid, before.record if before is not None and before.damaged is not None else None, row)

    def _report_overlaps(self) -> None:
        """Log claims that have the same CPUs, once for each pair. No other claim gets these CPUs meanwhile."""
        overlaps = self.book.held.overlaps().items()
        doubled = {claims: cpus for claims, cpus in overlaps if all(map(self._is_complete, claims))}
        for claims in doubled.keys() - self._overlaps:
            log.error(
                "driver=%s: claims %s are both on record with CPUs %s, which one of them was given by mistake; "
                "recreate the pods of one of them",
                self._plugin.driver,
                " and ".join(map(str, claims)),
                doubled[claims],
            )
        self._overlaps = frozenset(doubled)

    def _is_complete(self, claim: ClaimRef) -> bool:
        # A recovered claim is reported later, when it is known whose it is.
        record = self.book.record(claim.uid)
        return record is not None and bool(record.fingerprint)

    def unread(self, reason: str) -> Unread:
        """Return what is known while the ledger cannot be read: its last contents, and CDI specs of other claims."""
        known = self.book.known()
        uids = {record.uid for record in known}
        try:
            leftovers = tuple(self._specs.record(uid) for uid in self._specs.uids() if uid not in uids)
        except LedgerError:
            return Unread(reason, known, blind=not self._rows_read)
        blind = not self._rows_read and any(record.lost for record in leftovers)
        return Unread(reason, (*known, *leftovers), blind)

    def _identify(self) -> None:
        """Read the CDI specs of claims about which nothing is known: they may be readable by now."""
        for entry in filter(None, map(self.book.entry, tuple(self.book.unknown))):
            record = self._specs.record(entry.uid)
            if not record.lost:
                self.book.enter(replace(entry, record=_with_owner(record, entry.record)))

    def _rebuild(self, cause: CorruptLedgerError) -> Ledger:
        self.recovery.rebuild(cause, self._specs.all())
        ledger = self._opened()
        self._load(ledger)
        return ledger

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make one durable commit. If it fails, nothing is on disk, and the next `refresh` reads the ledger again.

        Raises:
            LedgerError: the commit failed.
        """
        # The lock on decisions is held, also against other processes, so the ledger is as the last `refresh` read it.
        ledger = self._ledger if self._fresh and self._ledger is not None else self.refresh()
        self._fresh = False
        try:
            # First the ledger, then its copy: a copy must never have a commit that the ledger lacks.
            self.recovery.begin()
            with ledger.transaction():
                yield
            self.recovery.follow(self.book.on_file, damaged=bool(self.book.damaged))
        except BaseException as error:
            self._stale = True
            # Kept for the next `refresh`, which rebuilds the ledger: this transaction has to fail in any case.
            if isinstance(error, CorruptLedgerError):
                self._shut()
                self._corrupt = error
            raise

    def commit(self, commit: Commit) -> None:
        """Write and delete records, inside a transaction."""
        if self._ledger is None:
            raise LedgerError(f"the ledger {self._path} is closed")
        if commit.notes is not None:
            self._ledger.set_notes(commit.notes)
        self.recovery.note(self._ledger.commit(commit.put, commit.drop), commit)
        for record in commit.put:
            self.book.enter(Entry(record.uid, record))
        for uid in commit.drop:
            self.book.forget(uid)

    def reserve(self, record: Record) -> None:
        """Count a decided claim as held, so that the next decision of the same transaction does not give it out again.

        A commit has to follow. If the transaction fails, the book is read from the ledger again, which undoes this.
        """
        self.book.held.add(record.holding(self._plugin.sources))

    def after_boot(self, boot_id: str) -> None:
        """Note the boot id. After a reboot, claims whose hardware was configured are marked to be configured again.

        A leftover was prepared since the boot, because /var/run, where CDI specs are, does not survive a reboot.

        Raises:
            LedgerError: the ledger cannot be used.
        """
        ledger = self.refresh()
        if ledger.meta("boot_id") == boot_id:
            return
        with self.transaction():
            ledger.set_meta("boot_id", boot_id)
            # Hardware forgets its configuration in a reboot. kubelet prepares the claims again before their containers
            # start.
            configured = (record for record in self.book.on_file().values() if was_configured(self._plugin, record))
            self.commit(Commit(put=tuple(map(restarted, configured))))

    def try_writing(self) -> None:
        """Write a value that is on disk already, to find out whether the ledger can be written.

        Raises:
            LedgerError: the ledger cannot be written.
        """
        ledger = self.refresh()
        with self.transaction():
            ledger.set_meta("boot_id", ledger.meta("boot_id") or "")

    def refuse_damaged(self, ref: ClaimRef) -> None:
        """Refuse a claim whose row is damaged if its CDI spec does not say what it holds either.

        Raises:
            ClaimError: the claim is refused; says what to do.
        """
        entry = self.book.entry(ref.uid)
        if entry is not None and entry.damaged is not None and entry.record is None:
            raise ClaimError(
                f"the record of claim {ref} is damaged ({entry.damaged.reason}) and stays quarantined; "
                "delete the pods that use the claim, so that it is unprepared and allocated again"
            )

    def blocked(self) -> str | None:
        """Return why no new claim may be prepared, and what to do; None if new claims may be prepared."""
        if self.recovery.loss:
            return missing_claims(self.recovery.loss, self._plugin.driver)
        for uid, reason in self.book.unknown.items():
            return unknown_claim(uid, reason, self._plugin.driver)
        return None

    def missing(self) -> tuple[str, ...]:
        """Return the reasons why no new claim may be prepared, a sentence for each."""
        claims = (f"claim with UID {uid}: {reason}" for uid, reason in sorted(self.book.unknown.items()))
        return (*((self.recovery.loss,) if self.recovery.loss else ()), *claims)

    def forget_missing(self) -> None:
        """Forget the claims about which nothing is known, because an administrator says that they are gone.

        Raises:
            LedgerError: the ledger cannot be written.
        """
        entries = tuple(filter(None, map(self.book.entry, sorted(self.book.unknown))))
        for entry in entries:
            # A leftover is only a CDI spec. Removing it is what makes the claim forgotten.
            if not entry.on_file:
                self._specs.specs.remove(entry.uid)
        with self.transaction():
            if self._ledger is not None:
                self._ledger.set_loss("")
            self.commit(Commit(drop=tuple(entry.uid for entry in entries if entry.on_file)))
        self._stale = True
        self.refresh()


def _with_owner(record: Record, before: Record | None) -> Record:
    """Return the record from a CDI spec, with the owner and pods that are already known."""
    if before is None or not before.name:
        return record
    return msgspec.structs.replace(record, namespace=before.namespace, name=before.name, pods=before.pods)


def _inodes(path: Path) -> tuple[int, ...]:
    """Return the inodes of the ledger, its journal and the journal's index; 0 for a missing file."""
    return tuple(map(file_number, (str(path), f"{path}-wal", f"{path}-shm")))


class LedgerNotes(msgspec.Struct):
    """The `Notes` of a driver, kept in its ledger. Use it under the lock on decisions.

    Attributes:
        store: the driver's records.
    """

    store: RecordStore

    @property
    def lost(self) -> str:
        """Return why notes may be missing; empty if none are missing."""
        return self.store.notes_lost()

    def read(self) -> Any:
        """Return the notes as plain JSON; None if there are none or they were damaged."""
        return msgspec.json.decode(self.store.recovery.notes or "null")

    def write(self, notes: Any) -> None:
        """Commit the notes if they have changed.

        Raises:
            LedgerError: they cannot be written.
        """
        text = "" if notes is None else msgspec.json.encode(notes, order="sorted").decode()
        if text != self.store.recovery.notes or self.store.recovery.notes_lost:
            with self.store.transaction():
                self.store.commit(Commit(notes=text))
