"""The ledger's file: what is damage and what is any other failure, and a damaged file's way out.

A file is moved aside only if SQLite calls it corrupt (SQLITE_CORRUPT, SQLITE_NOTADB) or if it cannot be what was
written. Any other failure (I/O, no space, busy, read-only) keeps the file and surfaces as `LedgerError`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dranode.cdi.regular_file import read_regular
from dranode.driver.core.api.errors import LedgerError
from dranode.driver.machine.presence import is_there
from dranode.driver.node.ledger_rows import HEADER_BYTES, header_damage

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
