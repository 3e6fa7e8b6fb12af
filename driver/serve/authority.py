"""Decides which of two instances of a driver is active, that is, publishes slices, verifies and pins containers.

Locks on files decide (flock(2)). The kernel releases the locks of a process that dies, so nothing has to be cleaned up:

- `active.lock`: its holder is the active instance.
- `handover.lock`: held by a newer instance that is ready. It registers with kubelet and the runtime first, while it is
  passive. The active instance sees the lock, stops publishing, and releases `active.lock`, which the newer one takes.
- `standby.lock`: held by the older instance afterwards, until it is ended. If the newer one dies, or cannot use the
  ledger, the older one becomes active again. An instance that cannot use the ledger is active only if no other one
  wants to be.
- `connected.lock`: held by the active instance while a container runtime is connected to it, and touched at each check.
  While it is free, or was not touched for a while because its holder is stopped, another instance that is connected
  answers the runtime.

Two instances check the locks five times a second. An instance that is alone waits until another one shows itself
(`OtherInstances`). While the active role passes on, the runtime may ask both about one container. Then `RequestNotes`
makes exactly one of them adjust the container.
"""

import contextlib
import fcntl
import logging
import math
import os
import select
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Final

from dranode.api.errors import LedgerError
from dranode.driver.machine.folder_events import FolderEvents
from dranode.driver.machine.presence import file_number
from dranode.driver.nri.state import Instance
from dranode.driver.process.locks import FileLock
from dranode.driver.process.threads import Fatal, OwnedThread, Wake

log = logging.getLogger(__name__)


# During a rolling update both instances are NRI plug-ins, and the runtime asks one after the other about each
# container. If both set a CPU set, the runtime fails the creation; if none does, the container runs on every CPU. The
# active role may pass on between the two questions. So the instance that is asked first notes what it answered, and the
# second one does the opposite.
#
# A note is for one request, not for a later one about the same container. So it does not count if it is older than this
# instance's connection, or if its writer has lost its connection or has died since. In doubt both adjust: the runtime
# then fails the request, and kubelet repeats it.
#
# Notes are not in the ledger, because they matter for seconds only, need no flush, and each commit to the ledger makes
# the other instance read all of it again. A damaged file of notes is replaced by the instance that finds the damage
# first.

# The runtime waits 2 s for each answer, so an older note than this is about an earlier request for the same container.
_RECENT: Final = 10.0
_BUSY_SECONDS: Final = 0.5
# SQLite's errors for a damaged file, a file that is not a database, and one with another table of that name.
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS turns (
  request TEXT PRIMARY KEY, instance TEXT NOT NULL, adjusted INTEGER NOT NULL, at REAL NOT NULL
) WITHOUT ROWID
"""


class RequestNotes:
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
        """Name the file, which the first request creates; `died` returns whether another instance has died."""
        self._path = path
        self._instance = instance
        self._clock = clock
        self._died = died
        self._connected_at = -math.inf
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._replacing = FileLock(path.with_name("turns.lock"))
        self._trouble = False

    def adjusts(self, request: str, *, authority: bool) -> bool:
        """Return whether this instance adjusts the container of a request.

        If the other instance was not asked before, `authority` decides; also if the notes cannot be used.
        """
        try:
            try:
                return self._noted(request, authority=authority)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                self.close()
                if not _is_damage(error):
                    raise
                self._replace(error)
                return self._noted(request, authority=authority)
        except (sqlite3.Error, UnicodeDecodeError, LedgerError, OSError) as error:
            if not self._trouble:
                log.warning("notes=%s: instances cannot leave each other notes: %s", self._path, error)
            self._trouble = True
            self.close()
            return authority

    def _noted(self, request: str, *, authority: bool) -> bool:
        with self._transaction() as db:
            adjusts = self._note(db, request, authority=authority)
        self._trouble = False
        return adjusts

    def _replace(self, cause: Exception) -> None:
        """Remove a damaged file, unless the other instance has done so."""
        with self._replacing.held(_BUSY_SECONDS):
            if file_number(self._path) != self._inode:
                return
            for suffix in ("-wal", "-shm", ""):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        log.warning("notes=%s: the notes between instances were damaged; a new file was started: %s", self._path, cause)

    def _note(self, db: sqlite3.Connection, request: str, *, authority: bool) -> bool:
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
        """Note that a connection begins. Older notes are about requests that this instance did not get."""
        self._connected_at = self._clock()

    def disconnected(self) -> None:
        """Remove this instance's notes: from now on only the other one is asked."""
        if self._db is None:
            return
        try:
            with self._transaction() as db:
                db.execute("DELETE FROM turns WHERE instance = ?", (self._instance,))
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            log.warning("notes=%s: this instance's notes cannot be removed: %s", self._path, error)
            self.close()

    def close(self) -> None:
        """Close the file; the next request opens it again."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._db is not None and file_number(self._path) != self._inode:
            self.close()
        if self._db is None:
            # Set before opening as well: if this file is damaged, another one that has replaced it must not be removed.
            self._inode = file_number(self._path)
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS)
            self._db.execute("PRAGMA journal_mode=WAL")
            # Notes need not survive a power cut.
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
    # SQLite's message quotes damaged bytes, which Python cannot decode.
    return isinstance(error, UnicodeDecodeError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


# Each instance has a file in one folder and holds a lock on it. The kernel reports new and removed files (inotify), so
# an instance that is alone need not check all the time, and it releases the lock of an instance that dies. A file gets
# its final name only once it is locked, so a file that is not locked belongs to an instance that has died.


class OtherInstances:
    """Finds the other instances on the node. Only the thread that waits uses it, except for `wake` and `has_died`."""

    def __init__(self, folder: Path, name: str) -> None:
        """Name the folder and this instance's file in it; nothing is created yet."""
        self._folder = folder
        self._name = name
        self._lock = FileLock(folder / f".{name}")
        self._events = FolderEvents(folder)
        self._wake = Wake()
        self._died: set[str] = set()

    def arrive(self) -> None:
        """Show this instance to the others. If that fails, they find it by its locks a little later."""
        try:
            self._folder.mkdir(mode=0o750, exist_ok=True)
            self._take_name()
        except (OSError, LedgerError) as error:
            log.warning("folder=%s: this instance cannot show itself to others: %s", self._folder, error)
        self._events.names()

    def _take_name(self) -> None:
        while True:
            self._lock.acquire()
            # Another instance may have removed the file before it was locked, because it looked like that of a dead
            # one.
            with contextlib.suppress(FileNotFoundError):
                self._lock.path.rename(self._folder / self._name)
                return
            self._lock.release()

    def exist(self) -> bool:
        """Return whether there may be another instance; the files of dead ones are removed."""
        try:
            others = [path for path in self._folder.iterdir() if path.name not in (self._name, self._lock.path.name)]
        except OSError:
            return True
        return any(map(self._lives, others))

    def has_died(self, name: str) -> bool:
        """Return whether another instance has died, without leaving in order. Thread-safe."""
        self._lives(self._folder / name)
        return name in self._died

    def _lives(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                self._died.add(path.name)
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def wait(self, seconds: float) -> None:
        """Wait until another instance comes or goes, or `wake` is called, but at most for `seconds`."""
        poll = select.poll()
        for file in (self._wake.fileno(), self._events.fileno):
            if file is not None and file >= 0:
                poll.register(file, select.POLLIN)
        poll.poll(seconds * 1000)
        self._wake.clear()
        self._events.names()

    @property
    def watched(self) -> bool:
        """Return whether `wait` ends when another instance comes; not if inotify is not available."""
        return self._events.fileno is not None

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._wake.set()

    def leave(self) -> None:
        """Remove this instance's file."""
        with contextlib.suppress(OSError):
            (self._folder / self._name).unlink(missing_ok=True)
        self._lock.release()
        self._events.close()
        self._wake.close()


# How often two instances check the locks, in seconds.
_CHECK_SECONDS: Final = 0.2
# How long after its last check the active instance counts as stopped, in seconds. If it was only slow, `RequestNotes`
# still lets one instance adjust each container.
_STOPPED_SECONDS: Final = 2.0
# How often an instance that is alone checks anyway, in seconds: an instance of an older version does not show itself.
_ALONE_SECONDS: Final = 5.0


class Role(Enum):
    """The state of an instance: WAITING for authority, ACTIVE, or RETIRED after it has handed over."""

    WAITING = "waiting"
    ACTIVE = "active"
    RETIRED = "retired"


class Authority(Instance):
    """The authority of one instance: whether it is active. Its own thread calls `begin`, `end` and `follow`."""

    def __init__(
        self,
        data: Path,
        name: str,
        *,
        prepared: Callable[[], bool],
        able: Callable[[], bool],
        begin: Callable[[], None],
        end: Callable[[], None],
        follow: Callable[[], None],
        fatal: Fatal,
    ) -> None:
        """Set the instance up; `start` starts its thread.

        Args:
            data: the driver's folder, which all instances share.
            name: the driver, for the thread's name.
            prepared: returns whether this instance is ready to become active.
            able: returns whether it can decide at all; called between two requests of the runtime, so it never waits.
            begin: called when this instance has become active.
            end: called before this instance stops being active.
            follow: called at every check, to read what another instance has committed.
            fatal: ends the process with a sentence.
        """
        self.role = Role.WAITING
        self._name = name
        self._prepared, self._able = prepared, able
        self._begin, self._end, self._follow = begin, end, follow
        self._active = FileLock(data / "active.lock")
        self._handover = FileLock(data / "handover.lock")
        self._standby = FileLock(data / "standby.lock")
        self._offers = False
        self._stands_by = False
        self._begun = False
        instance = f"{os.getpid()}-{uuid.uuid4()}"
        self._others = OtherInstances(data / "instances", instance)
        self._notes = RequestNotes(data / "turns.db", instance, died=self._others.has_died)
        self._answers = FileLock(data / "connected.lock")
        self._connected = self._shows = False
        # Two threads use this object: the one that answers the container runtime, and its own, which checks the locks.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = OwnedThread(f"{name}-authority", self._run, fatal)

    @property
    def active(self) -> bool:
        """Return whether this instance is the one that publishes, verifies and pins."""
        return self.role is Role.ACTIVE

    @property
    def speaks(self) -> bool:
        """Return whether this instance answers requests for which it has no note of the other instance.

        That is the active instance. While no active instance is connected, it is this one, unless it cannot decide and
        another instance that can is about to take over.
        """
        try:
            return self.active or not (self._is_answered() or self._defers_to_other())
        except LedgerError as error:
            log.warning("driver=%s: only the active instance answers the runtime: %s", self._name, error)
            return self.active

    def _is_answered(self) -> bool:
        """Return whether an active instance is connected to the runtime and still checks the locks."""
        if not self._answers.is_held():
            return False
        # An older version does not touch the file, so its time is one of the wall clock, which is much later.
        with contextlib.suppress(OSError):
            return time.monotonic() - self._answers.path.stat().st_mtime < _STOPPED_SECONDS
        return True

    @property
    def retired(self) -> bool:
        """Return whether this instance has handed over to a newer one."""
        return self.role is Role.RETIRED

    def start(self) -> None:
        """Take the authority if it is free, and check it from now on."""
        self._others.arrive()
        self.check()
        self._thread.start()

    def stop(self) -> None:
        """Give up the authority for good; an instance that waits takes it with its next request or check.

        Until `close`, requests are still noted, because the runtime may still send some to this instance.
        """
        self._stopped.set()
        self._others.wake()
        if self._thread.ident is not None:
            self._thread.join()
        if self._begun:
            self._end()
            self._begun = False
        with self._lock:
            self.role = Role.RETIRED
            self._show()
            self._active.release()
            self._handover.release()
            self._standby.release()

    def close(self) -> None:
        """Stop noting requests, and remove this instance's file, so that others do not find it any more."""
        with self._lock:
            self._notes.close()
        self._others.leave()

    def adjusts(self, request: str) -> bool:
        """Return whether this instance answers a request of the container runtime with adjustments."""
        with self._lock:
            # Perhaps no instance is active at this moment, and one has to adjust the container.
            if self._take():
                self._others.wake()
            return self._notes.adjusts(request, authority=self.speaks)

    def connected(self) -> None:
        """Note that the container runtime sends requests to this instance from now on."""
        with self._lock:
            self._connected = True
            self._notes.connected()
            self._show()

    def disconnected(self) -> None:
        """Note that the container runtime does not send requests to this instance any more."""
        with self._lock:
            self._connected = False
            self._notes.disconnected()
            self._show()

    def check(self) -> None:
        """Take the authority, offer to take it, or hand it over."""
        with self._lock:
            self._take()
            # From here on, a request may take the authority at any moment (`adjusts`); the next check calls `begin`.
            active = self.active
            self._show()
        if active and not self._begun:
            self._withdraw_offer()
            self._begun = True
            log.info("driver=%s this instance publishes and pins from now on", self._name)
            self._begin()
        elif active:
            if self._is_contested():
                log.info("driver=%s a newer instance takes over", self._name)
                self._give_up(Role.RETIRED)
            elif not self._able() and self._standby.is_held():
                log.warning("driver=%s this instance cannot decide, and an older one that can takes over", self._name)
                self._give_up(Role.WAITING)
        elif self.role is Role.WAITING:
            self._offer()
        self._stand_by()
        self._follow()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._others.wait(_ALONE_SECONDS if self._is_alone() else _CHECK_SECONDS)
            if not self._stopped.is_set():
                self.check()

    def _is_alone(self) -> bool:
        """Return whether this is the only instance, and will notice when another one starts."""
        alone = self._begun and self.active and self._others.watched and not self._others.exist()
        # An instance of an older version has no file and is known only by its locks.
        return alone and not self._is_contested() and not self._standby.is_held()

    def _take(self) -> bool:
        """Take the authority if no instance has it or is about to take it; returns whether it was taken now."""
        if self.active or self._stopped.is_set():
            return False
        if self.role is Role.RETIRED and self._is_contested():
            return False
        if self._defers_to_other():
            return False
        if not self._active.acquire(seconds=0):
            return False
        self.role = Role.ACTIVE
        self._show()
        return True

    def _defers_to_other(self) -> bool:
        """Return whether this instance cannot decide and leaves the authority to one that can."""
        return not self._able() and (self._is_contested() or self._standby.is_held())

    def _show(self) -> None:
        """Hold `connected.lock` while this instance is active and connected; on failure the next check tries again."""
        # An active instance without a connection cannot answer the runtime, so a connected one has to.
        if not (self.active and self._connected):
            self._answers.release()
            self._shows = False
            return
        with contextlib.suppress(LedgerError, OSError):
            self._shows = self._shows or self._answers.acquire(seconds=0)
            now = time.monotonic()
            os.utime(self._answers.path, (now, now))

    def _is_contested(self) -> bool:
        """Return whether another instance is prepared to take the authority."""
        # Checked with a shared lock that is released at once. Retired instances check too, and if they held the lock,
        # the authority would be handed back to them.
        return self._handover.is_held()

    def _offer(self) -> None:
        prepared = self._prepared()
        if prepared and not self._offers:
            self._offers = self._handover.acquire(seconds=0)
        elif not prepared:
            self._withdraw_offer()

    def _withdraw_offer(self) -> None:
        if self._offers:
            self._handover.release()
            self._offers = False

    def _stand_by(self) -> None:
        """Hold `standby.lock` while this retired instance could become active again."""
        # Only if it can decide: a newer instance that cannot gives the authority back to the holder of this lock.
        available = self.role is Role.RETIRED and self._able()
        if available and not self._stands_by:
            self._stands_by = self._standby.acquire(seconds=0)
        elif self._stands_by and not available:
            self._standby.release()
            self._stands_by = False

    def _give_up(self, role: Role) -> None:
        # First stop, then release the lock: two instances must not publish and pin at the same time.
        self._end()
        self._begun = False
        with self._lock:
            self.role = role
            self._show()
            self._active.release()
