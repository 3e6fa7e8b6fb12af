"""Whether a node has the resources for a pod, and how well they fit: NodeResourcesFit and BalancedAllocation.

Source: kube-scheduler 1.36.4 and 1.37.1; the strategy is LeastAllocated for CPU and memory, both with weight 1.
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
_IMPROVES_SINCE: Final = 36  # a minor release


@dataclass(frozen=True, slots=True)
class ResourceShortage:
    """A resource of which a node has too little.

    Attributes:
        resource: its name.
        requested: the pod's request, in millicores, bytes or counts.
        free: the free amount; below 0 if the node is overcommitted.
        allocatable: the node's allocatable amount.
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
        """Return whether the node would have too little even without any pod."""
        return self.resource != PODS and self.requested > self.allocatable

    @property
    def missing(self) -> int:
        """Return how much more would have to be free."""
        return self.requested - self.free


def shortages(
    requests: Amounts, info: NodeInfo, elsewhere: frozenset[str] = frozenset()
) -> tuple[ResourceShortage, ...]:
    """Return the resources that are short; `elsewhere` are extended resources that devices can back (KEP-5004)."""
    allocatable, requested = info.allocatable, info.requested
    short = []
    if len(info.pods) + 1 > allocatable[PODS]:
        short.append(ResourceShortage(PODS, 1, allocatable[PODS] - len(info.pods), allocatable[PODS]))
    for name, amount in requests.items():
        total = allocatable.get(name, 0)
        free = total - requested.get(name, 0)
        # A node that offers the extended resource itself is used for it, even if devices could back it too.
        if amount > free and amount > 0 and (total > 0 or name not in elsewhere):
            short.append(ResourceShortage(name, amount, free, total))
    return tuple(short)


@dataclass(frozen=True, slots=True)
class ResourceScore:
    """The requests of a pod for scoring nodes.

    Attributes:
        non_zero: CPU and memory, with a default amount for each container without a request.
        plain: CPU and memory as requested.
        improves: whether balance is scored by how much the pod improves it, as since 1.36 (kubernetes#135573).
    """

    non_zero: tuple[int, int]
    plain: tuple[int, int]
    improves: bool

    @classmethod
    def of(cls, pod: SchedulingPod, minor: int) -> ResourceScore:
        """Add up the requests; pod-level requests count only for the balance, as in kube-scheduler."""
        non_zero = amounts_of(pod_requests(pod, Counting(minor, pod_level=False, missing=NON_ZERO)))
        plain = amounts_of(pod_requests(pod, Counting(minor, status=True)))
        shown, counted = ((amounts.get(CPU, 0), amounts.get(MEMORY, 0)) for amounts in (non_zero, plain))
        return cls(shown, counted, minor >= _IMPROVES_SINCE)

    def least_allocated(self, info: NodeInfo) -> int:
        """Return a score from 0 to 100 for the share of CPU and memory that would be left."""
        scores = [
            _left_over(used + amount, info.allocatable.get(name, 0))
            for name, used, amount in zip(_SCORED, info.non_zero, self.non_zero, strict=True)
            if info.allocatable.get(name, 0)
        ]
        return sum(scores) // len(scores) if scores else 0

    @property
    def asks_nothing(self) -> bool:
        """Return whether the pod requests neither CPU nor memory, so that balance is not scored."""
        return not any(self.plain)

    def balanced(self, info: NodeInfo) -> int:
        """Return a score from 50 to 100: the more, the closer the used shares of CPU and memory are, or get."""
        used = [info.requested.get(name, 0) for name in _SCORED]
        total = [info.allocatable.get(name, 0) for name in _SCORED]
        # A resource that the node does not have at all is ignored.
        before = _balance([(amount, most) for amount, most in zip(used, total, strict=True) if most])
        after = _balance(
            [(amount + more, most) for amount, more, most in zip(used, self.plain, total, strict=True) if most]
        )
        if not self.improves:
            return after
        # Go divides towards zero.
        return MAX_SCORE // 2 + math.trunc((MAX_SCORE // 2 + after - before) / 2)


def _left_over(requested: int, capacity: int) -> int:
    return 0 if requested > capacity else (capacity - requested) * MAX_SCORE // capacity


def _balance(used: list[tuple[int, int]]) -> int:
    fractions = [min(amount / most, 1.0) for amount, most in used]
    deviation = abs((fractions[0] - fractions[1]) / 2) if len(fractions) == len(_SCORED) else 0.0
    return int((1 - deviation) * MAX_SCORE)


K = TypeVar("K")
MAX_SCORE: Final = 100


def normalized(raws: Mapping[K, int], *, reverse: bool = False) -> dict[K, int]:
    """Scale raw scores to 0 to 100, rounded down; `reverse` makes the lowest the best (`DefaultNormalizeScore`)."""
    most = max(raws.values(), default=0)
    shares = {name: MAX_SCORE * raw // most if most else 0 for name, raw in raws.items()}
    return {name: MAX_SCORE - share for name, share in shares.items()} if reverse else shares
