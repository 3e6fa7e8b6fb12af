"""Decides when to connect again.

Containers that are created while no plug-in is connected run on every CPU, so the driver connects within a twentieth of
a second to a runtime that starts or restarts: an attempt without a listener disturbs no one, and a runtime opens its
socket shortly before it creates containers. Waits grow only before the very socket that we were turned away at, because
a connecting plug-in stops all pod operations of the runtime for a moment, and they stay short.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from typing import Final

from dranode.driver.nri.wake import Wake

log = logging.getLogger(__name__)

_NO_LISTENER: Final = (FileNotFoundError, ConnectionRefusedError)
_LOOK: Final = 0.05
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 2.0
# A connection that was synchronized and held this long was a good one: the next attempt comes soon.
_HEALTHY_AFTER: Final = 10.0
# How many reasons are logged until a connection is a good one again; garbage can be different each time.
_REASONS: Final = 8


def delay(attempt: int, jitter: float) -> float:
    """Seconds to wait after `attempt` (from 1) failures in a row at one runtime.

    They double to a limit; `jitter` from 0 to 1 halves them.
    """
    return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(attempt - 1, 32)) * (1 - jitter / 2)


class Attempts:
    """The attempts at one socket, for the thread that makes them."""

    def __init__(self, path: str, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        """Prepare for the first; clock (seconds, monotonic) and jitter (0 to 1) as of the client."""
        self._path, self._clock, self._jitter = path, clock, jitter
        self._failures = 0
        self._began = 0.0
        self._met: tuple[int, int, int] | None = None
        self._said: set[str] = set()

    def begin(self) -> None:
        """Note that an attempt is made now."""
        self._began = self._clock()
        self._met = _identity(self._path)

    def failed(self, error: Exception, *, synchronized: bool) -> None:
        """Note that the connection was not made or came to an end, and say why, once for each reason.

        Args:
            error: why.
            synchronized: whether the runtime had listed its containers on it.
        """
        if synchronized and self._clock() - self._began >= _HEALTHY_AFTER:
            self._failures = 0
            self._said.clear()
        self._failures = 0 if isinstance(error, _NO_LISTENER) else self._failures + 1
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if reason not in self._said and len(self._said) < _REASONS:
            self._said.add(reason)
            log.warning("nri=%s: no connection, trying again until there is one: %s", self._path, reason)

    def wait(self, wake: Wake, stopping: Callable[[], bool]) -> None:
        """Wait until the next attempt is due: after a while, or as soon as another runtime has opened the socket."""
        until = self._clock() + (delay(self._failures, self._jitter()) if self._failures else _LOOK)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        while not stopping() and (left := until - self._clock()) > 0:
            if poll.poll(min(left, _LOOK) * 1000):
                wake.heard()
            if _identity(self._path) not in (self._met, None):
                self._failures = 0
                return


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return what distinguishes a socket from the next one at its path; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - twenty times a second; a Path costs more than the call
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
