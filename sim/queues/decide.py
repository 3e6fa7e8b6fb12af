"""One attempt to admit a workload: flavors, whom to preempt for them, and with fewer pods if all do not fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from dranode.sim.queues.assign import Oracle, assign
from dranode.sim.queues.assignment import Assignment, FlavorMode
from dranode.sim.queues.progress import Moment, SearchState
from dranode.sim.queues.quota import Usage
from dranode.sim.queues.values import Admitted, Queues, Workload

Targets = Callable[[Assignment], tuple[Admitted, ...]]


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """The outcome of an attempt; `state` is for the next one."""

    assignment: Assignment
    state: SearchState
    targets: tuple[Admitted, ...] = ()

    @property
    def useful(self) -> bool:
        """Return whether the workload can be admitted now, or once the targets have gone."""
        return self.assignment.mode is FlavorMode.FIT or bool(self.targets)


def decide_workload(
    queues: Queues,
    usage: Usage,
    workload: Workload,
    last: SearchState | None,
    oracle: Oracle,
    *,
    targets: Targets,
    now: Moment,
) -> QueueDecision:
    """Try all pods, then as many as fit where pod sets have a `minCount` (partial admission, Kueue's KEP-420).

    Args:
        queues: queues, cohorts and flavors.
        usage: what is used of their quotas.
        workload: the workload to be admitted.
        last: what its last attempt left behind.
        oracle: what preemption could do for one flavor and resource.
        targets: gives the workloads to preempt for an assignment.
        now: the generation of its queue and the scheduling cycle.
    """

    def attempt(counts: tuple[int, ...] = ()) -> QueueDecision:
        assignment, state = assign(queues, usage, workload, last, oracle, now=now, counts=counts)
        preempts = FlavorMode.NO_FIT < assignment.mode < FlavorMode.FIT
        return QueueDecision(assignment, state, targets(assignment) if preempts else ())

    whole = attempt()
    # Kueue counts down from all pods, those that have ended too.
    most = [pod_set.count + pod_set.ended for pod_set in workload.pod_sets]
    spare = [full - (pod_set.min_count or full) for full, pod_set in zip(most, workload.pod_sets, strict=True)]
    if whole.useful or not any(spare) or not queues.gates.partial_admission:
        return whole

    @cache
    def reduced(step: int) -> QueueDecision:
        return attempt(tuple(full - less * step // sum(spare) for full, less in zip(most, spare, strict=True)))

    # Fewer pods fit more easily: the first step that is useful is found by halving, as Kueue does.
    step = bisect_left(range(sum(spare) + 1), True, key=lambda number: reduced(number).useful)  # noqa: FBT003 - a key
    return reduced(step) if step <= sum(spare) else whole
