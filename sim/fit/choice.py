"""The place of a pod, or what keeps kube-scheduler from looking for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dranode.driver.claims.uses import MOST_CONSUMERS
from dranode.sim.allocator.requests import AllocationError, Outcome
from dranode.sim.allocator.result import Oddity
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pods import not_scheduled
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.node_table import SHOWN, Best
from dranode.sim.fit.reasons import RefusalCase, RefusalGroup, available, reason_counts, refusal_groups
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.filters import Refusal
from dranode.sim.scheduler.scores import NodeTotal


@dataclass(frozen=True)
class Placement:
    """The placement of a pod by kube-scheduler.

    Attributes:
        pod: `<namespace>/<name>`.
        node: the node; None if there is none. Of several with the same score, which is a lottery, the first.
        tied: all nodes that kube-scheduler may choose.
        scores: of the nodes that the pod fits on, in the order of the nodes; empty where there is no choice.
        refusals: of the others, by name.
        problem: why no node is looked at, in one sentence; empty if they are.
        everywhere: whether a plug-in of kube-scheduler says so, and so of all nodes.
        outcomes: what the claims get on the node that were not allocated before.
        error: the error of a claim that ended the attempt for all nodes, which is the problem; None if there was none.
        devices: the raw score of KEP-4816 of each node that the pod fits on; empty if it asks for no devices.
    """

    pod: str
    node: str | None
    tied: tuple[str, ...] = ()
    scores: tuple[NodeTotal, ...] = ()
    refusals: Mapping[str, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    everywhere: bool = False
    outcomes: tuple[Outcome, ...] = ()
    error: AllocationError | None = None
    devices: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def obstacle(demand: PodDemand, state: ClusterState) -> str:
    """Return why the scheduler looks at no node for the pod, in one sentence; empty if it does."""
    pod = demand.pod
    if demand.missing:
        return f"pod {pod.key} lacks {', '.join(demand.missing)}"
    if pod.spec.node_name:
        return _bound(demand, state)
    if demand.problem:
        return demand.problem
    if demand.left_over:
        return f"pod {pod.key} waits until ResourceClaim {demand.left_over} of an earlier attempt is deleted"
    for claim in demand.claims:
        key = ClaimKey.of(claim)
        if key in demand.shared:
            continue  # the group uses it, however many pods it has
        if key in state.allocations and _entries(key, state) >= MOST_CONSUMERS:
            return f"resourceclaim in use: {key} already has {MOST_CONSUMERS} pods, the maximum"
    return ""


def _entries(key: ClaimKey, state: ClusterState) -> int:
    """Return how many entries `status.reservedFor` has by the bound pods: those of a PodGroup are one together."""
    demands = (state.demands[user] for user in state.users(key))
    return len({each.pod.spec.pod_group if key in each.shared else each.pod.key for each in demands})


def _bound(demand: PodDemand, state: ClusterState) -> str:
    """A pod that names its node passes the scheduler by, which alone allocates claims."""
    name = demand.pod.spec.node_name
    waiting = [str(ClaimKey.of(claim)) for claim in demand.claims if ClaimKey.of(claim) not in state.allocations]
    if waiting:
        return not_scheduled(demand.pod.key, name, waiting)
    return f"pod {demand.pod.key} is already bound to {name}"


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
