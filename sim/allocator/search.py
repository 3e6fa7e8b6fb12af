"""The search: depth first through claims, requests, alternatives and devices; the first full solution is taken.

Source: KEP-4381, KEP-4816, and the order in which kube-scheduler goes, since it decides which device is found
first and which error is met. Shortcuts do not change the answer: the rest of the requests is not tried again from a
state from which it has failed; a device is passed over if one that differs by name alone has just failed in its place;
if what comes after a request fails for want of devices that the request has not taken, other devices for it are not
tried; and a claim that fits nowhere even alone is tried no more. Where an answer depends on what was tried before
(counters, constraints before 1.37), they are not taken.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import cached_property
from typing import Final

from dranode.api.resource import ResourceClaim
from dranode.api.validation import MAX_RESULTS
from dranode.sim.allocator.attempt import Attempt
from dranode.sim.allocator.capacity import consumptions
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate, Pool
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, AllocationRequest, Alternative, Reason
from dranode.sim.allocator.result import Solution
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated

# What is taken for one claim leaves less for the next. A claim that fails with everything there fails as well with what
# is left, and meets no error that it has not met then. Where a claim before may leave more, nothing is concluded.
# A claim is looked at alone when it has failed so often: most searches end with the first failure, at no other cost.
_FAILURES: Final = 2


class NeverFitting:
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


MAX_STEPS: Final = 1_000_000
_EVERY_DEVICE: Final = -1
_FRAMES_PER_DEVICE: Final = 3


def search(
    claims: Sequence[ResourceClaim],
    requests: Sequence[tuple[AllocationRequest, ...]],
    pools: Sequence[Pool],
    allocated: Allocated,
    selectors: Selectors,
) -> Solution:
    """Find devices for all claims together, or for none.

    Raises:
        AllocationError: the attempt ends: a request is refused, a selector fails, more than 32 devices are wanted, all
            devices of a pool that is not in order are wanted, or the search takes more than `MAX_STEPS` steps.
    """

    def alone(claim: int) -> Solution:
        return search([claims[claim]], [requests[claim]], pools, allocated, selectors)

    attempt = Attempt(claims, pools, allocated, selectors)
    running = _Search(attempt, requests, pools, NeverFitting(alone))
    depth = _FRAMES_PER_DEVICE * (MAX_RESULTS + 4 * max(map(len, requests), default=0) + 4) * len(claims)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + depth)
    try:
        end = running.claim(0)
    finally:
        sys.setrecursionlimit(limit)
    if end is _End.TOO_MANY:
        # Until 1.35: what an alternative for all devices goes on with may need more than was counted before.
        problem = f"claim {attempt.names[0]} has no alternatives that together need at most {MAX_RESULTS} devices"
        raise AllocationError("allocation max size exceeded", Reason.TOO_MANY_DEVICES, detail=problem)
    picks = tuple(map(tuple, attempt.picks)) if end is _End.DONE else None
    return Solution(picks, frozenset(attempt.oddities))


class _End(Enum):
    """The end of a branch of the search."""

    DONE = auto()
    FAILED = auto()
    # More than 32 devices: other devices would not help, only an alternative that needs fewer.
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
        self.skips_equals = self.remembers and not attempt.distinct
        self.failures: dict[Hashable, _End] = {}
        self.blamed = (
            _EVERY_DEVICE  # after a failure: the devices without which it would have been the same are not in it
        )
        self.steps = 0

    @cached_property
    def only_takes_away(self) -> bool:
        """Return whether no device that is taken can leave more of anything than there was."""
        alternatives = [each for claim in self.requests for request in claim for each in request.alternatives]
        return only_takes_away(self.attempt.candidates, alternatives, self.attempt.features)

    def _barrier(self, pools: Sequence[Pool]) -> int | None:
        """The candidate at which a search runs into an invalid pool, which ends the attempt until 1.34."""
        if self.attempt.features.has(Change.INCOMPLETE_POOLS_UNUSED):
            return None
        before = 0
        for pool in pools:
            if pool.invalid:
                return before
            before += len(pool.candidates)
        return None

    def _check(self, claim: int, pools: Sequence[Pool]) -> None:
        """Find out what "all" is, and that the claim can be satisfied with 32 devices; refuse in the order of requests.

        Raises:
            AllocationError: the attempt ends.
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
                f"claim {self.attempt.names[claim]} asks for {least} devices, but a claim can have {MAX_RESULTS}",
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
                    f"does not see all of the pool {pool.id}",
                    Reason.POOL_INCOMPLETE,
                )
            if not pool.usable:
                what = "being updated" if pool.incomplete else f"invalid: {pool.invalid}"
                raise AllocationError(
                    f"claim {self.attempt.names[claim]}, request {alternative.name} asks for all devices, but the pool "
                    f"{pool.id} is {what}",
                    Reason.POOL_INCOMPLETE if pool.incomplete else Reason.POOL_INVALID,
                )
            for _ in pool.candidates:
                if self.attempt.chooses(claim, selecting, number) and self.attempt.could_have_capacity(
                    alternative, number
                ):
                    yield number
                number += 1

    def _selecting(self, request: AllocationRequest, alternative: Alternative) -> Alternative:
        """Return whose selectors choose; until 1.35 the first alternative's for the second if both want all devices."""
        first, *others = request.alternatives
        shared = not self.attempt.features.has(Change.ALTERNATIVES_APART) and first.count is None
        return first if shared and others and alternative is others[0] else alternative

    def _count(self, alternative: Alternative) -> int:
        return len(self.all_devices[id(alternative)]) if alternative.count is None else alternative.count

    def claim(self, claim: int) -> _End:
        """All requests of this claim and the claims after it."""
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
        """This request and everything after it."""
        if index == len(self.requests[claim]):
            # A later claim that needs too many devices may need fewer after another choice here.
            end = self.claim(claim + 1)
            return end if end is _End.DONE else _End.FAILED
        key = (claim, index, self.attempt.state(claim, self._relevant(claim, index))) if self.remembers else None
        known = self.failures.get(key) if key is not None else None
        end = known or self._alternatives(claim, index)
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
        """The devices still missing for the alternative, from candidate `start` on, and everything after it."""
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
                attempt.judge(claim, alternative, untried)  # kube-scheduler would try them, and meet their errors
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
        """The devices that the rest of the search may look at: all that are not known to be unchosen by all of it."""
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
                f"the search for claim {self.attempt.names[claim]} was given up after {MAX_STEPS} steps; narrow its "
                "requests with selectors, so that fewer combinations of devices are possible",
                Reason.SEARCH_TOO_LONG,
                "node",
            )
