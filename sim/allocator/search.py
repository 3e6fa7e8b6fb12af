"""The depth-first search through claims, requests, alternatives and devices; the first complete solution wins.

Source: KEP-4381, KEP-4816 and the order in which kube-scheduler searches, because the order decides which device is
found first and which error is raised.

Four shortcuts do not change the answer:
- The remaining requests are not tried again from a state in which they failed before.
- A device is skipped if a device that differs only in its name has just failed in its place.
- If the requests after this one failed for lack of devices that this one did not take, other devices for this one
  are not tried.
- A claim that does not fit even alone is not tried again.

They are not used where the answer depends on earlier tries (counters and constraints before 1.37).
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import cached_property
from typing import Final

from dranode.api.validation import MAX_RESULTS
from dranode.sim.allocator.attempt import Attempt
from dranode.sim.allocator.capacity import consumptions
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate, Pool
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, AllocationRequest, Alternative, DeviceDemand, Reason
from dranode.sim.allocator.result import Solution
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated

# A claim leaves fewer devices for the next one. So a claim that fails with all devices free also fails with fewer, and
# raises no other error (`only_takes_away` checks the premise). A claim is only tried alone after so many failures,
# because most searches end with the first failure and should not pay for it.
_FAILURES: Final = 2


class NeverFitting:
    """The claims that fail whatever the claims before them take."""

    def __init__(self, search: Callable[[int], Solution]) -> None:
        """Start without any; `search` searches for one claim alone."""
        self._search = search
        self._failures: Counter[int] = Counter()
        self._known: set[int] = set()

    def __contains__(self, claim: int) -> bool:
        """Return whether the claim is known to fail."""
        return claim in self._known

    def failed(self, claim: int) -> None:
        """Count a failure of the claim, and try it alone at the second."""
        self._failures[claim] += 1
        if self._failures[claim] != _FAILURES:
            return
        # An error of the claim alone proves nothing: with other devices taken, kube-scheduler may not run into it.
        with suppress(AllocationError):
            if self._search(claim).picks is None:
                self._known.add(claim)


def only_takes_away(candidates: Sequence[Candidate], alternatives: Iterable[Alternative], features: Features) -> bool:
    """Return whether taking a device never makes more of anything available."""
    drawing = [candidate for candidate in candidates if candidate.device.consumes_counters]
    pools = {candidate.pool for candidate in drawing}
    # Until 1.36.4, pools with the same name share the counters of the pool that is drawn on first.
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
    # Before 1.37, an amount can wrap around to a negative number.
    shareable = [
        candidate
        for candidate in candidates
        if candidate.device.allow_multiple_allocations and candidate.device.capacity
    ]
    return not any(
        _adds(candidate, alternative, features)
        for alternative in (alternatives if shareable else ())
        for candidate in shareable
    )


def _adds(candidate: Candidate, alternative: Alternative, features: Features) -> bool:
    try:
        return any(amount.value < 0 for amount in consumptions(candidate, alternative.capacity, features).values())
    except AllocationError:
        return True  # unknown, so the shortcut is not safe


MAX_STEPS: Final = 1_000_000
_EVERY_DEVICE: Final = -1
_FRAMES_PER_DEVICE: Final = 3


def search(demand: DeviceDemand, pools: Sequence[Pool], allocated: Allocated, selectors: Selectors) -> Solution:
    """Find devices for all claims together, or for none.

    Raises:
        AllocationError: a request is refused, a selector fails, more than 32 devices are requested, all devices of an
            incomplete or invalid pool are requested, or the search takes more than `MAX_STEPS` steps.
    """

    def alone(claim: int) -> Solution:
        one = DeviceDemand((demand.claims[claim],), (requests[claim],))
        return search(one, pools, allocated, selectors)

    requests = demand.requests
    attempt = Attempt(demand.claims, pools, allocated, selectors)
    running = _Search(attempt, requests, pools, NeverFitting(alone))
    depth = _FRAMES_PER_DEVICE * (MAX_RESULTS + 4 * max(map(len, requests), default=0) + 4) * len(requests)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + depth)
    try:
        end = running.claim(0)
    finally:
        sys.setrecursionlimit(limit)
    if end is _End.TOO_MANY:
        # Until 1.35, a later alternative for all devices takes those of the first, which may be more than counted here.
        problem = f"claim {attempt.names[0]} has no alternatives that together need at most {MAX_RESULTS} devices"
        raise AllocationError("allocation max size exceeded", Reason.TOO_MANY_DEVICES, detail=problem)
    picks = tuple(map(tuple, attempt.picks)) if end is _End.DONE else None
    return Solution(picks, frozenset(attempt.oddities))


class _End(Enum):
    """The result of a branch of the search."""

    DONE = auto()
    FAILED = auto()
    # More than 32 devices: other devices do not help, only an alternative that needs fewer.
    TOO_MANY = auto()


class _Search:
    def __init__(
        self,
        attempt: Attempt,
        requests: Sequence[tuple[AllocationRequest, ...]],
        pools: Sequence[Pool],
        hopeless: NeverFitting,
    ) -> None:
        self.attempt = attempt
        self.hopeless = hopeless
        self.requests = requests
        self.all_devices: dict[int, tuple[int, ...]] = {}
        for claim, _ in enumerate(requests):
            self._check(claim, pools)
        self.barrier = self._barrier(pools)
        self.remembers = attempt.forgets and self.barrier is None
        self.skips_equals = self.remembers and not attempt.constraints_depend_on_history
        self.failures: dict[Hashable, _End] = {}
        # The devices that may have caused the last failure: without the others, it would have failed as well.
        self.blamed = _EVERY_DEVICE
        self.steps = 0

    @cached_property
    def only_takes_away(self) -> bool:
        """Return whether taking a device never makes more of anything available."""
        alternatives = [item for claim in self.requests for request in claim for item in request.alternatives]
        return only_takes_away(self.attempt.candidates, alternatives, self.attempt.features)

    def _barrier(self, pools: Sequence[Pool]) -> int | None:
        """Return the first candidate of an invalid pool, where 1.34 ends the attempt; None in newer releases."""
        if self.attempt.features.has(Change.INCOMPLETE_POOLS_UNUSED):
            return None
        before = 0
        for pool in pools:
            if pool.invalid:
                return before
            before += len(pool.candidates)
        return None

    def _check(self, claim: int, pools: Sequence[Pool]) -> None:
        """Collect the devices of requests for all devices, and check that the claim needs at most 32.

        Raises:
            AllocationError: the first error in the order of the requests.
        """
        least = 0
        by_request = self.attempt.features.has(Change.COUNT_BY_REQUEST)
        for request in self.requests[claim]:
            for alternative in request.alternatives:
                if alternative.count is None:
                    self.all_devices[id(alternative)] = tuple(self._everything(claim, request, alternative, pools))
            if request.refusal is not None:
                raise request.refusal
            least += min(map(self._count, request.alternatives))
            if by_request:
                self._check_count(claim, least)
        self._check_count(claim, least)
        refusal = self.attempt.refusal(claim)
        if refusal is not None:
            raise refusal

    def _check_count(self, claim: int, least: int) -> None:
        if least > MAX_RESULTS:
            raise AllocationError(
                f"claim {self.attempt.names[claim]} asks for {least} devices, but a claim can have at most "
                f"{MAX_RESULTS}",
                Reason.TOO_MANY_DEVICES,
            )

    def _everything(
        self, claim: int, request: AllocationRequest, alternative: Alternative, pools: Sequence[Pool]
    ) -> Iterator[int]:
        number = 0
        selecting = self._selecting(request, alternative)
        for pool in pools:
            if pool.partial:
                raise AllocationError(
                    f"claim {self.attempt.names[claim]}, request {alternative.name} asks for all devices, but the node "
                    f"does not see all slices of pool {pool.id}",
                    Reason.POOL_INCOMPLETE,
                )
            if not pool.usable:
                problem = "being updated" if pool.incomplete else f"invalid: {pool.invalid}"
                raise AllocationError(
                    f"claim {self.attempt.names[claim]}, request {alternative.name} asks for all devices, but the pool "
                    f"{pool.id} is {problem}",
                    Reason.POOL_INCOMPLETE if pool.incomplete else Reason.POOL_INVALID,
                )
            for _ in pool.candidates:
                if self.attempt.chooses(claim, selecting, number) and self.attempt.could_have_capacity(
                    alternative, number
                ):
                    yield number
                number += 1

    def _selecting(self, request: AllocationRequest, alternative: Alternative) -> Alternative:
        """Return the alternative whose selectors apply; until 1.35, a second one for all uses those of the first."""
        first, *others = request.alternatives
        shared = not self.attempt.features.has(Change.ALTERNATIVES_APART) and first.count is None
        return first if shared and others and alternative is others[0] else alternative

    def _count(self, alternative: Alternative) -> int:
        return len(self.all_devices[id(alternative)]) if alternative.count is None else alternative.count

    def claim(self, claim: int) -> _End:
        """Search for this claim and the claims after it."""
        if claim == len(self.requests):
            return _End.DONE
        if claim in self.hopeless:
            self.blamed = self._blame(claim, 0)
            return _End.FAILED
        end = self.request(claim, 0)
        if end is not _End.DONE and claim and self.remembers and self.only_takes_away:
            self.hopeless.failed(claim)
        return end

    def request(self, claim: int, index: int) -> _End:
        """Search for this request and everything after it."""
        if index == len(self.requests[claim]):
            # A later claim that needs too many devices may need fewer with another choice here, so go on.
            end = self.claim(claim + 1)
            return end if end is _End.DONE else _End.FAILED
        key = (claim, index, self.attempt.state(claim, self._relevant(claim, index))) if self.remembers else None
        failure = self.failures.get(key) if key is not None else None
        end = failure or self._alternatives(claim, index)
        if end is not _End.DONE and key is not None:
            self.failures[key] = end
            self.blamed = self._blame(claim, index)
        return end

    def _alternatives(self, claim: int, index: int) -> _End:
        request = self.requests[claim][index]
        ends = set()
        for alternative in request.alternatives:
            end = self._devices(claim, index, alternative, 0, 0)
            if end is _End.DONE:
                return end
            ends.add(end)
        return _End.TOO_MANY if ends == {_End.TOO_MANY} else _End.FAILED

    def _devices(self, claim: int, index: int, alternative: Alternative, have: int, start: int) -> _End:
        """Search for the missing devices of the alternative, starting at candidate `start`, and everything after it."""
        count = self._count(alternative)
        if alternative.count is None and count == 0:
            self.blamed = _EVERY_DEVICE
            return _End.FAILED
        if have >= count:
            return self.request(claim, index + 1)
        if len(self.attempt.picks[claim]) + count - have > MAX_RESULTS:
            return _End.TOO_MANY
        if alternative.count is None:
            return self._next_of_all(claim, index, alternative, have)
        return self._next(claim, index, alternative, have, start)

    def _next_of_all(self, claim: int, index: int, alternative: Alternative, have: int) -> _End:
        self._step(claim)
        number = self.all_devices[id(alternative)][have]
        free = self.attempt.free(claim, alternative) >> number & 1
        if not free or not self.attempt.take(claim, alternative, number, must=True):
            self.blamed = _EVERY_DEVICE
            return _End.FAILED
        apart = self.attempt.features.has(Change.ALTERNATIVES_APART)
        following = alternative if apart else self.requests[claim][index].alternatives[0]
        end = self._devices(claim, index, following, have + 1, 0)
        if end is not _End.DONE:
            self.attempt.give_back(claim)
        self.blamed = _EVERY_DEVICE
        return end

    def _next(self, claim: int, index: int, alternative: Alternative, have: int, start: int) -> _End:
        attempt = self.attempt
        untried = attempt.free(claim, alternative) >> start << start
        failed: set[Hashable] = set()
        while untried:
            lowest = untried & -untried
            untried ^= lowest
            number = lowest.bit_length() - 1
            if self.barrier is not None and number >= self.barrier:
                break
            self._step(claim)
            if not attempt.chooses(claim, alternative, number) or not attempt.has_capacity(alternative, number):
                continue
            equal = attempt.equals(number) if self.skips_equals else None
            if equal is not None and equal in failed:
                continue
            if not attempt.take(claim, alternative, number, must=False):
                continue
            end = self._devices(claim, index, alternative, have + 1, number + 1)
            if end is _End.DONE:
                return end
            attempt.give_back(claim)
            if end is _End.TOO_MANY:
                return end
            if not self.blamed & lowest and not attempt.binds(claim, alternative):
                attempt.check(claim, alternative, untried)  # kube-scheduler would try these and raise their errors
                return end
            failed.add(equal)
        if self.barrier is not None:
            raise AllocationError(
                f"claim {self.attempt.names[claim]}: the search ran into an invalid pool", Reason.POOL_INVALID
            )
        self.blamed = _EVERY_DEVICE
        return _End.FAILED

    def _blame(self, claim: int, index: int) -> int:
        if self.attempt.tied or not self.only_takes_away:
            return _EVERY_DEVICE
        return self._relevant(claim, index)

    def _relevant(self, claim: int, index: int) -> int:
        """Return the devices that the rest of the search may choose: all but those that no request there chooses."""
        return self.attempt.maybe_chosen(
            alternative
            for later, requests in enumerate(self.requests[claim:], claim)
            for request in (requests[index:] if later == claim else requests)
            for alternative in request.alternatives
        )

    def _step(self, claim: int) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise AllocationError(
                f"the search for claim {self.attempt.names[claim]} was given up after {MAX_STEPS} steps; add selectors "
                "to its requests, so that fewer combinations of devices are possible",
                Reason.SEARCH_TOO_LONG,
                "node",
            )
