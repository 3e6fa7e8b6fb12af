"""Who holds what: the ledger and its index in memory, kept in step.

Three things may be known of a claim: its record; that its row is damaged, but its CDI spec still says what it holds; or
that it holds something, and nothing says what. The last blocks every new grant until the claim is unprepared or its
spec can be read, because whatever was handed out might be held already.

A CDI spec without a record was left by another driver of the same kind or by a ledger that is gone. What it says is
held from the first look on, as a record that is not in the file yet; `dranode.driver.lifecycle` finds out whose it is.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from dranode.driver.core.api.errors import ClaimError, LedgerError
from dranode.driver.core.claims.doubt import LOST_RECORD, missing_claims, unknown_claim
from dranode.driver.core.claims.effects import Commit
from dranode.driver.core.claims.held import ClaimRef, Held
from dranode.driver.core.claims.hooks import Recovers, needs_configuring
from dranode.driver.core.claims.on_record import Unread
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.core.claims.prepare import restarted
from dranode.driver.core.claims.record import Record, copied, holdings, recovered
from dranode.driver.node.ledger import CorruptLedgerError, Ledger
from dranode.driver.node.ledger_recovery import LedgerRecovery
from dranode.driver.node.ledger_rows import Damaged
from dranode.driver.node.specs import Specs

log = logging.getLogger(__name__)


class Holders:
    """The claims on record and what they hold. Not thread-safe: use it under the lock on decisions."""

    def __init__(self, plugin: Plugin, path: Path, specs: Specs) -> None:
        """Name the ledger; it is opened by the first `refresh`."""
        self.records: dict[str, Record] = {}
        self.held = Held()
        # The records that stand for a CDI spec alone and are in no file.
        self.leftovers: frozenset[str] = frozenset()
        # Goes up whenever `records` has changed.
        self.version = 0
        # The claims of which something else is told since whoever follows has set this to nothing; None: any of them.
        self.touched: frozenset[str] | None = None
        # What damaged rows are known to hold, by their CDI specs.
        self.quarantined: dict[str, Record] = {}
        self._damaged: dict[str, Damaged] = {}
        self._blocking: dict[str, str] = {}
        self.recovery = LedgerRecovery(path)
        # The claims that were found with the same CPUs.
        self._overlaps: frozenset[tuple[ClaimRef, ...]] = frozenset()
        self._plugin = plugin
        self._path = path
        self._specs = specs
        self._ledger: Ledger | None = None
        self._inode = 0
        self._stale = True
        # Whether the rows of the ledger were ever read, so that what is known of them was on record at some time.
        self._rows_read = False
        # Damage that only writing meets, as in an index: the file opens and reads well again.
        self._corrupt: CorruptLedgerError | None = None

    @property
    def damaged(self) -> Mapping[str, str]:
        """The UIDs of quarantined rows, and what is wrong with them."""
        return {uid: row.reason for uid, row in self._damaged.items()}

    def known(self, refs: Iterable[ClaimRef]) -> dict[str, Record]:
        """The records of these claims by UID; for a damaged row what its CDI spec says."""
        found = ((ref.uid, self.told_of(ref.uid)) for ref in refs)
        return {uid: record for uid, record in found if record is not None}

    def told(self) -> Iterator[Record]:
        """What is known of every claim: a container whose row is damaged keeps the CPUs that its CDI spec names."""
        return itertools.chain(self.records.values(), self.quarantined.values())

    def told_of(self, uid: str) -> Record | None:
        """What is known of one claim."""
        return self.records.get(uid) or self.quarantined.get(uid)

    def close(self) -> None:
        """Close the ledger; the next `refresh` opens it again."""
        if self._ledger is not None and not self._stale:
            self.recovery.close()
        self._shut()

    def _shut(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def size(self) -> int:
        """The bytes of the ledger's file and its journal."""
        size = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                size += self._path.with_name(self._path.name + suffix).stat().st_size
        return size

    def refresh(self) -> Ledger:
        """See that the ledger is open and the index is that of the file, which another instance may have changed.

        Raises:
            LedgerError: the ledger cannot be used; a corrupt one is moved aside and rebuilt instead.
        """
        corrupt, self._corrupt = self._corrupt, None
        try:
            # Another instance may have moved it aside already.
            if corrupt is not None and _inode(self._path) == self._inode:
                raise corrupt
            ledger = self._opened()
            # Until all of it is taken in, whatever comes in between.
            self._stale = self._stale or ledger.changed()
            if self._stale:
                self._load(ledger)
            elif self._blocking:
                self._look_again()
        except CorruptLedgerError as error:
            self._shut()
            ledger = self._rebuild(error)
        return ledger

    def _opened(self) -> Ledger:
        # Another instance may have moved a corrupt file aside: ours would then be the old one.
        if self._ledger is not None and _inode(self._path) == self._inode:
            return self._ledger
        self._shut()
        self._ledger = Ledger(self._path)
        self._inode = _inode(self._path)
        self._stale = True
        return self._ledger

    def _load(self, ledger: Ledger) -> None:
        contents = self.recovery.looked_at(ledger, ledger.read())
        on_file = {record.uid for record in contents.records} | {row.uid for row in contents.damaged}
        try:
            lying = self._specs.stamps()
        except LedgerError:
            # There may be more, but these are on record.
            self.records, self._rows_read = {record.uid: record for record in contents.records}, True
            self._changed(None)
            raise
        left = tuple(Record(uid=uid) for uid in sorted(lying) if uid not in on_file)
        self.leftovers = frozenset(record.uid for record in left)
        self.records = {record.uid: record for record in (*contents.records, *left)}
        self.held = Held.of(holdings(self.records.values()))
        self._damaged, self.quarantined = {row.uid: row for row in contents.damaged}, {}
        self._blocking = _lost(self.records.values())
        for row in contents.damaged:
            log.error("uid=%s driver=%s: the ledger row is quarantined: %s", row.uid, self._plugin.driver, row.reason)
            self._blocking[row.uid] = f"its row is damaged ({row.reason}) and no CDI spec says what it holds"
        self._look_again()
        self._tell_overlaps()
        self._stale, self._rows_read = False, True
        self._changed(None)

    def _tell_overlaps(self) -> None:
        """Say which claims that are wholly on record have the same CPUs; nobody else gets those meanwhile."""
        overlaps = self.held.overlaps().items()
        found = {claims: cpus for claims, cpus in overlaps if all(map(self._finished, claims))}
        for claims in found.keys() - self._overlaps:
            log.error(
                "driver=%s: claims %s are both on record with CPUs %s, which one of them was given by mistake; "
                "recreate the pods of one of them",
                self._plugin.driver,
                " and ".join(map(str, claims)),
                found[claims],
            )
        self._overlaps = frozenset(found)

    def _finished(self, claim: ClaimRef) -> bool:
        # What was only recovered is told of by whoever finds out whose it is.
        record = self.records.get(claim.uid)
        return record is not None and bool(record.fingerprint)

    def unread(self, reason: str) -> Unread:
        """What is known while the ledger cannot be read: what it last said, and beyond that what CDI specs say."""
        known = tuple(self.told())
        uids = {record.uid for record in known}
        try:
            found = tuple(self._recovered(uid) for uid in sorted(self._specs.stamps()) if uid not in uids)
        except LedgerError:
            return Unread(reason, known, blind=not self._rows_read)
        blind = not self._rows_read and any(record.lost for record in found)
        return Unread(reason, (*known, *found), blind)

    def _look_again(self) -> None:
        """Take in what CDI specs say of claims of which nothing is known; they may be readable by now."""
        for uid in tuple(self._blocking):
            found = self._recovered(uid)
            if found.lost:
                continue
            del self._blocking[uid]
            row = self._damaged.get(uid)
            if row is None:
                self.records[uid] = found = _named(found, self.records[uid])
            else:
                self.quarantined[uid] = found
            devices = found.holding.devices.union(row.devices or () if row else ())
            self.held.add(replace(found.holding, devices=devices))
            self._changed((uid,))

    def _recovered(self, uid: str) -> Record:
        """What the claim's CDI spec says of it: the copy of its record, else what the driver reads there."""
        spec = self._specs.read(uid)
        if spec is None:
            return Record(uid=uid)
        copy = copied(uid, spec)
        if copy is not None:
            return copy
        try:
            grant = self._plugin.recover(uid, spec) if isinstance(self._plugin, Recovers) else None
        except Exception:
            log.exception("uid=%s driver=%s: its CDI spec is not understood", uid, self._plugin.driver)
            grant = None
        return Record(uid=uid) if grant is None else recovered(uid, grant)

    def _rebuild(self, cause: CorruptLedgerError) -> Ledger:
        self.recovery.rebuild(cause, {uid: self._recovered(uid) for uid in sorted(self._specs.stamps())})
        ledger = self._opened()
        self._load(ledger)
        return ledger

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """One durable commit. If it fails, nothing of it is on disk and the index is read again.

        Raises:
            LedgerError: it cannot be committed.
        """
        ledger = self.refresh()
        try:
            self.recovery.begin()
            with ledger.transaction():
                yield
            self.recovery.follow(self._on_file, damaged=bool(self._damaged))
        except BaseException as error:
            self._stale = True
            if isinstance(error, CorruptLedgerError):
                self._shut()
                self._corrupt = error
            raise

    def _on_file(self) -> dict[str, Record]:
        return {uid: record for uid, record in self.records.items() if uid not in self.leftovers}

    def commit(self, commit: Commit) -> None:
        """Write and forget records, inside a transaction."""
        if self._ledger is None:
            raise LedgerError(f"the ledger {self._path} is closed")
        self.recovery.note(self._ledger.commit(commit.put, commit.drop), commit)
        uids = {*(record.uid for record in commit.put), *commit.drop}
        self._changed(uids)
        self.leftovers -= uids
        for record in commit.put:
            self.records[record.uid] = record
            self._damaged.pop(record.uid, None)
            self.quarantined.pop(record.uid, None)
            self._blocking.pop(record.uid, None)
            self._blocking |= _lost((record,))
            self.held.add(record.holding)
        for uid in commit.drop:
            self.records.pop(uid, None)
            self._damaged.pop(uid, None)
            self.quarantined.pop(uid, None)
            self._blocking.pop(uid, None)
            self.held.drop(uid)

    def _changed(self, uids: Iterable[str] | None) -> None:
        self.version += 1
        self.touched = None if uids is None or self.touched is None else self.touched.union(uids)

    def reserve(self, record: Record) -> None:
        """Let later decisions of the same transaction see what was just decided; the commit follows, or a reload."""
        self.held.add(record.holding)

    def after_boot(self, boot_id: str) -> None:
        """Note the boot id; hardware that was configured under another one must be configured again.

        Raises:
            LedgerError: the ledger cannot be used.
        """
        ledger = self.refresh()
        if ledger.meta("boot_id") == boot_id:
            return
        with self.transaction():
            ledger.set_meta("boot_id", boot_id)
            touched = (record for record in self.records.values() if needs_configuring(self._plugin, record.grants))
            self.commit(Commit(put=tuple(map(restarted, touched))))

    def try_writing(self) -> None:
        """Write what is written already.

        Raises:
            LedgerError: the ledger cannot be written.
        """
        ledger = self.refresh()
        with self.transaction():
            ledger.set_meta("boot_id", ledger.meta("boot_id") or "")

    def refuse_damaged(self, ref: ClaimRef) -> None:
        """Refuse a claim whose own row is damaged, if no CDI spec says what it holds.

        Raises:
            ClaimError: it is; says what to do.
        """
        if ref.uid in self._damaged and ref.uid in self._blocking:
            raise ClaimError(
                f"the record of claim {ref} is damaged ({self._damaged[ref.uid].reason}) and stays quarantined; "
                "delete the pods that use the claim, so that it is unprepared and allocated anew"
            )

    def blocked(self) -> str | None:
        """Why no new claim may be given anything, with what to do; None if it may."""
        if self.recovery.doubt:
            return missing_claims(self.recovery.doubt, self._plugin.driver)
        for uid, reason in self._blocking.items():
            return unknown_claim(uid, reason, self._plugin.driver)
        return None

    def missing(self) -> tuple[str, ...]:
        """What keeps new grants from being made: a sentence for each."""
        claims = (f"claim with UID {uid}: {reason}" for uid, reason in sorted(self._blocking.items()))
        return (*((self.recovery.doubt,) if self.recovery.doubt else ()), *claims)

    def forget_missing(self) -> None:
        """Hand out again what nothing tells of, because somebody who knows has said so.

        Raises:
            LedgerError: the ledger cannot be written.
        """
        for uid in self.leftovers & self._blocking.keys():
            self._specs.remove(uid)
        with self.transaction():
            if self._ledger is not None:
                self._ledger.doubt("")
            self.commit(Commit(drop=tuple(sorted(set(self._blocking) - self.leftovers))))
        self._stale = True
        self.refresh()

    def damaged_among(self, refs: Iterable[ClaimRef]) -> tuple[str, ...]:
        """The UIDs among `refs` whose rows are damaged and of which nothing else is known."""
        return tuple(ref.uid for ref in refs if ref.uid in self._damaged and ref.uid in self._blocking)


def _lost(records: Iterable[Record]) -> dict[str, str]:
    """The records of which nothing is known but that they hold something; being written down makes them no better."""
    return {record.uid: LOST_RECORD for record in records if record.lost}


def _named(found: Record, before: Record) -> Record:
    """What was found out of a lost claim, with the owner that others have told since."""
    if not before.name:
        return found
    return msgspec.structs.replace(found, namespace=before.namespace, name=before.name, pods=before.pods)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
