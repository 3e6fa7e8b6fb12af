"""Claims that fit nowhere even alone: what the claims before them take need not be tried in every other way.

What is taken for one claim leaves less for the next. A claim that fails with everything there fails as well with what
is left, and meets no error that it has not met then. Where a claim before may leave more, nothing is concluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from dranode.sim.allocator.capacity import consumptions
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.outcome import AllocationError
from dranode.sim.allocator.picks import Solution
from dranode.sim.allocator.pools import Candidate
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import Alternative

# A claim is looked at alone when it has failed so often: most searches end with the first failure, at no other cost.
_FAILURES: Final = 2


class Hopeless:
    """The claims that are known to fail whatever those before them have taken."""

    def __init__(self, search: Callable[[int], Solution]) -> None:
        """Start without any; `search` searches for one claim with nothing taken."""
        self._search = search
        self._failures: Counter[int] = Counter()
        self._known: set[int] = set()

    def __contains__(self, claim: int) -> bool:
        """Return whether the claim is known to fail."""
        return claim in self._known

    def failed(self, claim: int) -> None:
        """Count a failure of the claim, and look at it alone if it is not the first."""
        self._failures[claim] += 1
        if self._failures[claim] != _FAILURES:
            return
        # Whether kube-scheduler comes to an error that is met alone depends on what is taken.
        with suppress(AllocationError):
            if self._search(claim).picks is None:
                self._known.add(claim)


def only_takes_away(candidates: Sequence[Candidate], alternatives: Iterable[Alternative], features: Features) -> bool:
    """Return whether no device that is taken can leave more of anything than there was."""
    drawing = [candidate for candidate in candidates if candidate.device.consumes_counters]
    pools = {candidate.pool for candidate in drawing}
    # Pools of one name share the counters of the one that is drawn on first.
    if len({pool.pool for pool in pools}) < len(pools) and not features.has(Change.COUNTERS_BY_POOL_ID):
        return False
    if any(
        counter.value.value < 0
        for candidate in drawing
        for consumption in candidate.device.consumes_counters
        for counter in consumption.counters.values()
    ):
        return False
    if not features.consumable_capacity or features.has(Change.OVERFLOW_ENDS):
        return True
    # An amount that has wrapped around is below 0.
    shareable = [one for one in candidates if one.device.allow_multiple_allocations and one.device.capacity]
    return not any(
        _adds(candidate, alternative, features)
        for alternative in (alternatives if shareable else ())
        for candidate in shareable
    )


def _adds(candidate: Candidate, alternative: Alternative, features: Features) -> bool:
    try:
        return any(amount.value < 0 for amount in consumptions(candidate, alternative.capacity, features).values())
    except AllocationError:
        return True  # not known
