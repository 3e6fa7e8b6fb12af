"""Decides whether a request to the API server is worth another try, and after how long; the dice are an argument."""

from __future__ import annotations

from typing import Final

import msgspec

# HTTP's statuses, as far as they decide anything: the module `http` takes 0.5 ms to load.
OK: Final = 200
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
UNPROCESSABLE: Final = 422
# Statuses that pass: no answer at all, too many requests, and a server that is starting, stopping or overloaded.
NO_ANSWER: Final = 0
TOO_MANY: Final = 429
PASSING: Final = frozenset({NO_ANSWER, TOO_MANY, 500, 502, 503, 504})
# After these the server has done nothing, so that even a creation may be sent again.
UNTOUCHED: Final = frozenset({TOO_MANY})


class Backoff(msgspec.Struct, frozen=True):
    """Waiting times that double, each spread by half, so that the nodes of a cluster do not come back in step.

    Attributes:
        first: the first one, in seconds.
        most: the longest.
    """

    first: float
    most: float

    def delay(self, attempt: int, dice: float, at_least: float = 0.0) -> float:
        """Seconds to wait after attempt number `attempt` (from 0); `dice` is in [0, 1), `at_least` the server's."""
        # The exponent is bounded only to keep the number small; the delay is bounded by `most` long before.
        doubled = min(self.first * 2.0 ** min(attempt, 16), self.most)
        return max(doubled * (0.75 + dice / 2), at_least * (1 + dice / 4))


class Pace(msgspec.Struct, frozen=True):
    """The pace of repairs: the first soon, those of a long fight ever later.

    Attributes:
        repairs: how many there were in a row.
        last: when the last one was, in seconds.
    """

    repairs: int = 0
    last: float = 0.0

    def delay(self, now: float) -> float:
        """Seconds until something that was changed by others is looked at."""
        return _REPAIR.delay(self._row(now), 0.5)

    def repaired(self, now: float) -> Pace:
        """The pace after a repair."""
        return Pace(self._row(now) + 1, now)

    def _row(self, now: float) -> int:
        return self.repairs if self.repairs and now - self.last < _QUIET else 0


_REPAIR: Final = Backoff(first=1.0, most=30.0)
# A fight over slices is over after this long without one.
_QUIET: Final = 300.0
