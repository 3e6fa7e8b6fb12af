"""The one book of all that is known of every claim; everything else that a decision reads is an index of it.

row in the ledger   CDI spec               in the book
whole               any                    the row's record, on record
whole, lost         says what it holds     what the spec says, on record
damaged             says what it holds     what the spec says, beside the damaged row
damaged             says nothing           unknown: the claim may hold anything
none                says what it holds     what the spec says, on record and in no file (a leftover)
whole or none       says nothing           a lost record: the claim may hold anything
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from dranode.driver.core.claims.doubt import LOST_RECORD
from dranode.driver.core.claims.held import Held, HeldDevice, Holding
from dranode.driver.core.claims.record import Record, Sources
from dranode.driver.node.ledger_rows import Damaged


class Entry(msgspec.Struct, frozen=True):
    """The book's entry of one claim.

    Attributes:
        uid: the claim's UID.
        record: what it holds and whose it is, as far as that is known; None if nothing is but that its row is damaged.
        damaged: its row, where that cannot be read.
        on_file: whether the ledger has a row of it; a leftover has none.
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
        """Return why the claim may hold anything; None if it is known what it holds."""
        if self.record is not None:
            return LOST_RECORD if self.record.lost else None
        reason = self.damaged.reason if self.damaged is not None else "missing"
        return f"its row is damaged ({reason}) and no CDI spec says what it holds"

    def holding(self, sources: Sources) -> Holding | None:
        """Return what the claim is known to hold; a damaged row may name more devices than the CDI spec."""
        if self.record is None:
            return None
        holding = self.record.holding(sources)
        named = (self.damaged.devices or ()) if self.damaged is not None else ()
        more = tuple(HeldDevice(name, sources(name, None)) for name in named if name not in holding.names)
        return replace(holding, devices=(*holding.devices, *more))


class RecordBook:
    """The entries of all claims. It changes under the lock on decisions; entries may be looked up at any time.

    Attributes:
        held: what the claims hold.
        unknown: the UIDs of the claims that may hold anything, with the reasons.
        damaged: the damaged rows, by UID.
        version: a number that goes up with every change.
        touched: the UIDs of the claims that have changed since a follower set this to nothing; None if any may have.
    """

    def __init__(self, sources: Sources) -> None:
        """An empty book, for a driver with these `Plugin.sources`."""
        self._sources = sources
        self._entries: dict[str, Entry] = {}
        self.held = Held()
        self.unknown: dict[str, str] = {}
        self.damaged: dict[str, Damaged] = {}
        self.version = 0
        self.touched: frozenset[str] | None = None

    def replace(self, entries: Iterable[Entry]) -> None:
        """Let these be all entries."""
        fresh = {entry.uid: entry for entry in entries}
        self.held, self.unknown, self.damaged = Held(), {}, {}
        for entry in fresh.values():
            self._index(entry)
        # One assignment, so that a reader of another thread sees the old entries or the new ones.
        self._entries = fresh
        self.version += 1
        self.touched = None

    def enter(self, entry: Entry) -> None:
        """Take an entry in, in place of what was known of the claim."""
        self._entries[entry.uid] = entry
        self._drop(entry.uid)
        self._index(entry)
        self._touch(entry.uid)

    def forget(self, uid: str) -> None:
        """Take a claim out."""
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
        """All entries."""
        return tuple(self._entries.values())

    def entry(self, uid: str) -> Entry | None:
        """The entry of one claim."""
        return self._entries.get(uid)

    def records(self) -> tuple[Record, ...]:
        """Return what is on record: without the claims whose rows are damaged."""
        return tuple(record for entry in self.entries() if (record := entry.on_record) is not None)

    def uids(self) -> frozenset[str]:
        """The UIDs of the claims on record."""
        return frozenset(record.uid for record in self.records())

    def record(self, uid: str) -> Record | None:
        """Return what is on record of one claim."""
        entry = self.entry(uid)
        return None if entry is None else entry.on_record

    def known(self) -> tuple[Record, ...]:
        """Return what is known of the claims; a container whose row is damaged keeps the CPUs of its CDI spec."""
        return tuple(entry.record for entry in self.entries() if entry.record is not None)

    def known_of(self, uids: Iterable[str]) -> Mapping[str, Record]:
        """Return what is known of some claims, by UID."""
        entries = filter(None, map(self.entry, uids))
        return {entry.uid: entry.record for entry in entries if entry.record is not None}

    def unreadable(self, uids: Iterable[str]) -> tuple[str, ...]:
        """Those of some claims of which nothing is known but that their rows are damaged."""
        return tuple(uid for uid in uids if uid in self.damaged and uid in self.unknown)

    def on_file(self) -> Mapping[str, Record]:
        """The records whose rows are in the ledger and whole, by UID."""
        records = (entry.on_record for entry in self.entries() if entry.on_file)
        return {record.uid: record for record in records if record is not None}
