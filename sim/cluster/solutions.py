"""Solutions of the allocator on other nodes of one kind, and their score (KEP-4816)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.driver.claims.allocation import readable_results
from dranode.sim.allocator.picks import Solution
from dranode.sim.allocator.requests import AllocationRequest
from dranode.sim.allocator.result import active_alternatives
from dranode.sim.cluster.views import View

# KEP-4816: the first of at most 8 alternatives counts 8, the last 1.
_FIRST_ALTERNATIVE: Final = 8


def score_before(claim: ResourceClaim, allocation: AllocationResult) -> int:
    """Return what the prioritized lists of an allocated claim add to each node's raw score: 8 less the index, each."""
    taken = {result.request for result in readable_results(allocation)}
    return sum(
        _FIRST_ALTERNATIVE - index
        for request in claim.spec.devices.requests
        for index, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in taken
    )


def moved(solution: Solution, view: View) -> Solution:
    """The same solution on a node of the same kind."""
    if solution.picks is None:
        return solution
    picks = tuple(
        tuple(replace(pick, candidate=view.candidates[pick.number]) for pick in picked) for picked in solution.picks
    )
    return replace(solution, picks=picks)


def raw_score(requests: Sequence[tuple[AllocationRequest, ...]], solution: Solution) -> int:
    """Return what the prioritized lists of the claims add to the raw score of the node: 8 less the index, for each."""
    score = 0
    for requested, picks in zip(requests, solution.picks or (), strict=True):
        names = {alternative.name for alternative in active_alternatives(requested, picks)}
        for request in requested:
            if request.listed:
                index = next(index for index, one in enumerate(request.alternatives) if one.name in names)
                score += _FIRST_ALTERNATIVE - index
    return score
