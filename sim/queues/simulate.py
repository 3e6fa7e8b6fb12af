"""Runs scheduling cycles over queues, as Kueue does, until nothing changes any more.

A cycle takes the first workload of every ClusterQueue (highest priority, then oldest) and decides about each with the
same usage. Then it acts on them in this order: first those that borrow least, then by priority, then by age. A workload
that fits is charged and placed. One that needs preemption evicts its targets, which return to their queues, and tries
again in the next cycle. One that has to wait is parked until a workload in its cohort tree leaves, unless it has
flavors left to try. In a StrictFIFO queue it stays the first and is tried in every cycle.

A workload whose pods cannot be placed returns its quota and continues with the next flavor, as with Kueue's
`waitForPodsReady`.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from operator import itemgetter
from typing import Final, Protocol

from dranode.sim.queues.assign import Assignment, FlavorMode, Moment, Oracle, SearchState, assign
from dranode.sim.queues.preemption import Preemptor
from dranode.sim.queues.quota import Usage
from dranode.sim.queues.setup import Setup
from dranode.sim.queues.values import Admitted, Queues, Workload

Targets = Callable[[Assignment], tuple[Admitted, ...]]


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """The decision of an attempt; `state` is for the next attempt."""

    assignment: Assignment
    state: SearchState
    targets: tuple[Admitted, ...] = ()

    @property
    def useful(self) -> bool:
        """Return whether the workload can be admitted now, or after its targets have left."""
        return self.assignment.mode is FlavorMode.FIT or bool(self.targets)


def decide_workload(
    queues: Queues,
    usage: Usage,
    workload: Workload,
    last: SearchState | None,
    oracle: Oracle,
    *,
    targets: Targets,
    moment: Moment,
    nominated: Assignment | None = None,
) -> QueueDecision:
    """Try all pods, then as many as fit if pod sets have a `minCount` (partial admission, Kueue's KEP-420).

    Args:
        queues: queues, cohorts and flavors.
        usage: the used quota.
        workload: the workload to admit.
        last: the state after its last attempt.
        oracle: simulates preemption for a flavor and resource.
        targets: returns the workloads to preempt for an assignment.
        moment: the generation of its queue and the scheduling cycle.
        nominated: an assignment to whose flavors the attempt is restricted.
    """

    def attempt(counts: tuple[int, ...] = ()) -> QueueDecision:
        assignment, state = assign(
            queues, usage, workload, last, oracle, moment=moment, counts=counts, nominated=nominated
        )
        preempts = FlavorMode.NO_FIT < assignment.mode < FlavorMode.FIT
        return QueueDecision(assignment, state, targets(assignment) if preempts else ())

    complete = attempt()
    # Kueue counts down from all pods, including those that have ended.
    most = [pod_set.count + pod_set.ended for pod_set in workload.pod_sets]
    spare = [full - (pod_set.min_count or full) for full, pod_set in zip(most, workload.pod_sets, strict=True)]
    if complete.useful or not any(spare) or not queues.gates.partial_admission:
        return complete

    @cache
    def reduced(step: int) -> QueueDecision:
        return attempt(tuple(full - less * step // sum(spare) for full, less in zip(most, spare, strict=True)))

    # Fewer pods fit more easily, so the first useful step is found by binary search, as in Kueue.
    step = bisect_left(range(sum(spare) + 1), True, key=lambda number: reduced(number).useful)  # noqa: FBT003 - a key
    return reduced(step) if step <= sum(spare) else complete


_NOT_PLACED: Final = "admitted, but its pods cannot be placed"


class Nodes(Protocol):
    """The nodes that admitted workloads run on."""

    def place(self, admitted: Admitted) -> str:
        """Place all pods of a workload, or none; return why that is not possible, or an empty string."""
        ...

    def release(self, admitted: Admitted) -> None:
        """Remove the pods of a workload, if they were placed."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt in a simulation.

    Attributes:
        cycle: the scheduling cycle's number; 0 is before the first.
        workload: the workload that was tried.
        outcome: the outcome, for people.
        decision: the decision; None if the quota cannot be counted, or if it held quota before the first cycle.
        admitted: whether it holds quota after the attempt.
        preempted: the workloads that were evicted for it.
    """

    cycle: int
    workload: Workload
    outcome: str
    decision: QueueDecision | None = None
    admitted: bool = False
    preempted: tuple[Admitted, ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """The queues between two cycles.

    Attributes:
        active: workloads that wait for their turn.
        parked: workloads that wait until another one leaves.
        states: the state after the last attempt of each workload.
        preempting: the workload of each BestEffortFIFO queue that preempted last; it stays first until it is admitted.
        generations: the generation of each ClusterQueue.
    """

    queues: Queues
    usage: Usage
    admitted: tuple[Admitted, ...]
    active: tuple[Workload, ...]
    parked: tuple[Workload, ...] = ()
    states: Mapping[str, SearchState] = field(default_factory=dict)
    preempting: Mapping[str, str] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    cycle: int = 0

    @property
    def mark(self) -> tuple[object, ...]:
        """Return everything that decides the next cycles; the same mark again means an endless loop."""
        queues = {item.key: item.queue for item in (*self.active, *self.parked)}
        tried = tuple(
            (key, str(state.tried), state.cycle == self.cycle, state.generation < self.generations.get(queues[key], 0))
            for key, state in sorted(self.states.items(), key=itemgetter(0))
        )
        holders = tuple((item.workload.key, str(item.flavors)) for item in self.admitted)
        return (
            tuple(w.key for w in self.active),
            tuple(w.key for w in self.parked),
            tried,
            holders,
            str(self.preempting),
        )


def simulate(setup: Setup, nodes: Nodes) -> tuple[tuple[Step, ...], Situation]:
    """Run cycles until nothing changes any more.

    Returns:
        Every attempt in order, and the situation at the end, where all workloads without quota are in `parked`.
    """
    steps: list[Step] = []
    for holder in setup.admitted:
        problem = nodes.place(holder)
        if problem:
            steps.append(Step(0, holder.workload, f"{_NOT_PLACED}: {problem}", admitted=True))
    stuck = tuple(workload for workload in setup.pending if workload.inadmissible)
    steps += [Step(0, workload, workload.inadmissible) for workload in stuck]
    waiting = tuple(workload for workload in setup.pending if not workload.inadmissible)
    situation = Situation(setup.queues, setup.usage, setup.admitted, waiting)
    marks: set[tuple[object, ...]] = set()
    while heads := _heads(situation):
        before = len(situation.active)
        situation, attempts = _cycle(situation, heads, nodes)
        steps += attempts
        # In an endless loop, the number of active workloads does not always decrease.
        if len(situation.active) >= before:
            if situation.mark in marks:
                break
            marks.add(situation.mark)
    return tuple(steps), replace(situation, parked=(*situation.parked, *situation.active, *stuck), active=())


def _cycle(situation: Situation, heads: tuple[Workload, ...], nodes: Nodes) -> tuple[Situation, list[Step]]:
    situation = replace(situation, cycle=situation.cycle + 1)
    nominated = [(workload, _attempt(situation, workload)) for workload in heads]
    cycle = _Cycle(situation, situation.usage, situation.admitted)
    steps = []
    for workload, decision in sorted(nominated, key=lambda pair: _cycle_order(situation, *pair)):
        before = len(cycle.leaving)
        cycle, outcome = _process(cycle, workload, decision, nodes)
        admitted = any(item.workload.key == workload.key for item in cycle.situation.admitted)
        # A parked workload of a StrictFIFO queue is reported again only if something has changed.
        if decision.useful or workload not in situation.parked:
            steps.append(Step(situation.cycle, workload, outcome, decision, admitted, cycle.leaving[before:]))
    for item in cycle.leaving:
        nodes.release(item)
        if item.workload.inadmissible:
            steps.append(Step(situation.cycle, item.workload, item.workload.inadmissible))
    return _evict(cycle), steps


def _heads(situation: Situation) -> tuple[Workload, ...]:
    """Return the first workload of every queue: one that waits for its preemption, or the first by rank.

    In a StrictFIFO queue, no workload may overtake a parked one.
    """
    queues = situation.queues.cluster_queues
    strict = (item for item in situation.parked if queues[item.queue].strict_fifo and not item.inadmissible)
    heads: dict[str, tuple[tuple[object, ...], Workload]] = {}
    for workload in (*situation.active, *strict):
        rank = situation.preempting.get(workload.queue) != workload.key, _rank(workload)
        if workload.queue not in heads or rank < heads[workload.queue][0]:
            heads[workload.queue] = rank, workload
    return tuple(workload for _, workload in heads.values())


def _rank(workload: Workload) -> tuple[int, float, str]:
    return -workload.priority, workload.created, workload.key


def _cycle_order(situation: Situation, workload: Workload, decision: QueueDecision) -> tuple[object, ...]:
    by_priority = situation.queues.gates.priority_sorting_within_cohort
    rank = _rank(workload) if by_priority else (workload.created, workload.key)
    return decision.assignment.borrowing, rank


def _attempt(situation: Situation, workload: Workload, nominated: Assignment | None = None) -> QueueDecision:
    preemptor = Preemptor(situation.queues, situation.usage, situation.admitted)
    return decide_workload(
        situation.queues,
        situation.usage,
        workload,
        situation.states.get(workload.key),
        preemptor.simulate,
        targets=lambda assignment: preemptor.targets(workload, assignment.contested, assignment.usage),
        moment=Moment(situation.generations.get(workload.queue, 0), situation.cycle),
        nominated=nominated,
    )


@dataclass(frozen=True, slots=True)
class _Cycle:
    """A cycle in progress.

    Attributes:
        usage: the usage, including quota reserved in this cycle for workloads that need preemption.
        present: the workloads that held quota when the cycle began.
        leaving: the workloads that this cycle preempts.
    """

    situation: Situation
    usage: Usage
    present: tuple[Admitted, ...]
    leaving: tuple[Admitted, ...] = ()


def _process(cycle: _Cycle, workload: Workload, decision: QueueDecision, nodes: Nodes) -> tuple[_Cycle, str]:
    """Act on a decision, unless others of this cycle took the quota or targets that it relies on."""
    gone = {item.workload.key for item in cycle.leaving}
    again = any(item.workload.key in gone for item in decision.targets)
    if again:
        # As if those that leave in this cycle had left, and in the same flavors.
        present = tuple(item for item in cycle.present if item.workload.key not in gone)
        after = replace(cycle.situation, usage=cycle.usage.without(*cycle.leaving), admitted=present, states={})
        decision = _attempt(after, workload, decision.assignment)
    assignment, situation = decision.assignment, cycle.situation
    situation = replace(situation, states={**situation.states, workload.key: decision.state})
    cycle = replace(cycle, situation=situation)
    if not decision.useful:
        cycle = replace(cycle, situation=_park(situation, workload, decision.state))
        if assignment.mode is FlavorMode.NO_FIT:
            return cycle, "waits: no flavor fits"
        return _reserve(cycle, workload, assignment), "waits: no workload may be preempted"
    if again and not decision.targets:
        return _preempt(cycle, workload, decision)[0], "tries again: another workload preempts the same workloads"
    if not cycle.usage.without(*cycle.leaving, *decision.targets).holds(workload.queue, assignment.usage):
        return cycle, "tries again: another workload of this cycle took the quota"
    if decision.targets:
        return _preempt(cycle, workload, decision)
    return _admit(cycle, workload, decision, nodes)


def _reserve(cycle: _Cycle, workload: Workload, assignment: Assignment) -> _Cycle:
    """Keep quota for a workload without targets in this cycle, unless its queue could take it back from any other."""
    queue = cycle.situation.queues.cluster_queues[workload.queue]
    if queue.preemption.reclaim_within_cohort == "Any":
        return cycle
    node = cycle.usage.nodes[workload.queue]
    amounts = dict(assignment.usage)
    for of, amount in assignment.usage.items():
        limit = queue.quotas[of].borrowing_limit if assignment.borrowing else 0
        if limit is not None:
            amounts[of] = max(0, min(amount, queue.quotas[of].nominal + limit - cycle.usage.at(node, of)))
    return replace(cycle, usage=cycle.usage.charge(workload.queue, amounts))


def _preempt(cycle: _Cycle, workload: Workload, decision: QueueDecision) -> tuple[_Cycle, str]:
    names = ", ".join(item.workload.label for item in decision.targets)
    situation = cycle.situation
    states = {key: state for key, state in situation.states.items() if key != workload.key}
    preempting = dict(situation.preempting)
    if not situation.queues.cluster_queues[workload.queue].strict_fifo:
        preempting[workload.queue] = workload.key
    situation = replace(situation, states=states, preempting=preempting)
    promised = cycle.usage.charge(workload.queue, decision.assignment.usage)
    leaving = (*cycle.leaving, *decision.targets)
    return replace(cycle, situation=situation, usage=promised, leaving=leaving), f"tries again without {names}"


def _admit(cycle: _Cycle, workload: Workload, decision: QueueDecision, nodes: Nodes) -> tuple[_Cycle, str]:
    situation = cycle.situation
    admitted = _holder(workload, decision.assignment, situation)
    problem = nodes.place(admitted)
    if problem:
        return replace(cycle, situation=_park(situation, workload, decision.state)), f"{_NOT_PLACED}: {problem}"
    situation = replace(
        situation,
        usage=situation.usage.charge(workload.queue, admitted.usage),
        admitted=(*situation.admitted, admitted),
        active=_others(situation.active, workload),
        parked=_others(situation.parked, workload),
        states={key: state for key, state in situation.states.items() if key != workload.key},
        preempting={queue: key for queue, key in situation.preempting.items() if key != workload.key},
    )
    return replace(cycle, situation=situation, usage=cycle.usage.charge(workload.queue, admitted.usage)), "admitted"


def _holder(workload: Workload, assignment: Assignment, situation: Situation) -> Admitted:
    latest = max((item.reserved for item in situation.admitted), default=0.0)
    return Admitted(
        workload,
        {
            item.pod_set.name: {name: assigned.flavor for name, assigned in item.flavors.items()}
            for item in assignment.pod_sets
        },
        {item.pod_set.name: item.count for item in assignment.pod_sets},
        assignment.usage,
        latest + 1,
    )


def _park(situation: Situation, workload: Workload, state: SearchState) -> Situation:
    """Park a workload, unless it has flavors left to try."""
    if state.pending_flavors:
        return situation
    return replace(
        situation,
        active=_others(situation.active, workload),
        parked=(*_others(situation.parked, workload), workload),
    )


def _others(workloads: tuple[Workload, ...], than: Workload) -> tuple[Workload, ...]:
    return tuple(item for item in workloads if item.key != than.key)


def _evict(cycle: _Cycle) -> Situation:
    """Return preempted workloads to their queues, and unpark those in their cohort trees, except inadmissible ones."""
    situation = cycle.situation
    if not cycle.leaving:
        return situation
    queues = frozenset(item.workload.queue for item in cycle.leaving)
    keys = {item.workload.key for item in cycle.leaving}
    trees = {situation.usage.root(queue) for queue in queues}
    back = (*situation.parked, *(item.workload for item in cycle.leaving))
    woken = {item.key for item in back if situation.usage.root(item.queue) in trees and not item.inadmissible}
    return replace(
        situation,
        usage=situation.usage.without(*cycle.leaving),
        admitted=tuple(item for item in situation.admitted if item.workload.key not in keys),
        active=(*situation.active, *(item for item in back if item.key in woken)),
        parked=tuple(item for item in back if item.key not in woken),
        # Kueue increments the queue's generation, so that the next searches start with the first flavor again.
        generations={
            **situation.generations,
            **{queue: situation.generations.get(queue, 0) + 1 for queue in sorted(queues)},
        },
    )
