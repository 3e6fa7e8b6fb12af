"""Wakes a thread that waits in poll."""

from __future__ import annotations

import contextlib
import os
import threading


class Wake:
    """Something to poll for that any thread can set off, also after it was closed."""

    def __init__(self) -> None:
        """Open it."""
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return what to poll; -1 once it is closed."""
        return self._file

    def up(self) -> None:
        """Wake the thread that polls, now or at its next poll."""
        with self._lock:
            if self._file >= 0:
                os.eventfd_write(self._file, 1)

    def heard(self) -> None:
        """Sleep again: take note of every `up` so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._file)

    def close(self) -> None:
        """Close it; it may not be polled after that."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
