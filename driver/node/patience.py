"""Limits how long a Prepare waits for the Unprepare of a claim that is in its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

# In seconds: how long, and how often it looks meanwhile, for another instance may be the one that unprepares.
CONFLICT_WAIT: Final = 2.0
_CONFLICT_LOOK: Final = 0.1
# How many calls wait at a time: fewer than the server has threads for calls, for the Unprepare that they wait for needs
# one too.
MAX_WAITING: Final = 3


class Patience:
    """One call's. Once it has begun to wait it keeps one of the places for that, until it is closed."""

    def __init__(self, places: threading.Semaphore, clock: Callable[[], float]) -> None:
        """Begin the call. `clock` gives seconds that never go back."""
        self._places = places
        self._clock = clock
        self._until = clock() + CONFLICT_WAIT
        self._placed: bool | None = None

    def wait(self, freed: threading.Condition) -> bool:
        """Wait until something was freed, or for a moment; False at once if there is no time or no place for it."""
        if self._placed is None:
            self._placed = self._places.acquire(blocking=False)
        left = self._until - self._clock() if self._placed else 0.0
        if left <= 0:
            return False
        with freed:
            freed.wait(min(left, _CONFLICT_LOOK))
        return True

    def close(self) -> None:
        """Leave the place to another call."""
        if self._placed:
            self._places.release()
            self._placed = False
