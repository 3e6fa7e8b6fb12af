"""The lock on decisions: one at a time in the process, and among the processes that share a ledger.

Whoever takes it has the ledger before them as it is; before it is let go, whoever watches is told what has changed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dranode.driver.core.api.errors import LedgerError, UnreadError
from dranode.driver.node.record_store import Holders
from dranode.driver.process.locks import FileLock

log = logging.getLogger(__name__)


class DecisionLock:
    """The lock on decisions of one node.

    Attributes:
        freed: to be notified, under the lock, when a claim was undone.
        unread: why the ledger could not be read when somebody last had to; None if it could.
        unwritten: why it could not be written when somebody last had to; None if it could, as far as is known.
        blocked: why no new claim may be given anything although the ledger can be read; None if one may.
    """

    def __init__(self, holders: Holders, path: Path, tell: Callable[[], None]) -> None:
        """Nothing is opened yet.

        Args:
            holders: the ledger and its index.
            path: the file that stands for the lock among processes.
            tell: called under the lock when records have changed, or when the ledger can be read no more.
        """
        self._holders = holders
        self._path = path
        self._tell = tell
        self._told: int | None = None
        # Until it is noted in the ledger.
        self._boot_id: str | None = None
        self._threads = threading.RLock()
        self._processes = FileLock(path)
        self.freed = threading.Condition(self._threads)
        self.unread: str | None = "nobody has read the ledger yet"
        self.unwritten: str | None = None
        self.blocked: str | None = None
        self._said: str | None = None

    def note_boot(self, boot_id: str) -> None:
        """Have the boot id noted as soon as the ledger can be used, before anything is decided."""
        with self._threads:
            self._boot_id = self._holders.recovery.boot_id = boot_id

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
                self._holders.refresh()
            except LedgerError as error:
                self._not_read(str(error))
                raise UnreadError(str(error)) from error
            self._read()
            stack.callback(self._see_blocked)
            try:
                if self._boot_id is not None:
                    self._holders.after_boot(self._boot_id)
                    self._boot_id = None
                yield
            except LedgerError as error:
                self.unwritten = str(error)
                raise
            # Not compared with the version before: a call that failed may have read what another instance changed.
            if self._holders.version != self._told:
                self.tell()

    def look(self) -> None:
        """See whether the ledger can be read, and whether it can be written again if it could not be."""
        with contextlib.suppress(LedgerError, UnreadError), self.held():
            if self.unwritten is not None:
                self._holders.try_writing()
                self.unwritten = None
                log.warning("lock=%s: the ledger can be written again", self._path)

    def _not_read(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            log.error(
                "lock=%s: %s; masks of containers stay as they are meanwhile, and it is tried again every second",
                self._path,
                reason,
            )
        if reason != self.unread or self._told is None:
            self.unread = reason
            self.tell()

    def _see_blocked(self) -> None:
        blocked = self._holders.blocked()
        if blocked is not None and blocked != self.blocked:
            log.error("lock=%s: %s", self._path, blocked)
        elif blocked is None and self.blocked is not None:
            log.warning("lock=%s: new claims can be prepared again", self._path)
        self.blocked = blocked

    def _read(self) -> None:
        if self._said is not None:
            log.warning("lock=%s: the ledger can be read again", self._path)
        self._said = None
        if self.unread is not None:
            self.unread = None
            self.tell()

    @contextlib.contextmanager
    def among_threads(self) -> Iterator[None]:
        """Hold it in this process alone, for what neither reads nor writes the ledger."""
        with self._threads:
            yield

    def tell(self) -> None:
        """Tell now, under the lock. Whoever fails to take it in is told again with the next decision."""
        self._told = None
        self._tell()
        self._told = self._holders.version
