"""The place of a pod; or why it has none, in kube-scheduler's own words, and grouped for people with the causes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from dranode.api.errors import capitalized, number_of
from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.driver.claims.uses import MOST_CONSUMERS
from dranode.sim.allocator.explain import Miss, Stage
from dranode.sim.allocator.requests import AllocationError, Outcome, Reason
from dranode.sim.allocator.result import Oddity
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pods import not_scheduled
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.node_table import SHOWN, Best
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.filters import Refusal
from dranode.sim.scheduler.requests import CPU, HUGE_PAGES, MEMORY, PODS, STORAGE
from dranode.sim.scheduler.resources import ResourceShortage
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


def shared_outcomes(
    choice: PodChoice, claims: Iterable[tuple[ResourceClaim, AllocationResult | None]], why: str
) -> tuple[Outcome, ...]:
    """Return what becomes of the pod's claims that were allocated before; `why` says why it has no node."""
    shared = [(claim, allocation) for claim, allocation in claims if allocation is not None]
    if choice.node is not None:
        note = f"already allocated; pod {choice.pod} shares it"
        return tuple(Outcome(claim, choice.node, allocation, notes=(note,)) for claim, allocation in shared)
    error = f"already allocated, but no node fits for pod {choice.pod}, which shares it: {why}"
    return tuple(Outcome(claim, error=error, reason=Reason.DOES_NOT_FIT) for claim, _ in shared)


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


_MILLI: Final = 1000
_LARGE: Final = 1 << 63
_BINARY: Final = ("Ti", "Gi", "Mi", "Ki")


@dataclass(frozen=True, slots=True)
class RefusalCase:
    """Nodes that refuse a pod for one reason and the same numbers; a node by itself is one, too.

    Attributes:
        refusal: why.
        miss: what the devices lack; None if it is not for them.
        node: the first of the nodes.
        count: how many they are.
        oddities: what is odd about it, though kube-scheduler has it so.
    """

    refusal: Refusal
    miss: Miss | None
    node: str
    count: int = 1
    oddities: frozenset[Oddity] = frozenset()


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Nodes that refuse a pod alike.

    Attributes:
        reasons: kube-scheduler's words.
        detail: the cause in plain words, without a full stop; empty where the reasons say all.
        count: how many nodes they are.
        hopeless: whether an eviction would help on none of them.
        nearest: the one that lacks least.
    """

    reasons: tuple[str, ...]
    detail: str
    count: int
    hopeless: bool
    nearest: RefusalCase


def available(reasons: Mapping[str, int], nodes: int, problem: str = "") -> str:
    """The sentence of the pod's FailedScheduling event, before it comes to preemption.

    Args:
        reasons: how many nodes have each reason.
        nodes: how many nodes there are.
        problem: why no node was looked at, if none was.

    Source: `FitError` of kube-scheduler.
    """
    begin = f"0/{nodes} nodes are available:"
    if problem:
        return f"{begin} {problem}."
    return f"{begin} {', '.join(sorted(f'{count} {reason}' for reason, count in reasons.items()))}."


def reason_counts(cases: Iterable[RefusalCase]) -> Counter[str]:
    """Return how many nodes have each reason; a node may have several."""
    counts: Counter[str] = Counter()
    for case in cases:
        for reason in case.refusal.reasons:
            counts[reason] += case.count
    return counts


def group_line(group: RefusalGroup) -> str:
    """`312 nodes: Insufficient cpu. Closest: n17. The pod needs 12 CPUs, 4 CPUs are free (8 CPUs too few)`."""
    joint = ": " if group.detail == group.nearest.refusal.detail else ". "
    detail = f"{joint}{group.detail}" if group.detail else ""
    return f"{number_of(group.count, 'node')}: {', '.join(group.reasons)}{detail}"


def refusal_groups(cases: Iterable[RefusalCase]) -> list[tuple[RefusalGroup, list[RefusalCase]]]:
    """The cases that are alike together, the group with the most nodes first; in each the one that lacks least first.

    `cases` come in the order of their first nodes.
    """
    alike: dict[tuple[tuple[str, ...], str, Stage | None], list[RefusalCase]] = defaultdict(list)
    for case in cases:
        stage = case.miss.stage if case.miss is not None else None
        alike[case.refusal.reasons, case.refusal.detail, stage].append(case)
    groups = [_group(each) for each in alike.values()]
    return sorted(groups, key=lambda pair: (-pair[0].count, pair[0].reasons, pair[0].detail))


def _group(cases: list[RefusalCase]) -> tuple[RefusalGroup, list[RefusalCase]]:
    """One group, and its cases, the nearest first."""
    count = sum(case.count for case in cases)
    refusal = cases[0].refusal
    misses = [(case.miss, case) for case in cases if case.miss is not None]
    if misses:
        misses.sort(key=lambda pair: pair[0], reverse=True)
        nearest = [case for _, case in misses]
        behind = misses[0][0].sentence
    else:
        nearest = sorted(cases, key=lambda case: _lack(case.refusal.shortages))
        behind = "; ".join(map(_shortage, nearest[0].refusal.shortages))
    if behind:
        behind = capitalized(behind)
    if behind and count > 1:
        behind = f"Closest: {nearest[0].node}. {behind}"
    hopeless = all(case.refusal.hopeless for case in cases)
    return RefusalGroup(refusal.reasons, refusal.detail or behind, count, hopeless, nearest[0]), nearest


def readable_amount(resource: str, value: int) -> str:
    """An amount of a resource for people: `1.5 CPUs`, `3.5Gi of memory`, `2 of example.com/widget`."""
    if resource == CPU:
        # A document may ask for more than a float can be.
        amount = f"{value / _MILLI:g}" if value < _LARGE else str(value // _MILLI)
        return f"{amount} CPU{'' if value == _MILLI else 's'}"
    if resource in (MEMORY, STORAGE) or resource.startswith("hugepages-"):
        return f"{_bytes(value)} of {resource}"
    if resource == "pods":
        return number_of(value, "pod")
    return f"{value} {resource}" if "/" not in resource else f"{value} of {resource}"


def _bytes(value: int) -> str:
    for power, suffix in zip((4, 3, 2, 1), _BINARY, strict=True):
        if 1024**power <= value < _LARGE:
            return f"{value / 1024**power:.4g}{suffix}"
    return str(value)


def _lack(short: tuple[ResourceShortage, ...]) -> tuple[Fraction, ...]:
    """Return how much is missing, as parts of what is asked; less is nearer."""
    return tuple(Fraction(shortage.missing, shortage.requested) for shortage in short)


def _shortage(short: ResourceShortage) -> str:
    if short.resource == PODS:
        return f"the node takes no more than {number_of(short.allocatable, 'pod')}"
    missing, asked, free = (
        readable_amount(short.resource, value) for value in (short.missing, short.requested, max(short.free, 0))
    )
    few = "little" if short.resource in (MEMORY, STORAGE) or short.resource.startswith(HUGE_PAGES) else "few"
    return f"the pod needs {asked}, the node has {free} free ({missing} too {few})"
