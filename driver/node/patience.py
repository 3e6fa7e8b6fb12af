"""Limits how long a Prepare waits for the Unprepare of a claim that is in its way.

A refusal that a few seconds of waiting spare is dear: kubelet asks again only at its next resync, after 60 to 90 s.
That is its syncFrequency of a minute and up to half of it more (`completeWork` in pkg/kubelet/pod_workers.go, 1.37),
since SyncPod in kuberuntime_manager.go ends without an error when a claim cannot be prepared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

# In seconds: how long where nobody can say whether an Unprepare is on its way, how long where one is, and how often it
# looks meanwhile, for another instance may be the one that unprepares. Kubelet ends a call after 45 s, of which the
# claims may take 25 to fetch.
CONFLICT_WAIT: Final = 2.0
DEPARTURE_WAIT: Final = 15.0
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
        self._began = clock()
        self._seconds = 0.0
        self._holders: frozenset[str] | None = None
        self._placed: bool | None = None

    def wait(
        self,
        freed: threading.Condition,
        holders: frozenset[str],
        departing: Callable[[frozenset[str]], bool | None],
    ) -> bool:
        """Wait until something was freed, or for a moment; False at once if there is no time or no place for it.

        Args:
            freed: notified when something was freed.
            holders: the UIDs of the claims that are in the way.
            departing: whether kubelet is about to unprepare one of them; None if nobody can say.
        """
        if self._placed is None:
            self._placed = self._places.acquire(blocking=False)
        if not self._placed:
            return False
        asked = holders != self._holders
        if asked:
            self._holders = holders
            leaving = departing(holders)
            if leaving is False:
                return False
            self._seconds = DEPARTURE_WAIT if leaving else CONFLICT_WAIT
        left = self._began + self._seconds - self._clock()
        # The answer took its time too, in which something may have been freed.
        if left <= 0 and not asked:
            return False
        with freed:
            freed.wait(min(max(left, 0.0), _CONFLICT_LOOK))
        return True

    def close(self) -> None:
        """Leave the place to another call."""
        if self._placed:
            self._places.release()
            self._placed = False
