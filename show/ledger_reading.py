"""Reads a ledger for commands, while a driver may have it open."""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from msgspec.structs import replace

from dranode.api.errors import LedgerError
from dranode.cdi.regular_file import LARGEST, read_regular
from dranode.driver.machine.presence import is_there
from dranode.driver.node.ledger import (
    BUSY_SECONDS,
    SCHEMA_WITH_LOSS,
    Contents,
    contents_of,
    copy_path,
    damage_of,
    decode_text,
    errors_in,
    index_damage,
    journal_of,
    read_meta,
    read_rows,
    refuse_damage,
    schema_damage,
)
from dranode.driver.node.ledger_copy import LedgerCopy, refuse_behind
from dranode.driver.node.lost_ledger import Copied


def had_ledger(path: Path) -> bool:
    """Return whether a driver has a ledger at a path, or has left its copy or its journal there.

    Raises:
        OSError: it cannot be accessed.
    """
    return is_there(path) or is_there(copy_path(path)) or bool(journal_of(path))


def read_ledger(path: Path) -> Contents:
    """Return the rows of a ledger without disturbing a driver that has it open; a ledger that never existed is empty.

    Raises:
        LedgerError: the ledger or its copy cannot be read, the copy has more commits than the ledger, or the ledger is
            missing although its copy or journal exists.
    """
    with errors_in(path):
        # The copy is read first. A driver may commit meanwhile, and it writes the ledger before the copy, so reading
        # in the other order could find a copy that is ahead of the ledger.
        copied = _copied(path)
        contents = _read(path)
        if contents is not None and contents.schema > SCHEMA_WITH_LOSS:
            return contents
        if isinstance(copied, LedgerError):
            raise copied
        if contents is None:
            beside = f"{copy_path(path).name} lies beside it, from which a driver restores it at start-up"
            refuse_damage(path, f"it has no tables, and {beside}" if copied else None)
            return Contents((), ())
        refuse_behind(path, contents, copied)
        return contents


def _copied(path: Path) -> Copied | LedgerError | None:
    try:
        return LedgerCopy(copy_path(path)).read()
    except LedgerError as error:
        return error


def _read(path: Path) -> Contents | None:
    refuse_damage(path, damage_of(path))
    if not is_there(path):
        return None
    try:
        return _read_only(path)
    except sqlite3.OperationalError as error:
        # Recovering the journal of a killed driver needs write access to the folder, so recover a duplicate instead.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
    with tempfile.TemporaryDirectory(prefix="dranode-") as folder:
        return _read_only(_duplicate(path, Path(folder)))


def _read_only(path: Path) -> Contents | None:
    """Return the rows of a ledger; None if it has no tables."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    db.text_factory = decode_text
    with contextlib.closing(db):
        # One transaction, so that index and rows match even if a driver commits meanwhile.
        db.execute("BEGIN")
        refuse_damage(path, schema_damage(db))
        # A driver that was killed while it created the file leaves one without tables.
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return None
        rows, bodies = read_rows(db)
        refuse_damage(path, index_damage(db, rows))
        meta = read_meta(db)
        commits, schema = meta.get("commits", "0"), meta.get("schema", "")
        contents = contents_of(rows, bodies, meta, int(commits) if commits.isdecimal() else 0)
        return replace(contents, schema=int(schema) if schema.isdecimal() else 0)


def _duplicate(path: Path, folder: Path) -> Path:
    """Copy the ledger and its journal to another folder."""
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            (folder / (path.name + suffix)).write_bytes(read_regular(path.with_name(path.name + suffix), LARGEST))
    return folder / path.name
