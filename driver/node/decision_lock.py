"""The lock on decisions: one decision at a time, in this process and among the processes that share a ledger.

There are two processes during a rolling update: both instances of the driver answer calls for a while. Whoever holds
the lock sees the records as they are in the ledger. Before the lock is released, the watcher is notified of changes, so
that containers are held to a new record before kubelet gets its answer.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dranode.api.errors import LedgerError, UnreadError
from dranode.driver.node.record_store import RecordStore
from dranode.driver.process.locks import FileLock

log = logging.getLogger(__name__)

# How long to wait for another decision, in seconds. A GPU's driver may take 30 s, and kubelet gives up after 45 s.
PATIENCE: Final = 40.0


class DecisionLock:
    """The lock on decisions of one node.

    Attributes:
        freed: a condition to be notified, under the lock, after claims were unprepared.
        unread: why the ledger could not be read the last time; None if it could.
        unwritten: why it could not be written the last time; None if it could, as far as is known.
        blocked: why no new claim may be prepared although the ledger can be read; None if new claims may be prepared.
    """

    def __init__(self, store: RecordStore, path: Path, notify: Callable[[str | None], None]) -> None:
        """Prepare the lock; nothing is opened yet.

        Args:
            store: the records.
            path: the lock file, `serialize.lock`.
            notify: called under the lock when records have changed, when the ledger cannot be read any more, and when
                it can be read again; it gets the reason why the ledger cannot be read, None if it can.
        """
        self._store = store
        self._path = path
        self._notify = notify
        # The version of the book at the watcher's last notification; None if that notification failed.
        self._notified: int | None = None
        # The boot id, until it is noted in the ledger.
        self._boot_id: str | None = None
        self._threads = threading.RLock()
        self._processes = FileLock(path)
        self.freed = threading.Condition(self._threads)
        self.unread: str | None = "the ledger has not been read yet"
        self.unwritten: str | None = None
        self.blocked: str | None = None
        self._reported: str | None = None

    def note_boot(self, boot_id: str) -> None:
        """Note the boot id as soon as the ledger can be used, before the first decision."""
        with self._threads:
            self._boot_id = self._store.recovery.boot_id = boot_id

    @contextlib.contextmanager
    def held(self, seconds: float | None = None) -> Iterator[None]:
        """Hold the lock.

        Args:
            seconds: how long to wait for another decision; None for `PATIENCE`, after which the ledger counts as
                unreadable.

        Raises:
            UnreadError: the ledger cannot be read, or the lock is not released in time.
            LedgerError: it cannot be written.
        """
        limit = PATIENCE if seconds is None else seconds
        with contextlib.ExitStack() as stack:
            if not self._threads.acquire(timeout=limit):
                reason = (
                    f"another call has held the ledger of {self._path.parent} for more than {limit:g} s; check whether "
                    "its disk, or the hardware that the call configures, still answers"
                )
                if seconds is None:
                    # Only the holder of the lock may notify the watcher.
                    self.unread = self._report(reason)
                raise UnreadError(reason)
            stack.callback(self._threads.release)
            try:
                # After the lock among threads, because one thread at a time may hold a `FileLock`.
                stack.enter_context(self._processes.held(limit))
                self._store.refresh()
            except LedgerError as error:
                if seconds is None:
                    self._note_unread(str(error))
                raise UnreadError(str(error)) from error
            self._note_read()
            # Also after an error: what was read before it may have changed why new claims are blocked.
            stack.callback(self._note_blocked)
            try:
                if self._boot_id is not None:
                    self._store.after_boot(self._boot_id)
                    self._boot_id = None
                yield
            except LedgerError as error:
                self.unwritten = str(error)
                raise
            # Compared with the last notification, not with the start of this call: an earlier call may have read
            # changes of another instance and failed before it notified.
            if self._store.book.version != self._notified:
                self.notify()

    def check(self) -> None:
        """Check whether the ledger can be read, and, if writing failed before, whether it can be written again."""
        with contextlib.suppress(LedgerError, UnreadError), self.held():
            if self.unwritten is not None:
                self._store.try_writing()
                self.unwritten = None
                log.warning("lock=%s: the ledger can be written again", self._path)

    def _report(self, reason: str) -> str:
        if reason != self._reported:
            self._reported = reason
            log.error(
                "lock=%s: %s; containers keep their CPUs and memory nodes, and the driver tries again every second",
                self._path,
                reason,
            )
        return reason

    def _note_unread(self, reason: str) -> None:
        self._report(reason)
        if reason != self.unread or self._notified is None:
            self.unread = reason
            self.notify()

    def _note_blocked(self) -> None:
        blocked = self._store.blocked()
        if blocked is not None and blocked != self.blocked:
            log.error("lock=%s: %s", self._path, blocked)
        elif blocked is None and self.blocked is not None:
            log.warning("lock=%s: new claims can be prepared again", self._path)
        self.blocked = blocked

    def _note_read(self) -> None:
        if self._reported is not None:
            log.warning("lock=%s: the ledger can be read again", self._path)
        self._reported = None
        if self.unread is not None:
            self.unread = None
            self.notify()

    @contextlib.contextmanager
    def among_threads(self) -> Iterator[None]:
        """Hold the lock in this process only, for work that neither reads nor writes the ledger."""
        with self._threads:
            yield

    def notify(self) -> None:
        """Notify the watcher now, under the lock. If that fails, it is notified again with the next decision."""
        self._notified = None
        self._notify(self.unread)
        self._notified = self._store.book.version
