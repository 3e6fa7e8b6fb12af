"""The lock on decisions: one at a time in the process, and among the processes that share a ledger.

Under the lock the book of records is as the ledger is. Before it is released, the watcher is notified of what has
changed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dranode.api.errors import LedgerError, UnreadError
from dranode.driver.node.record_store import RecordStore
from dranode.driver.process.locks import FileLock

log = logging.getLogger(__name__)


class DecisionLock:
    """The lock on decisions of one node.

    Attributes:
        freed: to be notified, under the lock, when a claim was undone.
        unread: why the ledger could not be read the last time; None if it could.
        unwritten: why it could not be written the last time; None if it could, as far as is known.
        blocked: why no new claim may be given anything although the ledger can be read; None if one may.
    """

    def __init__(self, store: RecordStore, path: Path, notify: Callable[[str | None], None]) -> None:
        """Nothing is opened yet.

        Args:
            store: the records.
            path: the file that stands for the lock among processes.
            notify: called under the lock when records have changed, or when the ledger can be read no more or again;
                it gets the reason why it cannot be read, None if it can.
        """
        self._store = store
        self._path = path
        self._notify = notify
        # The version of the book of which the watcher was notified; None if that failed.
        self._notified: int | None = None
        # Until it is noted in the ledger.
        self._boot_id: str | None = None
        self._threads = threading.RLock()
        self._processes = FileLock(path)
        self.freed = threading.Condition(self._threads)
        self.unread: str | None = "the ledger has not been read yet"
        self.unwritten: str | None = None
        self.blocked: str | None = None
        self._reported: str | None = None

    def note_boot(self, boot_id: str) -> None:
        """Have the boot id noted as soon as the ledger can be used, before anything is decided."""
        with self._threads:
            self._boot_id = self._store.recovery.boot_id = boot_id

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            UnreadError: the ledger cannot be read.
            LedgerError: it cannot be written.
        """
        with self._threads, contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._processes.held())
                self._store.refresh()
            except LedgerError as error:
                self._not_read(str(error))
                raise UnreadError(str(error)) from error
            self._read()
            stack.callback(self._see_blocked)
            try:
                if self._boot_id is not None:
                    self._store.after_boot(self._boot_id)
                    self._boot_id = None
                yield
            except LedgerError as error:
                self.unwritten = str(error)
                raise
            # Not compared with the version before: a call that failed may have read what another instance changed.
            if self._store.book.version != self._notified:
                self.notify()

    def check(self) -> None:
        """See whether the ledger can be read, and whether it can be written again if it could not be."""
        with contextlib.suppress(LedgerError, UnreadError), self.held():
            if self.unwritten is not None:
                self._store.try_writing()
                self.unwritten = None
                log.warning("lock=%s: the ledger can be written again", self._path)

    def _not_read(self, reason: str) -> None:
        if reason != self._reported:
            self._reported = reason
            log.error(
                "lock=%s: %s; masks of containers stay as they are meanwhile, and it is tried again every second",
                self._path,
                reason,
            )
        if reason != self.unread or self._notified is None:
            self.unread = reason
            self.notify()

    def _see_blocked(self) -> None:
        blocked = self._store.blocked()
        if blocked is not None and blocked != self.blocked:
            log.error("lock=%s: %s", self._path, blocked)
        elif blocked is None and self.blocked is not None:
            log.warning("lock=%s: new claims can be prepared again", self._path)
        self.blocked = blocked

    def _read(self) -> None:
        if self._reported is not None:
            log.warning("lock=%s: the ledger can be read again", self._path)
        self._reported = None
        if self.unread is not None:
            self.unread = None
            self.notify()

    @contextlib.contextmanager
    def among_threads(self) -> Iterator[None]:
        """Hold it in this process alone, for what neither reads nor writes the ledger."""
        with self._threads:
            yield

    def notify(self) -> None:
        """Notify now, under the lock. A watcher that fails is notified again with the next decision."""
        self._notified = None
        self._notify(self.unread)
        self._notified = self._store.book.version
