"""Decides which of two instances answers a request of the container runtime with adjustments: exactly one.

During a rolling update two instances are NRI plug-ins, and the runtime shows every request to one and then to the
other; were both to set a CPU set, the container's creation would fail. Authority may pass between the two showings. So
the instance that is shown a request first notes what it did, and the second does the opposite.

A note counts for the request that it was written for, and for no later one of the same container: not if it is older
than this instance's connection, nor if its writer has lost its own or has died since. Should both adjust then, the
runtime fails the request and kubelet repeats it; should none, the container would be on every CPU.

The notes are not part of the ledger: they matter for seconds, need no flush, and each commit to the ledger would make
the other instance read all of it again. So a file of them that is damaged is made new, by whichever instance meets the
damage first.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import LedgerError
from dranode.driver.machine.presence import file_number
from dranode.driver.process.locks import FileLock

log = logging.getLogger(__name__)

# The runtime waits 2 s for each answer; a note older than this is of an earlier request for the same container.
_RECENT: Final = 10.0
_BUSY_SECONDS: Final = 0.5
# What SQLite calls a file that is none of ours: damaged, no database, or with another table of that name.
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS turns (
  request TEXT PRIMARY KEY, instance TEXT NOT NULL, adjusted INTEGER NOT NULL, at REAL NOT NULL
) WITHOUT ROWID
"""


class Turns:
    """The notes that instances leave for each other. Not thread-safe: the caller holds the lock of the authority.

    Times are of the machine's monotonic clock, which all processes share.
    """

    def __init__(
        self,
        path: Path,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        died: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Name the file; it is made by the first `take`. `died` says of another instance that it has ended."""
        self._path = path
        self._instance = instance
        self._clock = clock
        self._died = died
        self._connected_at = -math.inf
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._replacing = FileLock(path.with_name("turns.lock"))
        self._trouble = False

    def take(self, request: str, *, authority: bool) -> bool:
        """Return whether this instance answers the request with adjustments.

        `authority` decides if no other instance was shown it before. Without the file authority decides alone.
        """
        try:
            try:
                return self._taken(request, authority=authority)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                self.close()
                if not _is_damage(error):
                    raise
                self._replace(error)
                return self._taken(request, authority=authority)
        except (sqlite3.Error, UnicodeDecodeError, LedgerError, OSError) as error:
            if not self._trouble:
                log.warning("notes=%s: instances cannot leave each other notes: %s", self._path, error)
            self._trouble = True
            self.close()
            return authority

    def _taken(self, request: str, *, authority: bool) -> bool:
        with self._transaction() as db:
            turn = self._take(db, request, authority=authority)
        self._trouble = False
        return turn

    def _replace(self, cause: Exception) -> None:
        """Remove a damaged file, unless the other instance has done so."""
        with self._replacing.held():
            if file_number(self._path) != self._inode:
                return
            for suffix in ("-wal", "-shm", ""):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        log.warning(
            "notes=%s: the notes that instances leave each other were damaged and are made new: %s", self._path, cause
        )

    def _take(self, db: sqlite3.Connection, request: str, *, authority: bool) -> bool:
        now = self._clock()
        db.execute("DELETE FROM turns WHERE at NOT BETWEEN ? AND ?", (now - _RECENT, now))
        row = db.execute("SELECT instance, adjusted, at FROM turns WHERE request = ?", (request,)).fetchone()
        if row is not None and row[0] != self._instance:
            db.execute("DELETE FROM turns WHERE request = ?", (request,))
            if row[2] >= self._connected_at and not self._died(row[0]):
                return not row[1]
        db.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?)", (request, self._instance, authority, now))
        return authority

    def connected(self) -> None:
        """Take note that a connection begins: what others have noted so far is of requests that it did not bring."""
        self._connected_at = self._clock()

    def disconnected(self) -> None:
        """Take this instance's notes back: the other one is shown requests alone from now on."""
        if self._db is None:
            return
        try:
            with self._transaction() as db:
                db.execute("DELETE FROM turns WHERE instance = ?", (self._instance,))
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            log.warning("notes=%s: this instance's notes cannot be taken back: %s", self._path, error)
            self.close()

    def close(self) -> None:
        """Close the file; the next `take` opens it again."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._db is not None and file_number(self._path) != self._inode:
            self.close()
        if self._db is None:
            # Noted for a failure as well: it is this file that was found damaged, and none that replaces it.
            self._inode = file_number(self._path)
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute(_CREATE)
            self._inode = file_number(self._path)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _is_damage(error: Exception) -> bool:
    # SQLite quotes damaged bytes in its message, which Python cannot read.
    return isinstance(error, UnicodeDecodeError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
