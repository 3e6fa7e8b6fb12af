"""The durable record of claims: one SQLite file per driver, one row a claim.

The ledger is the truth of who holds what; CDI specs and running containers are compared with it, never the other way
round. It runs in WAL mode with `synchronous=FULL`, so a commit that has returned survives a power cut at the price of
one flush. A row that fails its checksum is quarantined, the others stay in use.

A file is moved aside only if SQLite calls it corrupt (SQLITE_CORRUPT, SQLITE_NOTADB) or if it cannot be what was
written: `node.ledger_rows` looks at it whenever it is opened, and a statement that hits another number of
rows than are on record says so too. Any other failure (I/O, no space, busy, read-only, a newer schema) keeps the file
and surfaces as `LedgerError`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import LedgerError
from dranode.driver.core.claims.record import Record
from dranode.driver.node.ledger_rows import (
    HEADER_BYTES,
    TABLES,
    Damaged,
    encoded,
    header_damage,
    index_damage,
    read_rows,
    schema_damage,
    text,
    tree_damage,
)

SCHEMA: Final = 1
DOUBTFUL: Final = 2
"""The schema of a ledger that lacks claims, for a dranode that would not know and hand out what they hold."""
# A constraint that is violated is damage as well: the statements are such that a whole file never violates one.
_CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT)
_BUSY_SECONDS: Final = 5.0


class CorruptLedgerError(LedgerError):
    """SQLite says that the file is no database or damaged; it may be moved aside and rebuilt."""


@dataclass(frozen=True, slots=True)
class Contents:
    """All rows of the ledger.

    Attributes:
        records: those that are whole.
        damaged: the others.
        commits: the number of the last commit to them.
        doubt: why claims may be missing; empty if none is.
    """

    records: tuple[Record, ...]
    damaged: tuple[Damaged, ...]
    commits: int = 0
    doubt: str = ""


class Ledger:
    """An open ledger. Not thread-safe: it belongs to whoever holds the lock on decisions."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, made new if there is none.

        Raises:
            CorruptLedgerError: the file is damaged as a whole.
            LedgerError: it cannot be opened, or a newer dranode wrote it.
        """
        self.path = path
        # The claims that the file has as of the last reading; None while that is not known.
        self._uids: set[str] | None = None
        with _translated(path):
            _refuse(path, header_damage(_header(path)) or _emptied(path))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS)
            self._db.text_factory = text
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        with self.transaction():
            _refuse(self.path, schema_damage(self._db))
            if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES.values():
                    self._db.execute(statement)
                self.set_meta("schema", str(SCHEMA))
            if self._meta("commits") is None:
                self.set_meta("commits", "0")
            self._check_schema()
            _refuse(self.path, tree_damage(self._db))
        self._seen = self._data_version()

    def _check_schema(self) -> None:
        schema = self._number("schema")
        if schema > DOUBTFUL:
            raise LedgerError(
                f"{self.path} was written by a newer dranode (schema {schema}, this one knows {DOUBTFUL}); "
                "go back to that version, or drain the node with it first"
            )
        if schema not in (SCHEMA, DOUBTFUL) or (schema == DOUBTFUL) != bool(self._meta("doubt")):
            _refuse(self.path, f"its schema has the number {schema}")

    def _number(self, key: str) -> int:
        found = self._meta(key) or ""
        if not (found.isascii() and found.isdecimal()):
            _refuse(self.path, f"its {key} has the number {found!r}")
        return int(found)

    def close(self) -> None:
        """Close the file; the ledger cannot be used any more."""
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A decision and its record in one durable commit; nobody else writes meanwhile.

        Raises:
            LedgerError: the transaction cannot be begun or committed; nothing of it is on disk then.
        """
        with _translated(self.path):
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
        """Whether another process has committed since the last `read` that succeeded, or since the file was opened."""
        with _translated(self.path):
            return self._seen != self._data_version()

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def read(self) -> Contents:
        """All rows; those that fail their checksum apart.

        Raises:
            CorruptLedgerError: the file is damaged as a whole.
            LedgerError: it cannot be read, or a newer dranode has written it since it was opened.
        """
        with _translated(self.path):
            # Before the rows: what is committed in between is read once more, and never missed.
            version = self._data_version()
            # Another instance of another version may have written meanwhile.
            self._check_schema()
            rows = read_rows(self._db)
            _refuse(self.path, index_damage(self._db, rows))
            contents = _contents(rows, self._number("commits"), self._meta("doubt") or "")
        self._seen = version
        self._uids = {row.uid for row in rows}
        return contents

    def commit(self, put: Iterable[Record] = (), drop: Iterable[str] = ()) -> int:
        """Write and forget records inside a `transaction`, by whoever has read what the file has.

        Returns:
            The commit's number.

        Raises:
            CorruptLedgerError: a claim that is in the file was not found by its key, or one that is not was.
        """
        if self._uids is None:
            self.read()
        on_file = self._uids if self._uids is not None else set()
        with _translated(self.path):
            for record in put:
                self._put(record, there=record.uid in on_file)
                on_file.add(record.uid)
            for uid in drop:
                dropped = self._db.execute("DELETE FROM claims WHERE uid = ?", (uid,))
                self._expect(dropped.rowcount, int(uid in on_file), uid)
                on_file.discard(uid)
            commits = self._number("commits") + 1
            self.set_meta("commits", str(commits))
        return commits

    def restore(self, records: Iterable[Record], commits: int, doubt: str) -> None:
        """Fill a new ledger, inside a `transaction`: what an earlier one is known to have had, up to that commit."""
        self.commit(put=records)
        self.set_meta("commits", str(commits))
        self.doubt(doubt)

    def doubt(self, reason: str) -> None:
        """Note why claims may be missing, inside a `transaction`; with an empty reason none is any more."""
        with _translated(self.path):
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

    def _expect(self, found: int, expected: int, uid: str) -> None:
        if found != expected:
            _refuse(self.path, f"its key finds {found} rows of the claim with UID {uid}, not {expected}")

    def _meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def meta(self, key: str) -> str | None:
        """A note beside the claims, such as the boot id under which they were last looked at."""
        with _translated(self.path):
            return self._meta(key)

    def set_meta(self, key: str, value: str) -> None:
        """Write a note, inside a `transaction`."""
        with _translated(self.path):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def read_ledger(path: Path) -> Contents:
    """The rows of a ledger that a driver may have open, without disturbing it.

    Raises:
        LedgerError: it cannot be read. A ledger that is not there has no rows.
    """
    with _translated(path):
        if not path.exists():
            return Contents((), ())
        try:
            return _read_only(path)
        except sqlite3.OperationalError as error:
            # The journal of a driver that was killed wants to be recovered, which takes writing beside it.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
        with tempfile.TemporaryDirectory(prefix="dranode-") as folder:
            return _read_only(_duplicate(path, Path(folder)))


def _read_only(path: Path) -> Contents:
    _refuse(path, header_damage(_header(path)) or _emptied(path))
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
    db.text_factory = text
    with contextlib.closing(db):
        # One reading, so that a driver that commits in between does not make index and rows differ.
        db.execute("BEGIN")
        _refuse(path, schema_damage(db))
        # A driver that was killed while it made the file leaves one without tables.
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return Contents((), ())
        rows = read_rows(db)
        _refuse(path, index_damage(db, rows))
        notes = dict(db.execute("SELECT key, value FROM meta"))
        commits = notes.get("commits", "0")
        return _contents(rows, int(commits) if commits.isdecimal() else 0, notes.get("doubt", ""))


def _duplicate(path: Path, folder: Path) -> Path:
    """The ledger with its journal, as they are now, in another folder."""
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            (folder / (path.name + suffix)).write_bytes(path.with_name(path.name + suffix).read_bytes())
    return folder / path.name


def move_aside(path: Path) -> Path:
    """Give a corrupt ledger another name, its -wal and -shm with it; the caller holds the exclusive lock.

    Raises:
        LedgerError: a file cannot be renamed.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.corrupt-{stamp}-{os.getpid()}")
    try:
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise LedgerError(f"the corrupt ledger {path} cannot be moved aside: {error.strerror}") from error
    return aside


def _header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEADER_BYTES)
    except FileNotFoundError:
        return b""


def _emptied(path: Path) -> str | None:
    """What is wrong with an empty file beside which lies a journal: SQLite makes that after the file's first page.

    Another process may have the journal open still, and then the file can be used neither as it is nor as a new one.
    """
    journal = path.with_name(f"{path.name}-shm")
    emptied = path.exists() and path.stat().st_size == 0 and journal.exists()
    return f"it is empty, and {journal.name} lies beside it" if emptied else None


def _refuse(path: Path, damage: str | None) -> None:
    if damage is not None:
        raise CorruptLedgerError(f"the ledger {path} is damaged: {damage}")


def _contents(rows: tuple[Record | Damaged, ...], commits: int = 0, doubt: str = "") -> Contents:
    records = tuple(row for row in rows if isinstance(row, Record))
    return Contents(records, tuple(row for row in rows if isinstance(row, Damaged)), commits, doubt)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        # A Python-level sqlite3 error without a code is a misuse or a closed handle, not a damaged file.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _CORRUPT:
            raise CorruptLedgerError(f"the ledger {path} is damaged: {error}") from error
        raise LedgerError(f"the ledger {path} cannot be used: {error}; nothing is handed out until it can") from error
    except UnicodeDecodeError as error:
        # SQLite quotes damaged bytes of the schema in its message, which Python cannot read.
        raise CorruptLedgerError(f"the ledger {path} is damaged: {error.object!r}") from error
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be used: {error.strerror}") from error
