"""The durable record of claims: one SQLite file for each driver, with one row for each claim.

The ledger decides who holds what. CDI specs and running containers are compared with it, never the other way round. It
uses WAL mode and `synchronous=EXTRA`: a commit that has returned survives a power cut, for the price of one flush. A
row that fails its checksum is quarantined; the other rows stay in use.

The file is checked for damage whenever it is opened, and whenever a statement affects another number of rows than are
on record. A schema with a newer number is not damage: the file is left unchanged.
"""

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

# SQLite's pages have no checksums. A flipped bit can hide a row, show a row twice or rename a table, and no call fails.
# So the file's header, the schema, SQLite's own check of its trees, and the index of the primary key are compared with
# what they have to be, and each row has a checksum over its bytes.

TABLES: Final = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "claims": """CREATE TABLE claims (
  uid TEXT PRIMARY KEY, devices TEXT NOT NULL, held TEXT NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL
)""",
}
"""The texts of the schema, as SQLite keeps them."""
HEADER_BYTES: Final = 100
# Offsets of the header's fields that never change, with their allowed values (https://sqlite.org/fileformat.html, 1.3).
# The read and write versions are 1 for a rollback journal and 2 for a WAL.
_FIXED: Final = {
    (0, 16): (b"SQLite format 3\0",),
    (18, 20): (b"\1\1", b"\2\2"),
    (20, 24): (b"\0\x40\x20\x20",),
    (44, 48): tuple(bytes((0, 0, 0, number)) for number in range(5)),
    (52, 60): (bytes(4) + b"\0\0\0\1", bytes(8)),
    (64, 68): (bytes(4),),
}


class Damaged(msgspec.Struct, frozen=True):
    """A row that fails its checksum.

    Attributes:
        uid: the claim's UID, if the row can be trusted.
        devices: the devices column, if it is still a list of names.
        reason: what is wrong with the row.
    """

    uid: str
    devices: tuple[str, ...] | None
    reason: str


class Contents(msgspec.Struct, frozen=True):
    """What the ledger holds.

    Attributes:
        records: the intact rows.
        damaged: the other rows.
        commits: the number of the last commit.
        loss: why claims may be missing; empty if none are missing.
        notes: the driver's notes, as JSON; empty if there are none.
        notes_damage: what is wrong with the notes; empty if nothing is.
        schema: the number of the schema; 0 if it was not read.
        bodies: the intact records by the bytes of their rows, which the ledger's copy repeats.
    """

    records: tuple[Record, ...]
    damaged: tuple[Damaged, ...]
    commits: int = 0
    loss: str = ""
    notes: str = ""
    notes_damage: str = ""
    schema: int = 0
    bodies: Mapping[bytes, Record] = msgspec.field(default_factory=dict)


def contents_of(
    rows: tuple[Record | Damaged, ...], bodies: Mapping[bytes, Record], meta: Mapping[str, str], commits: int
) -> Contents:
    """Return the rows, intact and damaged, with the values beside them (`meta`)."""
    records = tuple(row for row in rows if isinstance(row, Record))
    damaged = tuple(row for row in rows if isinstance(row, Damaged))
    notes = meta.get("notes", "")
    problem = _notes_damage(notes, meta)
    return Contents(records, damaged, commits, meta.get("doubt", ""), notes, problem, bodies=bodies)


def read_meta(db: sqlite3.Connection) -> dict[str, str]:
    """Return the values beside the claims."""
    return {str(key): str(value) for key, value in db.execute("SELECT key, value FROM meta")}


def notes_checksum(notes: str) -> str:
    """Return the checksum that is stored beside a driver's notes."""
    return f"{zlib.crc32(notes.encode()):08x}"


def _notes_damage(notes: str, meta: Mapping[str, str]) -> str:
    # An older version writes no checksum. It may leave that of notes which a newer version wrote before;
    # `LedgerRecovery` handles this case.
    if meta.get("notes_checksum", notes_checksum(notes)) != notes_checksum(notes):
        return "they do not match their checksum"
    try:
        msgspec.json.decode(notes or "null")
    except msgspec.DecodeError as error:
        return str(error)
    return ""


def header_damage(header: bytes) -> str | None:
    """Return what is wrong with the first `HEADER_BYTES` of the file; None for a good header and for an empty file."""
    if not header:
        return None
    if len(header) < HEADER_BYTES:
        return f"its header has {len(header)} of {HEADER_BYTES} bytes"
    # Other fields, such as the number of pages, change with each commit and are checked by SQLite itself.
    for (first, end), allowed in _FIXED.items():
        if header[first:end] not in allowed:
            return f"its header has {header[first:end].hex()} at byte {first}"
    return None


def schema_damage(db: sqlite3.Connection) -> str | None:
    """Return what is wrong with the tables; None if nothing is, or if the file has none yet."""
    tables = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view')"))
    # A file without tables is new. One with other tables is damaged, or is not a ledger.
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return None
    for name, text in TABLES.items():
        if tables.get(name) != text:
            return f"its table {name} is {'another' if name in tables else 'missing'}"
    return None


def tree_damage(db: sqlite3.Connection) -> str | None:
    """Return what SQLite itself finds wrong with its pages, tables and indexes; None if nothing is."""
    result = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return None if result == "ok" else " ".join(result.split())


def read_rows(db: sqlite3.Connection) -> tuple[tuple[Record | Damaged, ...], dict[bytes, Record]]:
    """Return all rows, and the intact ones by the bytes of their bodies."""
    rows: list[Record | Damaged] = []
    bodies: dict[bytes, Record] = {}
    for uid, devices, held, body, checksum in db.execute("SELECT uid, devices, held, body, checksum FROM claims"):
        row = _record(uid, devices, held, body, checksum)
        rows.append(row)
        if isinstance(row, Record):
            bodies[body] = row
    return tuple(rows), bodies


def index_damage(db: sqlite3.Connection, rows: tuple[Record | Damaged, ...]) -> str | None:
    """Return how the rows differ from the index of the primary key; None if they do not."""
    # The index has every UID a second time. Ordered by the key, SQLite reads only the index.
    indexed = [str(uid) for (uid,) in db.execute("SELECT uid FROM claims ORDER BY uid")]
    listed = sorted(row.uid for row in rows)
    if indexed == listed:
        return None
    return f"its index has {len(indexed)} claims and its table {len(listed)}, and they are not the same"


def encoded(record: Record) -> tuple[str, bytes, str, bytes, int]:
    """Return a record's row, in the order of the columns."""
    devices, held = msgspec.json.encode(record.devices), str(record.held)
    body = encode_json(record)
    return (record.uid, devices, held, body, _checksum(record.uid, devices, held, body))


def matches(record: Record, body: bytes, checksum: bytes) -> bool:
    """Return whether a record's row has this body and this checksum, as they stand in the file."""
    # At the end of the file there may be no bytes left, which would count as a checksum of 0.
    if not checksum:
        return False
    expected = _checksum(record.uid, msgspec.json.encode(record.devices), str(record.held), body)
    return int.from_bytes(checksum, signed=True) == expected


def decode_text(raw: bytes) -> str:
    """Decode a column's text. An invalid byte damages its own row only; the other rows can still be read."""
    return raw.decode(errors="replace")


def _checksum(uid: str, devices: bytes, held: str, body: bytes) -> int:
    # Over the bytes on disk, so that a later version, which may write the same record differently, accepts this row.
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
    """Return the driver's notes as plain JSON; None if there are none.

    Raises:
        LedgerError: the notes are damaged.
    """
    if contents.notes_damage:
        raise LedgerError(f"the driver's notes in its ledger are damaged: {contents.notes_damage}")
    return msgspec.json.decode(contents.notes or "null")


# Only a damaged file is moved aside: SQLite calls it corrupt (SQLITE_CORRUPT, SQLITE_NOTADB), or it fails one of the
# checks above. After any other failure (I/O error, no space, busy, read-only) the file stays, and `LedgerError` says
# why it cannot be used: a disk that fails for a minute must not cost the records.

BUSY_SECONDS: Final = 5.0
"""How long to wait for another process that writes."""
# A violated constraint is damage too, because our statements never violate one in an intact file.
_CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT)


def copy_path(path: Path) -> Path:
    """Return the path of a ledger's copy."""
    return path.with_name(f"{path.name}-copy")


class CorruptLedgerError(LedgerError):
    """The ledger's file is damaged; it may be moved aside and rebuilt."""


def damage_of(path: Path) -> str | None:
    """Return what is wrong with the file, checked before SQLite opens it; None if nothing is, or if there is no file.

    Raises:
        OSError: it cannot be read.
    """
    # Looked for before the file: another process that creates the ledger creates the file first.
    beside = journal_of(path)
    header = _header(path)
    return header_damage(header) if header or not beside else _journal_alone(path, beside)


def journal_of(path: Path) -> tuple[str, ...]:
    """Return the names of the journal and its index, if they exist beside a ledger.

    Raises:
        OSError: they cannot be accessed.
    """
    return tuple(name for name in (f"{path.name}-wal", f"{path.name}-shm") if is_there(path.with_name(name)))


def _header(path: Path) -> bytes:
    try:
        return read_regular(path, first=HEADER_BYTES)
    except FileNotFoundError:
        return b""


def _journal_alone(path: Path, beside: Sequence[str]) -> str:
    """Return what is wrong if there is a journal or its index, but the file is empty or gone.

    SQLite creates them only after the file's first page. It would now delete the journal, which may have rows that are
    nowhere else. And while another process has the index open, a new file could not be used either.
    """
    lie = "lie" if len(beside) > 1 else "lies"
    return f"it is {'empty' if is_there(path) else 'gone'}, and {' and '.join(beside)} {lie} beside it"


def refuse_damage(path: Path, damage: str | None) -> None:
    """Refuse a damaged file.

    Raises:
        CorruptLedgerError: `damage` is not None.
    """
    if damage is not None:
        raise CorruptLedgerError(f"the ledger {path} is damaged: {damage}")


@contextlib.contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and of the file system.

    Raises:
        CorruptLedgerError: the file is damaged.
        LedgerError: the file cannot be used for another reason.
    """
    try:
        yield
    except sqlite3.Error as error:
        # Errors of Python's sqlite3 module itself have no code: a misuse or a closed handle, not a damaged file.
        # Extended codes, such as SQLITE_CORRUPT_INDEX, have the primary code in their lowest byte.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _CORRUPT:
            raise CorruptLedgerError(f"the ledger {path} is damaged: {error}") from error
        raise LedgerError(
            f"the ledger {path} cannot be used: {error}; no new claims are prepared until it can be used"
        ) from error
    except UnicodeDecodeError as error:
        # SQLite's message quotes damaged bytes of the schema, which Python cannot decode.
        raise CorruptLedgerError(f"the ledger {path} is damaged: {error.object.decode(errors='replace')}") from error
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be used: {error.strerror}") from error


def move_aside(path: Path) -> Path:
    """Rename a corrupt ledger with its -wal and -shm; the caller holds the lock among processes.

    Raises:
        LedgerError: a file cannot be renamed.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.corrupt-{stamp}-{os.getpid()}")
    try:
        # The file itself goes last: if the process dies in between, the next start still finds a ledger to move aside.
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise LedgerError(f"the corrupt ledger {path} cannot be moved aside: {error.strerror}") from error
    return aside


SCHEMA: Final = 1
# While the WAL still grows, each flush makes the file system commit its own journal too, which triples the wait. With
# SQLite's default of 1,000 pages the WAL grows during the first 300 commits after each start, with this size during 40.
_JOURNAL_PAGES: Final = 128
SCHEMA_WITH_LOSS: Final = 2
"""The schema of a ledger that may lack claims. A dranode that does not know about losses refuses to open it."""


def newer_schema_error(path: Path, schema: int) -> str:
    """Return the error for a ledger whose schema is newer than this dranode."""
    return (
        f"{path} was written by a newer dranode (schema {schema}, this one knows {SCHEMA_WITH_LOSS}); "
        "go back to that version, or drain the node with it first"
    )


class Ledger:
    """An open ledger. Not thread-safe: use it under the lock on decisions."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, or create it if there is none.

        Raises:
            CorruptLedgerError: the file as a whole is damaged.
            LedgerError: the file cannot be opened, or a newer dranode wrote it.
        """
        self.path = path
        # The claims in the file as of the last reading, and the number of the last commit; None if that is not known.
        self._uids: set[str] | None = None
        self._commits = 0
        with errors_in(path):
            refuse_damage(path, damage_of(path))
            # `isolation_level=None` leaves transactions to us: Python would begin deferred ones by itself.
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
            self._db.text_factory = decode_text
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        # With a WAL this is the same as FULL. Where SQLite cannot have one, such as on some network file systems, only
        # EXTRA flushes the folder after each commit, without which a power cut could undo it.
        self._db.execute("PRAGMA synchronous=EXTRA")
        self._db.execute(f"PRAGMA wal_autocheckpoint={_JOURNAL_PAGES}")
        with self.transaction():
            # One transaction, so that two instances that start together do not both create the tables.
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
        if schema > SCHEMA_WITH_LOSS:
            raise LedgerError(newer_schema_error(self.path, schema))
        # Schema 2 and the reason for the loss are always written together, so one without the other is damage.
        if schema not in (SCHEMA, SCHEMA_WITH_LOSS) or (schema == SCHEMA_WITH_LOSS) != bool(self._meta("doubt")):
            refuse_damage(self.path, f"its schema has the number {schema}")

    def _number(self, key: str) -> int:
        value = self._meta(key) or ""
        if not (value.isascii() and value.isdecimal()):
            refuse_damage(self.path, f"its {key} has the number {value!r}")
        return int(value)

    def close(self) -> None:
        """Close the file; the ledger cannot be used any more."""
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a decision and its commit as one transaction; no other process can write meanwhile.

        Raises:
            LedgerError: the transaction cannot begin or be committed; nothing of it is on disk then.
        """
        # IMMEDIATE takes the write lock before the rows are read. A deferred transaction would decide on rows that
        # another process may change before the commit.
        with errors_in(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # Which claims are in the file now is not known for sure; `commit` reads them again.
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
        """Return all rows, intact and damaged.

        Raises:
            CorruptLedgerError: the file as a whole is damaged.
            LedgerError: the file cannot be read, or a newer dranode has written it since it was opened.
        """
        with errors_in(self.path):
            # Read before the rows: a commit in between makes the next `changed` true, so it is never missed.
            version = self._data_version()
            # During a rolling update, an instance of another version may have written meanwhile.
            self._check_schema()
            rows, bodies = read_rows(self._db)
            refuse_damage(self.path, index_damage(self._db, rows))
            contents = contents_of(rows, bodies, read_meta(self._db), self._number("commits"))
        self._seen = version
        self._uids, self._commits = {row.uid for row in rows}, contents.commits
        return contents

    def commit(self, put: Iterable[Record] = (), drop: Iterable[str] = ()) -> int:
        """Write and delete records inside a `transaction`.

        Returns:
            The commit's number.

        Raises:
            CorruptLedgerError: the primary key does not find a claim that is in the file, or finds one that is not.
        """
        if self._uids is None:
            self.read()
        on_file = self._uids if self._uids is not None else set()
        with errors_in(self.path):
            for record in put:
                # `INSERT OR REPLACE` would hide a damaged key: both statements must affect exactly the rows that are
                # expected.
                self._put(record, exists=record.uid in on_file)
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

    def restore(self, records: Iterable[Record], commits: int, loss: str, notes: str) -> None:
        """Fill a new ledger, inside a `transaction`, with what the lost one is known to have had up to a commit."""
        self.commit(put=records)
        self._set_commits(commits)
        self.set_notes(notes)
        self.set_loss(loss)

    def set_loss(self, reason: str) -> None:
        """Note why claims may be missing, inside a `transaction`; an empty reason says that none are missing."""
        with errors_in(self.path):
            self._db.execute("DELETE FROM meta WHERE key = 'doubt'")
            if reason:
                self.set_meta("doubt", reason)
            self.set_meta("schema", str(SCHEMA_WITH_LOSS if reason else SCHEMA))

    def _put(self, record: Record, *, exists: bool) -> None:
        row = encoded(record)
        if not exists:
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
        """Return a value beside the claims, such as the id of the boot in which they were last used."""
        with errors_in(self.path):
            return self._meta(key)

    def set_notes(self, notes: str) -> None:
        """Write the driver's notes with their checksum, inside a `transaction`."""
        self.set_meta("notes", notes)
        self.set_meta("notes_checksum", notes_checksum(notes))

    def set_meta(self, key: str, value: str) -> None:
        """Write a value beside the claims, inside a `transaction`."""
        with errors_in(self.path):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
