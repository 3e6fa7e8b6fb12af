"""Kernel locks on files (flock). The kernel releases the lock of a process that dies."""

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dranode.api.errors import LedgerError

# How often to try again while another holder has a lock, in seconds; flock has no time limit.
_POLL: Final = 0.005


class FileLock:
    """An exclusive lock on a file; a missing file is created with mode 0600. One thread at a time may hold it."""

    def __init__(self, path: Path) -> None:
        """Name the lock without opening the file."""
        self.path = path
        self._file: int | None = None

    def acquire(self, *, seconds: float = math.inf) -> bool:
        """Take the lock; return False if another holder has it for so many seconds.

        Raises:
            LedgerError: the file cannot be created, opened or locked.
        """
        ends = time.monotonic() + seconds
        while True:
            file = self._open()
            if not self._locked(file, fcntl.LOCK_EX if seconds == math.inf else fcntl.LOCK_EX | fcntl.LOCK_NB):
                if time.monotonic() >= ends:
                    return False
                time.sleep(_POLL)
                continue
            if os.fstat(file).st_nlink:
                self._file = file
                return True
            # The last holder removed the file before this lock was granted. The next one will lock a new file, so this
            # lock excludes nobody.
            os.close(file)

    @property
    def is_mine(self) -> bool:
        """Return whether this object holds the lock."""
        return self._file is not None

    def is_held(self) -> bool:
        """Return whether any holder has the lock, this object included; concurrent callers do not see each other.

        Raises:
            LedgerError: the file cannot be created, opened or locked.
        """
        # A shared lock conflicts with the exclusive lock of a holder, but not with the shared lock of another caller.
        file = self._open()
        if not self._locked(file, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return True
        os.close(file)
        return False

    def release(self) -> None:
        """Release the lock; do nothing if it is not held."""
        if self._file is not None:
            # Closing the file releases the lock: flock belongs to the open file, and this is its only descriptor.
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"the lock {self.path} cannot be opened: {error.strerror}") from error

    def _locked(self, file: int, kind: int) -> bool:
        """Lock the file, and return whether that succeeded; close it if not."""
        try:
            fcntl.flock(file, kind)
        except OSError as error:
            os.close(file)
            if isinstance(error, BlockingIOError):
                return False
            raise LedgerError(f"the lock {self.path} cannot be taken: {error.strerror}") from error
        return True

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Hold the lock in a `with` statement.

        Raises:
            LedgerError: the file cannot be created, opened or locked, or another holder has it for so many seconds.
        """
        if not self.acquire(seconds=seconds):
            raise LedgerError(
                f"another process has held the lock {self.path} for more than {seconds:g} s; end that process, or "
                "check the disk that it may be waiting for"
            )
        try:
            yield
        finally:
            self.release()
