"""Does the node have what the pod asks for, and how well does it suit: NodeResourcesFit and BalancedAllocation.

Source: kube-scheduler 1.36.4 and 1.37.1; the strategy is LeastAllocated of cpu and memory, both weighing 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.requests import CPU, MEMORY, NON_ZERO, PODS, Amounts, Counting, amounts_of, pod_requests
from dranode.sim.scheduler.snapshot import NodeInfo

TOO_MANY_PODS: Final = "Too many pods"
_SCORED: Final = (CPU, MEMORY)


@dataclass(frozen=True, slots=True)
class ResourceShortage:
    """A resource of which a node has too little.

    Attributes:
        resource: its name.
        requested: what the pod asks, in millicores, bytes or numbers.
        free: what is left; below 0 where more is taken than there is.
        allocatable: what there is.
    """

    resource: str
    requested: int
    free: int
    allocatable: int

    @property
    def reason(self) -> str:
        """Return kube-scheduler's words."""
        return TOO_MANY_PODS if self.resource == PODS else f"Insufficient {self.resource}"

    @property
    def hopeless(self) -> bool:
        """Return whether the node has too little even when it is empty."""
        return self.resource != PODS and self.requested > self.allocatable

    @property
    def missing(self) -> int:
        """Return how much more would have to be free."""
        return self.requested - self.free


def shortages(
    requests: Amounts, info: NodeInfo, elsewhere: frozenset[str] = frozenset()
) -> tuple[ResourceShortage, ...]:
    """Return what the node has too little of; `elsewhere` are extended resources that devices stand for (KEP-5004)."""
    allocatable, requested = info.allocatable, info.requested
    short = []
    if len(info.pods) + 1 > allocatable[PODS]:
        short.append(ResourceShortage(PODS, 1, allocatable[PODS] - len(info.pods), allocatable[PODS]))
    for name, amount in requests.items():
        has = allocatable.get(name, 0)
        free = has - requested.get(name, 0)
        if amount > free and amount > 0 and (has > 0 or name not in elsewhere):
            short.append(ResourceShortage(name, amount, free, has))
    return tuple(short)


@dataclass(frozen=True, slots=True)
class ResourceScore:
    """The requests of a pod as they count when nodes are scored.

    Attributes:
        non_zero: cpu and memory, with an amount for each container that asks for none.
        plain: cpu and memory as they are asked.
    """

    non_zero: tuple[int, int]
    plain: tuple[int, int]

    @classmethod
    def of(cls, pod: SchedulingPod, minor: int) -> ResourceScore:
        """Work it out; what is asked for the whole pod counts for the balance alone, as it does in kube-scheduler."""
        non_zero = amounts_of(pod_requests(pod, Counting(minor, pod_level=False, missing=NON_ZERO)))
        plain = amounts_of(pod_requests(pod, Counting(minor, status=True)))
        return cls((non_zero.get(CPU, 0), non_zero.get(MEMORY, 0)), (plain.get(CPU, 0), plain.get(MEMORY, 0)))

    def least_allocated(self, info: NodeInfo) -> int:
        """Return a score from 0 to 100: how much would be left of cpu and memory."""
        scores = [
            _left_over(taken + amount, info.allocatable.get(name, 0))
            for name, taken, amount in zip(_SCORED, info.non_zero, self.non_zero, strict=True)
            if info.allocatable.get(name, 0)
        ]
        return sum(scores) // len(scores) if scores else 0

    @property
    def asks_nothing(self) -> bool:
        """Return whether neither cpu nor memory is asked for, so that balance says nothing."""
        return not any(self.plain)

    def balanced(self, info: NodeInfo) -> int:
        """Return a score from 50 to 100: whether the pod brings the use of cpu and of memory closer to each other."""
        taken = [info.requested.get(name, 0) for name in _SCORED]
        has = [info.allocatable.get(name, 0) for name in _SCORED]
        # A resource that the node has not at all is passed over.
        before = _balance([(used, most) for used, most in zip(taken, has, strict=True) if most])
        after = _balance([(used + more, most) for used, more, most in zip(taken, self.plain, has, strict=True) if most])
        return MAX_SCORE // 2 + _halved(MAX_SCORE // 2 + after - before)


def _left_over(requested: int, capacity: int) -> int:
    return 0 if requested > capacity else (capacity - requested) * MAX_SCORE // capacity


def _balance(used: list[tuple[int, int]]) -> int:
    fractions = [min(amount / most, 1.0) for amount, most in used]
    deviation = abs((fractions[0] - fractions[1]) / 2) if len(fractions) == len(_SCORED) else 0.0
    return int((1 - deviation) * MAX_SCORE)


def _halved(value: int) -> int:
    """Divide by two towards zero, as Go does."""
    return math.trunc(value / 2)


# Raw scores are scaled to 0 to 100 (`DefaultNormalizeScore` of kube-scheduler).


K = TypeVar("K")
MAX_SCORE: Final = 100


def normalized(raws: Mapping[K, int], *, reverse: bool = False) -> dict[K, int]:
    """100 times raw over the greatest raw, rounded down; `reverse` takes that from 100."""
    most = max(raws.values(), default=0)
    shares = {name: MAX_SCORE * raw // most if most else 0 for name, raw in raws.items()}
    return {name: MAX_SCORE - share for name, share in shares.items()} if reverse else shares
