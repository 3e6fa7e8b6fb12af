"""Remembers an attempt for the next one, and decides when that no longer counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dranode.sim.queues.assignment import LAST_FLAVOR, Assignment
from dranode.sim.queues.values import Workload


@dataclass(frozen=True, slots=True)
class Moment:
    """The time and the queues of an attempt.

    Attributes:
        generation: the ClusterQueue's, raised whenever more may have become available to it.
        cycle: the scheduling cycle's number.
        preserve_progress: Kueue's gate FlavorFungibilityPreserveScanProgress.
    """

    generation: int = 0
    cycle: int = 0
    preserve_progress: bool = True


@dataclass(frozen=True, slots=True)
class SearchState:
    """The places where the searches of an attempt ended.

    Attributes:
        tried: by pod set and resource, the index of the last flavor tried, LAST_FLAVOR for the last there is.
        generation: the ClusterQueue's generation then.
        cycle: the scheduling cycle's number then.
        shape: the shape of the workload then, by the function `shape`.
    """

    tried: tuple[Mapping[str, int], ...]
    generation: int
    cycle: int
    shape: tuple[object, ...] | None = None

    @classmethod
    def of(cls, assignment: Assignment, now: Moment) -> SearchState:
        """Return what an assignment leaves behind."""
        return cls(assignment.tried, now.generation, now.cycle, shape(assignment.workload))

    @property
    def pending_flavors(self) -> bool:
        """Return whether a search ended before the last flavor, so that another attempt may do better at once."""
        return any(index != LAST_FLAVOR for tried in self.tried for index in tried.values())


def shape(workload: Workload) -> tuple[object, ...]:
    """Return what the indices of a state depend on; equal values mean that they can be used again."""
    return (workload.priority, *workload.pod_sets)


def still_valid(last: SearchState, workload: Workload, now: Moment) -> bool:
    """Return whether a new attempt may go on where the last one ended.

    It may not once the workload has another shape. Otherwise it may in the cycle after the last one, whatever
    happened, and later unless the queue's generation has grown.
    """
    if now.preserve_progress:
        if last.shape is not None and last.shape != shape(workload):
            return False
        if now.cycle - last.cycle <= 1:
            return True
    return now.generation <= last.generation


def next_index(tried: Mapping[str, int], resource: str) -> int:
    """The index of the flavor that a search starts with; 0 if none was tried, or the last one."""
    return tried.get(resource, LAST_FLAVOR) + 1


class QueueEvent(Enum):
    """The events of queues and of the workloads that they admitted."""

    QUEUE_CREATED = "queue created"
    QUEUE_UNCHANGED = "queue updated, quota as before"
    QUOTA_CHANGED = "quota changed"
    COHORT_CREATED = "cohort created"
    WORKLOAD_ADMITTED = "workload admitted"
    WORKLOAD_UPDATED = "admitted workload updated"
    WORKLOAD_LEFT = "workload left"


# By how much an event raises generations, and whether in all queues of the tree or in its own queue alone. A new cohort
# counts its tree twice; an update of a workload takes its usage out and puts it in again.
_RAISES: Final[dict[QueueEvent, tuple[int, bool]]] = {
    QueueEvent.QUEUE_CREATED: (1, True),
    QueueEvent.QUEUE_UNCHANGED: (0, True),
    QueueEvent.QUOTA_CHANGED: (1, True),
    QueueEvent.COHORT_CREATED: (2, True),
    QueueEvent.WORKLOAD_ADMITTED: (0, False),
    QueueEvent.WORKLOAD_UPDATED: (1, False),
    QueueEvent.WORKLOAD_LEFT: (1, False),
}


def raised(
    generations: Mapping[str, int], event: QueueEvent, queues: frozenset[str], tree: frozenset[str]
) -> dict[str, int]:
    """The generations after an event in `queues`, which belong to the cohorts' `tree` of queues."""
    step, everywhere = _RAISES[event]
    touched = tree if everywhere else queues
    return {**generations, **{name: generations.get(name, 0) + step for name in sorted(touched)}}
