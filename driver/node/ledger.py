"""The durable record of claims: one SQLite file per driver, one row a claim.

The ledger is the truth of who holds what; CDI specs and running containers are compared with it, never the other way
round. It runs in WAL mode with `synchronous=FULL`, so a commit that has returned survives a power cut at the price of
one flush. A row that fails its checksum is quarantined, the others stay in use.

Whether the file is damaged is looked at whenever it is opened (`node.ledger_file`, `node.ledger_rows`), and a statement
that hits another number of rows than are on record says so too. A newer schema is no damage: the file is kept.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import LedgerError
from dranode.driver.core.claims.record import Record
from dranode.driver.node.ledger_file import BUSY_SECONDS, damage_of, errors_in, refuse_damage
from dranode.driver.node.ledger_rows import (
    TABLES,
    Contents,
    contents_of,
    encoded,
    index_damage,
    notes_checksum,
    read_meta,
    read_rows,
    schema_damage,
    text,
    tree_damage,
)

SCHEMA: Final = 1
# A flush of a journal that still grows makes the file system write its own journal as well: half as much CPU again and
# three times the wait. SQLite's 1000 pages grow for the first 300 commits after each start, these for 40.
_JOURNAL_PAGES: Final = 128
DOUBTFUL: Final = 2
"""The schema of a ledger that lacks claims, for a dranode that would not know and hand out what they hold."""


def newer_sentence(path: Path, schema: int) -> str:
    """The sentence on a ledger with a schema that this dranode does not know."""
    return (
        f"{path} was written by a newer dranode (schema {schema}, this one knows {DOUBTFUL}); "
        "go back to that version, or drain the node with it first"
    )


class Ledger:
    """An open ledger. Not thread-safe: it belongs to the holder of the lock on decisions."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, made new if there is none.

        Raises:
            CorruptLedgerError: the file is damaged as a whole.
            LedgerError: it cannot be opened, or a newer dranode wrote it.
        """
        self.path = path
        # The claims that the file has as of the last reading; None while that is not known.
        self._uids: set[str] | None = None
        # The number of the last commit, which is known when they are.
        self._commits = 0
        with errors_in(path):
            refuse_damage(path, damage_of(path))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
            self._db.text_factory = text
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(f"PRAGMA wal_autocheckpoint={_JOURNAL_PAGES}")
        with self.transaction():
            refuse_damage(self.path, schema_damage(self._db))
            if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES.values():
                    self._db.execute(statement)
                self.set_meta("schema", str(SCHEMA))
            if self._meta("commits") is None:
                self.set_meta("commits", "0")
            self._check_schema()
            refuse_damage(self.path, tree_damage(self._db))
        self._seen = self._data_version()

    def _check_schema(self) -> None:
        schema = self._number("schema")
        if schema > DOUBTFUL:
            raise LedgerError(newer_sentence(self.path, schema))
        if schema not in (SCHEMA, DOUBTFUL) or (schema == DOUBTFUL) != bool(self._meta("doubt")):
            refuse_damage(self.path, f"its schema has the number {schema}")

    def _number(self, key: str) -> int:
        found = self._meta(key) or ""
        if not (found.isascii() and found.isdecimal()):
            refuse_damage(self.path, f"its {key} has the number {found!r}")
        return int(found)

    def close(self) -> None:
        """Close the file; the ledger cannot be used any more."""
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A decision and its record in one durable commit; no other process writes meanwhile.

        Raises:
            LedgerError: the transaction cannot be begun or committed; nothing of it is on disk then.
        """
        with errors_in(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._uids = None
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def changed(self) -> bool:
        """Return whether another process has committed since the last successful `read`, or since the opening."""
        with errors_in(self.path):
            return self._seen != self._data_version()

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def read(self) -> Contents:
        """All rows; those that fail their checksum apart.

        Raises:
            CorruptLedgerError: the file is damaged as a whole.
            LedgerError: it cannot be read, or a newer dranode has written it since it was opened.
        """
        with errors_in(self.path):
            # Before the rows: what is committed in between is read once more, and never missed.
            version = self._data_version()
            # Another instance of another version may have written meanwhile.
            self._check_schema()
            rows, bodies = read_rows(self._db)
            refuse_damage(self.path, index_damage(self._db, rows))
            contents = contents_of(rows, bodies, read_meta(self._db), self._number("commits"))
        self._seen = version
        self._uids, self._commits = {row.uid for row in rows}, contents.commits
        return contents

    def commit(self, put: Iterable[Record] = (), drop: Iterable[str] = ()) -> int:
        """Write and forget records inside a `transaction`; what the file has is read first if it was not.

        Returns:
            The commit's number.

        Raises:
            CorruptLedgerError: a claim that is in the file was not found by its key, or one that is not was.
        """
        if self._uids is None:
            self.read()
        on_file = self._uids if self._uids is not None else set()
        with errors_in(self.path):
            for record in put:
                self._put(record, there=record.uid in on_file)
                on_file.add(record.uid)
            for uid in drop:
                dropped = self._db.execute("DELETE FROM claims WHERE uid = ?", (uid,))
                self._expect(dropped.rowcount, int(uid in on_file), uid)
                on_file.discard(uid)
            self._set_commits(self._commits + 1)
        return self._commits

    def _set_commits(self, number: int) -> None:
        self._commits = number
        self.set_meta("commits", str(number))

    def restore(self, records: Iterable[Record], commits: int, doubt: str, notes: str) -> None:
        """Fill a new ledger, inside a `transaction`: what an earlier one is known to have had, up to that commit."""
        self.commit(put=records)
        self._set_commits(commits)
        self.set_notes(notes)
        self.doubt(doubt)

    def doubt(self, reason: str) -> None:
        """Note why claims may be missing, inside a `transaction`; with an empty reason none is any more."""
        with errors_in(self.path):
            self._db.execute("DELETE FROM meta WHERE key = 'doubt'")
            if reason:
                self.set_meta("doubt", reason)
            self.set_meta("schema", str(DOUBTFUL if reason else SCHEMA))

    def _put(self, record: Record, *, there: bool) -> None:
        row = encoded(record)
        if not there:
            self._db.execute("INSERT INTO claims VALUES (?, ?, ?, ?, ?)", row)
            return
        update = "UPDATE claims SET devices = ?, held = ?, body = ?, checksum = ? WHERE uid = ?"
        changed = self._db.execute(update, (*row[1:], row[0]))
        self._expect(changed.rowcount, 1, record.uid)

    def _expect(self, rows: int, expected: int, uid: str) -> None:
        if rows != expected:
            refuse_damage(self.path, f"its key finds {rows} rows of the claim with UID {uid}, not {expected}")

    def _meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def meta(self, key: str) -> str | None:
        """A note beside the claims, such as the boot id under which they were last looked at."""
        with errors_in(self.path):
            return self._meta(key)

    def set_notes(self, notes: str) -> None:
        """Write the driver's notes with their checksum, inside a `transaction`."""
        self.set_meta("notes", notes)
        self.set_meta("notes_checksum", notes_checksum(notes))

    def set_meta(self, key: str, value: str) -> None:
        """Write a note, inside a `transaction`."""
        with errors_in(self.path):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
