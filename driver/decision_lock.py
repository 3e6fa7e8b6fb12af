"""The lock on decisions: one at a time in the process, and among the processes that share a ledger.

Whoever takes it has the ledger before them as it is; before it is let go, whoever watches is told what has changed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dranode.driver.holders import Holders
from dranode.driver.locks import FileLock


class DecisionLock:
    """The lock on decisions of one node.

    Attributes:
        freed: to be notified, under the lock, when a claim was undone.
    """

    def __init__(self, holders: Holders, path: Path, tell: Callable[[], None]) -> None:
        """Nothing is opened yet.

        Args:
            holders: the ledger and its index.
            path: the file that stands for the lock among processes.
            tell: called under the lock when records have changed.
        """
        self._holders = holders
        self._tell = tell
        self._told: int | None = None
        # Until it is noted in the ledger.
        self._boot_id: str | None = None
        self._threads = threading.RLock()
        self._processes = FileLock(path)
        self.freed = threading.Condition(self._threads)

    def note_boot(self, boot_id: str) -> None:
        """Have the boot id noted as soon as the ledger can be used, before anything is decided."""
        with self._threads:
            self._boot_id = boot_id

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            LedgerError: the ledger cannot be used.
        """
        with self._threads, self._processes.held():
            self._holders.refresh()
            if self._boot_id is not None:
                self._holders.after_boot(self._boot_id)
                self._boot_id = None
            yield
            # Not compared with the version before: a call that failed may have read what another instance changed.
            if self._holders.version != self._told:
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
