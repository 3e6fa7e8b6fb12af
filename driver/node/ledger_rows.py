"""The ledger's tables: how they look when they are whole, and their rows as values.

SQLite has no checksum over its pages: a flipped bit can hide a row, show it twice or rename a table, and no call fails.
What would go unseen is looked at here: the file's header, the texts of the schema, SQLite's own check of its trees, and
whether the rows are those that the index of the primary key has. Every row has a checksum over its bytes.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dranode.driver.core.api.documents import decode_json, encode_json
from dranode.driver.core.api.errors import DocumentError, LedgerError
from dranode.driver.core.claims.record import Record

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
