"""Reads a ledger from beside the driver that has it open, as commands do."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from msgspec.structs import replace

from dranode.api.errors import LedgerError
from dranode.driver.claims.record import Copied
from dranode.driver.machine.presence import is_there
from dranode.driver.node.ledger import (
    BUSY_SECONDS,
    SCHEMA_WITH_LOSS,
    Contents,
    contents_of,
    copy_path,
    damage_of,
    errors_in,
    index_damage,
    journal_of,
    read_meta,
    read_rows,
    refuse_damage,
    schema_damage,
    text,
)
from dranode.driver.node.ledger_copy import LedgerCopy, refuse_behind


def had_ledger(path: Path) -> bool:
    """Return whether a driver has a ledger at a path, or has left its copy or its journal there.

    Raises:
        OSError: it cannot be accessed.
    """
    return is_there(path) or is_there(copy_path(path)) or bool(journal_of(path))


def read_ledger(path: Path) -> Contents:
    """The rows of a ledger that a driver may have open, without disturbing it.

    Raises:
        LedgerError: it or its copy cannot be read, the copy has more than the ledger, or the ledger is gone and left
            copy or journal. One that never was there has no rows.
    """
    with errors_in(path):
        # Before the ledger, to which a driver may commit meanwhile: the copy has each commit after it.
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
        # The journal of a driver that was killed wants to be recovered, which takes writing beside it.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
    with tempfile.TemporaryDirectory(prefix="dranode-") as folder:
        return _read_only(_duplicate(path, Path(folder)))


def _read_only(path: Path) -> Contents | None:
    """Return the rows of a ledger; None if it has no tables."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    db.text_factory = text
    with contextlib.closing(db):
        # One reading, so that a driver that commits in between does not make index and rows differ.
        db.execute("BEGIN")
        refuse_damage(path, schema_damage(db))
        # A driver that was killed while it made the file leaves one without tables.
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return None
        rows, bodies = read_rows(db)
        refuse_damage(path, index_damage(db, rows))
        meta = read_meta(db)
        commits, schema = meta.get("commits", "0"), meta.get("schema", "")
        contents = contents_of(rows, bodies, meta, int(commits) if commits.isdecimal() else 0)
        return replace(contents, schema=int(schema) if schema.isdecimal() else 0)


def _duplicate(path: Path, folder: Path) -> Path:
    """The ledger with its journal, as they are now, in another folder."""
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            (folder / (path.name + suffix)).write_bytes(path.with_name(path.name + suffix).read_bytes())
    return folder / path.name
