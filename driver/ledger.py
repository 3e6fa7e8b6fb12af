"""The durable record of claims: one SQLite file per driver, one row a claim.

The ledger is the truth of who holds what; CDI specs and running containers are compared with it, never the other way
round. It runs in WAL mode with `synchronous=FULL`, so a commit that has returned survives a power cut at the price of
one flush. Every row has a checksum over its bytes: a row that fails it is quarantined, the others stay in use.

Only a file that SQLite itself calls corrupt (SQLITE_CORRUPT, SQLITE_NOTADB) is moved aside. Any other failure (I/O,
no space, busy, read-only, a newer schema) keeps the file and surfaces as `LedgerError`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from dranode.driver.core.cpuset import CPUSet
from dranode.driver.core.documents import decode_json, encode_json
from dranode.driver.core.errors import DocumentError, LedgerError
from dranode.driver.core.record import Record

SCHEMA: Final = 1
_CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY_SECONDS: Final = 5.0

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
  uid TEXT PRIMARY KEY, devices TEXT NOT NULL, held TEXT NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL
);
"""


class CorruptLedgerError(LedgerError):
    """SQLite says that the file is no database or damaged; it may be moved aside and rebuilt."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A row that fails its checksum, as it stands.

    Attributes:
        uid: the claim's UID, as far as the row can be trusted.
        devices: the devices column, if it still reads as a list of names.
        reason: what is wrong with it.
    """

    uid: str
    devices: tuple[str, ...] | None
    reason: str


@dataclass(frozen=True, slots=True)
class Contents:
    """All rows of the ledger."""

    records: tuple[Record, ...]
    damaged: tuple[Damaged, ...]


class Ledger:
    """An open ledger. Not thread-safe: it belongs to whoever holds the lock on decisions."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, made new if there is none.

        Raises:
            CorruptLedgerError: the file is damaged as a whole.
            LedgerError: it cannot be opened, or a newer dranode wrote it.
        """
        self.path = path
        with _translated(path):
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS)
            self._db.text_factory = _text
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        with self.transaction():
            # executescript would commit behind our back.
            for statement in _CREATE.split(";"):
                self._db.execute(statement)
            schema = int(self._meta("schema") or 0)
            if schema > SCHEMA:
                raise LedgerError(
                    f"{self.path} was written by a newer dranode (schema {schema}, this one knows {SCHEMA}); "
                    "go back to that version, or drain the node with it first"
                )
            if schema < SCHEMA:
                self.set_meta("schema", str(SCHEMA))
        self._seen = self._data_version()

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
        """All rows; those that fail their checksum apart."""
        with _translated(self.path):
            # Before the rows: what is committed in between is read once more, and never missed.
            version = self._data_version()
            contents = _contents(self._db)
        self._seen = version
        return contents

    def commit(self, put: Iterable[Record] = (), drop: Iterable[str] = ()) -> None:
        """Write and forget records inside a `transaction`."""
        with _translated(self.path):
            self._db.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", map(_row, put))
            self._db.executemany("DELETE FROM claims WHERE uid = ?", ((uid,) for uid in drop))

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
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        db.text_factory = _text
        with contextlib.closing(db):
            return _contents(db)


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


def _contents(db: sqlite3.Connection) -> Contents:
    # A driver that was killed while it made the file leaves one without the table.
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'claims'").fetchone() is None:
        return Contents((), ())
    rows = [_record(*row) for row in db.execute("SELECT uid, devices, held, body, checksum FROM claims")]
    return Contents(
        tuple(row for row in rows if isinstance(row, Record)), tuple(row for row in rows if isinstance(row, Damaged))
    )


def _text(raw: bytes) -> str:
    # One altered byte must cost its row and not the reading of all rows.
    return raw.decode(errors="replace")


def _row(record: Record) -> tuple[str, bytes, str, bytes, int]:
    devices = msgspec.json.encode(record.devices)
    body = encode_json(record)
    return (record.uid, devices, record.held, body, _checksum(record.uid, devices, record.held, body))


def _checksum(uid: str, devices: bytes, held: str, body: bytes) -> int:
    # Of the bytes on disk, so that a later version that writes a record differently still reads this one.
    return zlib.crc32(b"\0".join((uid.encode(), devices, held.encode(), body)))


def _record(uid: object, devices: object, held: object, body: object, checksum: object) -> Record | Damaged:
    if not (isinstance(uid, str) and isinstance(devices, bytes) and isinstance(held, str) and isinstance(body, bytes)):
        return Damaged(str(uid), None, "a column has the wrong type")
    if checksum != _checksum(uid, devices, held, body):
        return Damaged(uid, _names(devices), "the row does not match its checksum")
    try:
        record = decode_json(Record, body)
        CPUSet.parse(record.held)
    except (DocumentError, ValueError) as error:
        return Damaged(uid, _names(devices), str(error))
    return record


def _names(devices: bytes) -> tuple[str, ...] | None:
    try:
        return msgspec.json.decode(devices, type=tuple[str, ...])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


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
        # SQLite quotes damaged bytes in its message, which Python cannot read.
        raise LedgerError(f"the ledger {path} cannot be used: {error.object!r}") from error
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be used: {error.strerror}") from error
