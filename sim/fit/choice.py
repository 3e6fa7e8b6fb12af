"""The node of a pod, or why it has none: in kube-scheduler's own words, and grouped with the causes for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from dranode.api.errors import capitalized, number_of
from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.driver.claims.users import MOST_CONSUMERS
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
    """Where kube-scheduler would place a pod.

    Attributes:
        pod: `<namespace>/<name>`.
        node: the node; None if the pod fits nowhere. kube-scheduler draws among equal scores; this is the first.
        tied: all nodes that kube-scheduler may choose.
        scores: the scores of the nodes that fit, in the order of the nodes; empty if at most one fits.
        refusals: why each other node does not fit, by name.
        problem: why kube-scheduler evaluates no node, in one sentence; empty if it does.
        everywhere: whether the problem comes from a plug-in, which rejects the pod for all nodes.
        outcomes: the devices on the node for the claims that were not allocated before.
        error: the error of a claim that ended the attempt for all nodes (it is also the problem); None without one.
        devices: the raw KEP-4816 score of each node that fits; empty if the pod requests no devices.
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
    """Return why the scheduler evaluates no node for the pod, in one sentence; empty if it does."""
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
            continue  # the PodGroup is the consumer, however many pods it has
        users = max(_entries(key, state), len(claim.status.reserved_for))  # pods of a dump may be left out
        if key in state.allocations and users >= MOST_CONSUMERS:
            return f"resourceclaim in use: {key} already has {MOST_CONSUMERS} pods, the maximum"
    return ""


def _entries(key: ClaimKey, state: ClusterState) -> int:
    """Return how many entries in `status.reservedFor` the bound pods need; the pods of a PodGroup share one."""
    demands = (state.demands[user] for user in state.users(key))
    return len({user.pod.spec.pod_group if key in user.shared else user.pod.key for user in demands})


def _bound(demand: PodDemand, state: ClusterState) -> str:
    """Return why a pod with spec.nodeName is not placed: it bypasses the scheduler, and only that allocates claims."""
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
        node: the node; None if the pod fits nowhere. kube-scheduler draws among equal scores; this is the first.
        best: the nodes that kube-scheduler may choose; None if there are none.
        problem: why kube-scheduler evaluates no node, in one sentence; empty if it does.
        outcomes: the devices on the node for the claims that were not allocated before.
        message: if the pod fits nowhere, kube-scheduler's message, or the problem; else empty.
        groups: if the pod fits nowhere, the nodes that refuse it.
        oddities: if the pod fits nowhere, surprising behavior of kube-scheduler that contributed.
        error: the error of a claim that ended the attempt for all nodes (it is also the problem); None without one.
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
    """Return the outcomes of the pod's claims that were already allocated; `why` is the reason if it has no node."""
    shared = [(claim, allocation) for claim, allocation in claims if allocation is not None]
    if choice.node is not None:
        note = f"already allocated; pod {choice.pod} shares it"
        return tuple(Outcome(claim, choice.node, allocation, notes=(note,)) for claim, allocation in shared)
    error = f"already allocated, but no node fits for pod {choice.pod}, which shares it: {why}"
    return tuple(Outcome(claim, error=error, reason=Reason.DOES_NOT_FIT) for claim, _ in shared)


def choice_of(placement: Placement, cases: Iterable[RefusalCase], nodes: int) -> PodChoice:
    """Return the choice in a placement; `cases` are its refusals, and `nodes` is how many nodes there are."""
    if placement.node is None:
        choice = no_choice(placement.pod, placement.problem, cases, nodes, everywhere=placement.everywhere)
        return replace(choice, error=placement.error)
    scores = {score.node: score.total for score in placement.scores}
    best = Best(max(len(scores), 1), scores.get(placement.node, 0), len(placement.tied), placement.tied[:SHOWN])
    return PodChoice(placement.pod, placement.node, best, outcomes=placement.outcomes)


def no_choice(
    pod: str, problem: str, cases: Iterable[RefusalCase], nodes: int, *, everywhere: bool = False
) -> PodChoice:
    """Return the choice for a pod without a node; `everywhere`: the problem is a plug-in's, which rejects all nodes."""
    cases = tuple(cases)
    # kube-scheduler puts "0/N nodes are available" before what its plug-ins say. Other problems are dranode's words.
    from_plugin = everywhere or not problem
    message = available(reason_counts(cases), nodes, problem) if from_plugin else problem
    groups = tuple(group for group, _ in refusal_groups(cases))
    oddities = frozenset(oddity for case in cases for oddity in case.oddities)
    return PodChoice(pod, None, None, problem, (), message, groups, oddities)


_MILLI: Final = 1000
_LARGE: Final = 1 << 63
_BINARY: Final = ("Ti", "Gi", "Mi", "Ki")


@dataclass(frozen=True, slots=True)
class RefusalCase:
    """One or more nodes that refuse a pod for the same reason, with the same numbers.

    Attributes:
        refusal: the reason.
        miss: what the devices lack; None if another plug-in than DynamicResources refuses the pod.
        node: the first of the nodes.
        count: the number of nodes.
        oddities: surprising behavior of kube-scheduler that contributed.
    """

    refusal: Refusal
    miss: Miss | None
    node: str
    count: int = 1
    oddities: frozenset[Oddity] = frozenset()


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Nodes that refuse a pod for the same reasons.

    Attributes:
        reasons: kube-scheduler's words.
        detail: the cause in plain words, without a full stop; empty if the reasons are clear enough.
        count: the number of nodes.
        hopeless: whether no eviction on any of them would help.
        nearest: the node that lacks least.
    """

    reasons: tuple[str, ...]
    detail: str
    count: int
    hopeless: bool
    nearest: RefusalCase


def available(reasons: Mapping[str, int], nodes: int, problem: str = "") -> str:
    """Return the message of the pod's FailedScheduling event, without its part about preemption.

    Args:
        reasons: how many nodes have each reason.
        nodes: how many nodes there are.
        problem: why no node was evaluated, if none was.

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
    """Return `312 nodes: Insufficient cpu. Closest: n17. The pod needs 12 CPUs, 4 CPUs are free (8 CPUs too few)`."""
    joint = ": " if group.detail == group.nearest.refusal.detail else ". "
    detail = f"{joint}{group.detail}" if group.detail else ""
    return f"{number_of(group.count, 'node')}: {', '.join(group.reasons)}{detail}"


def refusal_groups(cases: Iterable[RefusalCase]) -> list[tuple[RefusalGroup, list[RefusalCase]]]:
    """Group cases with the same reasons; the largest group and, in it, the node that lacks least come first.

    `cases` are sorted by their first nodes.
    """
    alike: dict[tuple[tuple[str, ...], str, Stage | None], list[RefusalCase]] = defaultdict(list)
    for case in cases:
        stage = case.miss.stage if case.miss is not None else None
        alike[case.refusal.reasons, case.refusal.detail, stage].append(case)
    groups = [_group(members) for members in alike.values()]
    return sorted(groups, key=lambda pair: (-pair[0].count, pair[0].reasons, pair[0].detail))


def _group(cases: list[RefusalCase]) -> tuple[RefusalGroup, list[RefusalCase]]:
    """Return the group of these cases, and the cases with the nearest first."""
    count = sum(case.count for case in cases)
    refusal = cases[0].refusal
    misses = [(case.miss, case) for case in cases if case.miss is not None]
    if misses:
        misses.sort(key=lambda pair: pair[0], reverse=True)
        nearest = [case for _, case in misses]
        cause = misses[0][0].sentence
    else:
        nearest = sorted(cases, key=lambda case: _lack(case.refusal.shortages))
        cause = "; ".join(map(_shortage, nearest[0].refusal.shortages))
    if cause:
        cause = capitalized(cause)
    if cause and count > 1:
        cause = f"Closest: {nearest[0].node}. {cause}"
    hopeless = all(case.refusal.hopeless for case in cases)
    return RefusalGroup(refusal.reasons, refusal.detail or cause, count, hopeless, nearest[0]), nearest


def readable_amount(resource: str, value: int) -> str:
    """Format an amount of a resource for people: `1.5 CPUs`, `3.5Gi of memory`, `2 of example.com/widget`."""
    if resource == CPU:
        # A document may request more than a float can hold.
        amount = f"{value / _MILLI:g}" if value < _LARGE else str(value // _MILLI)
        return f"{amount} CPU{'' if value == _MILLI else 's'}"
    if resource in (MEMORY, STORAGE) or resource.startswith("hugepages-"):
        return f"{_bytes(value)} of {resource}"
    if resource == PODS:
        return number_of(value, "pod")
    return f"{value} {resource}" if "/" not in resource else f"{value} of {resource}"


def _bytes(value: int) -> str:
    for power, suffix in zip((4, 3, 2, 1), _BINARY, strict=True):
        if 1024**power <= value < _LARGE:
            return f"{value / 1024**power:.4g}{suffix}"
    return str(value)


def _lack(shortages: tuple[ResourceShortage, ...]) -> tuple[Fraction, ...]:
    """Return the missing share of each requested amount; less is nearer."""
    return tuple(Fraction(shortage.missing, shortage.requested) for shortage in shortages)


def _shortage(shortage: ResourceShortage) -> str:
    if shortage.resource == PODS:
        return f"the node takes no more than {number_of(shortage.allocatable, 'pod')}"
    amounts = (shortage.missing, shortage.requested, max(shortage.free, 0))
    missing, requested, free = (readable_amount(shortage.resource, amount) for amount in amounts)
    few = "little" if shortage.resource in (MEMORY, STORAGE) or shortage.resource.startswith(HUGE_PAGES) else "few"
    return f"the pod needs {requested}, the node has {free} free ({missing} too {few})"
