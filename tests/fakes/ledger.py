"""Ledgers that cannot be read, each for another reason, while one or two drivers try to read them.

Tests may run as root, whom file modes do not stop. A refusal by the system is therefore simulated where SQLite is
opened, with the code and the message of SQLite 3.45.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dranode.driver.node import ledger

Mend = Callable[[], None]
Fault = Callable[[Path], contextlib.AbstractContextManager[Mend]]


@contextlib.contextmanager
def newer_schema(path: Path) -> Iterator[Mend]:
    """A newer version has written the ledger."""

    def write(schema: int) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(schema),))

    with contextlib.closing(sqlite3.connect(path)) as db:
        (before,) = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    write(int(before) + 8)
    yield lambda: write(int(before))


@contextlib.contextmanager
def a_folder_in_its_place(path: Path) -> Iterator[Mend]:
    """A folder has the ledger's name."""
    away = path.with_name("away.db")
    path.rename(away)
    path.mkdir()

    def mend() -> None:
        path.rmdir()
        away.rename(path)

    yield mend


class _Edge:
    """The sqlite3 module with another `connect`."""

    def __init__(self, connect: Callable[..., Any]) -> None:
        self.connect = connect

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)


@contextlib.contextmanager
def _refused(path: Path, statement: str | tuple[str, ...], code: str, words: str) -> Iterator[Mend]:
    """SQLite fails the first statement with this beginning, or the opening of the file."""
    mended: list[bool] = []

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            if not mended and sql.startswith(statement):
                raise refusal()
            return super().execute(sql, *rest)

    def refusal() -> sqlite3.OperationalError:
        error = sqlite3.OperationalError(words)
        error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, code), code
        return error

    def opened(database: Any, *rest: Any, **options: Any) -> Any:
        if mended or str(path) not in str(database):
            return sqlite3.connect(database, *rest, **options)
        if not statement:
            raise refusal()
        return sqlite3.connect(database, *rest, factory=Connection, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "sqlite3", _Edge(opened))
        yield lambda: mended.append(True)


def no_permission(path: Path) -> contextlib.AbstractContextManager[Mend]:
    """The system refuses to open the ledger."""
    return _refused(path, "", "SQLITE_CANTOPEN", "unable to open database file")


def an_input_output_error(path: Path) -> contextlib.AbstractContextManager[Mend]:
    """The disk fails to read the rows."""
    return _refused(path, "SELECT", "SQLITE_IOERR_READ", "disk I/O error")


def a_full_disk_without_shm(path: Path) -> contextlib.AbstractContextManager[Mend]:
    """A clean stop removes the -shm file that writers and readers share, and the disk has no room for a new one."""
    return _refused(path, "PRAGMA journal_mode", "SQLITE_CANTOPEN", "unable to open database file")


def a_full_disk_with_shm(path: Path) -> contextlib.AbstractContextManager[Mend]:
    """The ledger can be read but not written."""
    return _refused(path, ("INSERT", "UPDATE", "DELETE"), "SQLITE_FULL", "database or disk is full")


OF_ONE: Final[tuple[Fault, ...]] = (no_permission, an_input_output_error, a_full_disk_without_shm)
"""The faults that only one of two instances meets: the one that opens the ledger meanwhile."""
OF_BOTH: Final[tuple[Fault, ...]] = (newer_schema, a_folder_in_its_place)
FAULTS: Final[tuple[Fault, ...]] = (*OF_BOTH, *OF_ONE)
