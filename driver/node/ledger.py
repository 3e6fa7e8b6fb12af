"""The durable record of claims: one SQLite file per driver, one row a claim.

The ledger is the truth of who holds what; CDI specs and running containers are compared with it, never the other way
round. It runs in WAL mode with `synchronous=FULL`, so a commit that has returned survives a power cut at the price of
one flush. A row that fails its checksum is quarantined, the others stay in use.

Whether the file is damaged is looked at whenever it is opened (`node.ledger_file`, `node.ledger_rows`), and a statement
that hits another number of rows than are on record says so too. A newer schema is no damage: the file is kept.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dranode.api.documents import decode_json, encode_json
from dranode.api.errors import DocumentError, LedgerError
from dranode.cdi.regular_file import read_regular
from dranode.driver.claims.record import Record
from dranode.driver.machine.presence import is_there

# The ledger's tables: how they look when they are whole, and their rows as values.
#
# SQLite has no checksum over its pages: a flipped bit can hide a row, show it twice or rename a table, and no call
# fails. What would go unseen is looked at here: the file's header, the texts of the schema, SQLite's own check of its
# trees, and whether the rows are those that the index of the primary key has. Every row has a checksum over its bytes.

TABLES: Final = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "claims": """CREATE TABLE claims (
  uid TEXT PRIMARY KEY, devices TEXT NOT NULL, held TEXT NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL
)""",
}
"""The texts of the schema, as SQLite keeps them."""
HEADER_BYTES: Final = 100
# Offsets of the header's fields that never change, with what they are (https://sqlite.org/fileformat.html, 1.3); the
# numbers that read and write versions may have are those of a rollback journal and of a WAL.
_FIXED: Final = {
    (0, 16): (b"SQLite format 3\0",),
    (18, 20): (b"\1\1", b"\2\2"),
    (20, 24): (b"\0\x40\x20\x20",),
    (44, 48): tuple(bytes((0, 0, 0, number)) for number in range(5)),
    (52, 60): (bytes(4) + b"\0\0\0\1", bytes(8)),
    (64, 68): (bytes(4),),
}


class Damaged(msgspec.Struct, frozen=True):
    """A row that fails its checksum, as it stands.

    Attributes:
        uid: the claim's UID, as far as the row can be trusted.
        devices: the devices column, if it still reads as a list of names.
        reason: what is wrong with it.
    """

    uid: str
    devices: tuple[str, ...] | None
    reason: str


class Contents(msgspec.Struct, frozen=True):
    """All rows of the ledger.

    Attributes:
        records: those that are whole.
        damaged: the others.
        commits: the number of the last commit to them.
        doubt: why claims may be missing; empty if none is.
        notes: the driver's notes, as JSON; empty if it has none.
        notes_damage: why the notes are not as they were written; empty if they are.
        schema: the number of its schema; 0 where it was not asked for.
        bodies: the records that are whole by the bytes of their rows, which the ledger's copy repeats.
    """

    records: tuple[Record, ...]
    damaged: tuple[Damaged, ...]
    commits: int = 0
    doubt: str = ""
    notes: str = ""
    notes_damage: str = ""
    schema: int = 0
    bodies: Mapping[bytes, Record] = msgspec.field(default_factory=dict)


def contents_of(
    rows: tuple[Record | Damaged, ...], bodies: Mapping[bytes, Record], meta: Mapping[str, str], commits: int
) -> Contents:
    """Sort the rows into those that are whole and those that are not, with what stands beside them (`meta`)."""
    records = tuple(row for row in rows if isinstance(row, Record))
    damaged = tuple(row for row in rows if isinstance(row, Damaged))
    notes = meta.get("notes", "")
    problem = _notes_damage(notes, meta)
    return Contents(records, damaged, commits, meta.get("doubt", ""), notes, problem, bodies=bodies)


def read_meta(db: sqlite3.Connection) -> dict[str, str]:
    """Return what stands beside the claims."""
    return {str(key): str(value) for key, value in db.execute("SELECT key, value FROM meta")}


def notes_checksum(notes: str) -> str:
    """Return what is written beside a driver's notes, so that a flipped bit in them is seen."""
    return f"{zlib.crc32(notes.encode()):08x}"


def _notes_damage(notes: str, meta: Mapping[str, str]) -> str:
    # A version without checksums leaves none, or that of what a newer one wrote before it: `LedgerRecovery` knows.
    if meta.get("notes_checksum", notes_checksum(notes)) != notes_checksum(notes):
        return "they do not match their checksum"
    try:
        msgspec.json.decode(notes or "null")
    except msgspec.DecodeError as error:
        return str(error)
    return ""


def header_damage(header: bytes) -> str | None:
    """Return what is wrong with the first `HEADER_BYTES` of the file; None if nothing is, or if the file is empty."""
    if not header:
        return None
    if len(header) < HEADER_BYTES:
        return f"its header has {len(header)} of {HEADER_BYTES} bytes"
    for (first, end), allowed in _FIXED.items():
        if header[first:end] not in allowed:
            return f"its header has {header[first:end].hex()} at byte {first}"
    return None


def schema_damage(db: sqlite3.Connection) -> str | None:
    """Return what is wrong with the tables; None if nothing is, or if there are none yet."""
    found = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view')"))
    there = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not there:
        return None
    for name, text in TABLES.items():
        if found.get(name) != text:
            return f"its table {name} is {'another' if name in found else 'missing'}"
    return None


def tree_damage(db: sqlite3.Connection) -> str | None:
    """Return what SQLite itself finds wrong with its pages, tables and indexes; None if nothing is."""
    found = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return None if found == "ok" else " ".join(found.split())


def read_rows(db: sqlite3.Connection) -> tuple[tuple[Record | Damaged, ...], dict[bytes, Record]]:
    """All rows, and those that are whole by the bytes of their bodies."""
    rows: list[Record | Damaged] = []
    bodies: dict[bytes, Record] = {}
    for uid, devices, held, body, checksum in db.execute("SELECT uid, devices, held, body, checksum FROM claims"):
        row = _record(uid, devices, held, body, checksum)
        rows.append(row)
        if isinstance(row, Record):
            bodies[body] = row
    return tuple(rows), bodies


def index_damage(db: sqlite3.Connection, rows: tuple[Record | Damaged, ...]) -> str | None:
    """Return how the rows differ from those that the primary key's index has; None if they do not."""
    # Ordered by the key, SQLite reads the index alone, which has every UID a second time.
    indexed = [str(uid) for (uid,) in db.execute("SELECT uid FROM claims ORDER BY uid")]
    listed = sorted(row.uid for row in rows)
    if indexed == listed:
        return None
    return f"its index has {len(indexed)} claims and its table {len(listed)}, and they are not the same"


def encoded(record: Record) -> tuple[str, bytes, str, bytes, int]:
    """A record's row, in the order of the columns."""
    devices, held = msgspec.json.encode(record.devices), str(record.held)
    body = encode_json(record)
    return (record.uid, devices, held, body, _checksum(record.uid, devices, held, body))


def matches(record: Record, body: bytes, checksum: bytes) -> bool:
    """Return whether these are the body and the checksum of the record's row, in the order of the file."""
    found = int.from_bytes(checksum, signed=True)
    if not checksum:
        return False
    return found == _checksum(record.uid, msgspec.json.encode(record.devices), str(record.held), body)


def text(raw: bytes) -> str:
    """A column's text; one altered byte must cost its row and not the reading of all rows."""
    return raw.decode(errors="replace")


def _checksum(uid: str, devices: bytes, held: str, body: bytes) -> int:
    # Of the bytes on disk, so that a later version that writes a record differently still reads this one.
    return zlib.crc32(b"\0".join((uid.encode(), devices, held.encode(), body)))


def _record(uid: object, devices: object, held: object, body: object, checksum: object) -> Record | Damaged:
    if not (isinstance(uid, str) and isinstance(devices, bytes) and isinstance(held, str) and isinstance(body, bytes)):
        return Damaged(str(uid), None, "a column has the wrong type")
    if checksum != _checksum(uid, devices, held, body):
        return Damaged(uid, _names(devices), "the row does not match its checksum")
    try:
        return decode_json(Record, body)
    except DocumentError as error:
        return Damaged(uid, _names(devices), str(error))


def _names(devices: bytes) -> tuple[str, ...] | None:
    try:
        return msgspec.json.decode(devices, type=tuple[str, ...])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def decoded_notes(contents: Contents) -> Any:
    """Return the driver's notes as plain JSON; None if it has none.

    Raises:
        LedgerError: they are damaged.
    """
    if contents.notes_damage:
        raise LedgerError(f"the driver's notes in its ledger are damaged: {contents.notes_damage}")
    return msgspec.json.decode(contents.notes or "null")


# The ledger's file: what is damage and what is any other failure, and a damaged file's way out.
#
# A file is moved aside only if SQLite calls it corrupt (SQLITE_CORRUPT, SQLITE_NOTADB) or if it cannot be what was
# written. Any other failure (I/O, no space, busy, read-only) keeps the file and surfaces as `LedgerError`.

BUSY_SECONDS: Final = 5.0
"""How long to wait for another process that writes."""
# A constraint that is violated is damage as well: the statements are such that a whole file never violates one.
_CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT)


def copy_path(path: Path) -> Path:
    """Return where the copy of a ledger lies."""
    return path.with_name(f"{path.name}-copy")


class CorruptLedgerError(LedgerError):
    """SQLite says that the file is no database or damaged; it may be moved aside and rebuilt."""


def damage_of(path: Path) -> str | None:
    """Return what is wrong with the file before SQLite reads it; None if nothing is or if there never was one.

    Raises:
        OSError: it cannot be read.
    """
    # Looked for before the file, which another process may be making.
    beside = journal_of(path)
    header = _header(path)
    return header_damage(header) if header or not beside else _bereft(path, beside)


def journal_of(path: Path) -> tuple[str, ...]:
    """Return the names of the journal and of the journal's index, as far as they lie beside a ledger.

    Raises:
        OSError: they cannot be looked for.
    """
    return tuple(each for each in (f"{path.name}-wal", f"{path.name}-shm") if is_there(path.with_name(each)))


def _header(path: Path) -> bytes:
    try:
        return read_regular(path, HEADER_BYTES)
    except FileNotFoundError:
        return b""


def _bereft(path: Path, beside: Sequence[str]) -> str:
    """Return what is wrong with a journal or its index without a file: SQLite makes them after the file's first page.

    It would remove the journal, with rows that may stand there alone. Another process may have the index open still,
    and then the file can be used neither as it is nor as a new one.
    """
    lie = "lie" if len(beside) > 1 else "lies"
    return f"it is {'empty' if is_there(path) else 'gone'}, and {' and '.join(beside)} {lie} beside it"


def refuse_damage(path: Path, damage: str | None) -> None:
    """Refuse a file with some damage; None is none.

    Raises:
        CorruptLedgerError: there is damage.
    """
    if damage is not None:
        raise CorruptLedgerError(f"the ledger {path} is damaged: {damage}")


@contextlib.contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Convert the errors of SQLite and of the file system.

    Raises:
        CorruptLedgerError: the file is damaged.
        LedgerError: it cannot be used, for any other reason.
    """
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
