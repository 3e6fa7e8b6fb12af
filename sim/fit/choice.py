"""The choice of a node for a pod, without the list of all nodes that takes long to make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dranode.sim.allocator.outcome import AllocationError, Outcome
from dranode.sim.allocator.picks import Oddity
from dranode.sim.fit.placement import Placement
from dranode.sim.fit.reasons import RefusalCase, RefusalGroup, available, reason_counts, refusal_groups
from dranode.sim.fit.standing import SHOWN, Best


@dataclass(frozen=True, slots=True)
class PodChoice:
    """The node that kube-scheduler chooses for a pod, or why there is none.

    Attributes:
        pod: `<namespace>/<name>`.
        node: the node; None if there is none. Of several with the same score, which is a lottery, the first.
        best: the nodes that it may choose; None if there are none.
        problem: why no node is looked at, in one sentence; empty if they are.
        outcomes: what the claims get on the node that were not allocated before.
        message: if it fits nowhere, kube-scheduler's sentence, or why kube-scheduler looks at no node; else empty.
        groups: if it fits nowhere, the nodes that refuse it.
        oddities: if it fits nowhere, what is odd about that, though kube-scheduler has it so.
        error: the error of a claim that ended the attempt for all nodes, which is the problem; None if there was none.
    """

    pod: str
    node: str | None
    best: Best | None = None
    problem: str = ""
    outcomes: tuple[Outcome, ...] = ()
    message: str = ""
    groups: tuple[RefusalGroup, ...] = ()
    oddities: frozenset[Oddity] = frozenset()
    error: AllocationError | None = None


def choice_of(placement: Placement, cases: Iterable[RefusalCase], nodes: int) -> PodChoice:
    """The choice in a placement; `cases` are its refusals, and `nodes` is how many nodes there are."""
    if placement.node is None:
        choice = no_choice(placement.pod, placement.problem, cases, nodes, everywhere=placement.everywhere)
        return replace(choice, error=placement.error)
    scores = {score.node: score.total for score in placement.scores}
    best = Best(max(len(scores), 1), scores.get(placement.node, 0), len(placement.tied), placement.tied[:SHOWN])
    return PodChoice(placement.pod, placement.node, best, outcomes=placement.outcomes)


def no_choice(
    pod: str, problem: str, cases: Iterable[RefusalCase], nodes: int, *, everywhere: bool = False
) -> PodChoice:
    """The choice of no node; `everywhere` says that a plug-in refuses the pod for all nodes, which is the problem."""
    cases = tuple(cases)
    # A plug-in's sentence begins with how many nodes there are.
    said = everywhere or not problem
    message = available(reason_counts(cases), nodes, problem) if said else problem
    groups = tuple(group for group, _ in refusal_groups(cases))
    oddities = frozenset(oddity for case in cases for oddity in case.oddities)
    return PodChoice(pod, None, None, problem, (), message, groups, oddities)
