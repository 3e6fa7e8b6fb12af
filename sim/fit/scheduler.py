"""Places a pod as kube-scheduler would, or says why nowhere: its filters, scores, and the claims' devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dranode.driver.core.api.errors import UsageError
from dranode.driver.core.api.resource import AllocationResult
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.explain import Miss
from dranode.sim.allocator.nodeselector import selects
from dranode.sim.allocator.outcome import AllocationError, Outcome
from dranode.sim.allocator.search import Solution
from dranode.sim.allocator.state import PoolID
from dranode.sim.cluster.devices import DeviceAnswers
from dranode.sim.cluster.extended import NOT_BOUND, cannot_be_bound
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pods import passed_by
from dranode.sim.cluster.solutions import score_before
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.devices_on import DevicesOn
from dranode.sim.fit.node_allocatable import (
    MAPPINGS_SINCE,
    SHARED_MAPPING,
    claim_statuses,
    has_mappings,
    refusal_for,
)
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.filters import Filters, Refusal
from dranode.sim.scheduler.scores import DEVICES, NodeTotal, best, totals
from dranode.sim.scheduler.snapshot import NodeInfo, PodInfo

CANNOT_ALLOCATE: Final = "cannot allocate all claims"
NOT_AVAILABLE: Final = "resourceclaim not available on the node"
# How many pods may share a claim (`status.reservedFor`).
_MOST_USERS: Final = 256


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
        outcomes: what the claims get on the node that were not allocated before.
    """

    pod: str
    node: str | None
    tied: tuple[str, ...] = ()
    scores: tuple[NodeTotal, ...] = ()
    refusals: Mapping[str, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pod, ready to look at nodes."""

    demand: PodDemand
    filters: Filters
    devices: DevicesOn
    fixed: Mapping[ClaimKey, AllocationResult]
    used: frozenset[ClaimKey]  # of the fixed ones, those that other pods use


class Scheduler:
    """kube-scheduler's answers for states of one cluster; it keeps only what it need not find out twice."""

    def __init__(self, allocator: Allocator) -> None:
        """Answer as the allocator's release does."""
        self._minor = allocator.features.release.number[0]
        self._mappings = allocator.features.node_allocatable_resources
        if self._mappings and self._minor < MAPPINGS_SINCE:
            raise UsageError(
                f"DRANodeAllocatableResources is simulated since 1.{MAPPINGS_SINCE}; before, it had other fields"
            )
        self._devices = DeviceAnswers(allocator)

    def place(self, state: ClusterState, demand: PodDemand) -> Placement:
        """Find a node for a pod."""
        problem = obstacle(demand, state)
        if problem:
            return Placement(demand.pod.key, None, problem=problem)
        try:
            asked = self._asked(state, demand)
            if asked.filters.contradiction:
                return Placement(demand.pod.key, None, problem=asked.filters.contradiction)
            refusals, solutions = self._look(state, asked, state.nodes.values())
        except AllocationError as error:
            return Placement(demand.pod.key, None, problem=str(error))
        feasible = [state.nodes[name] for name in solutions]
        if not feasible:
            return Placement(demand.pod.key, None, refusals=refusals)
        scores = self._scores(state, demand, asked, feasible, solutions) if len(feasible) > 1 else ()
        tied = best(scores) if scores else (feasible[0].name,)
        if cannot_be_bound(demand.extended, demand.claims, state.nodes[tied[0]].allocatable):
            return Placement(demand.pod.key, None, problem=NOT_BOUND.format(demand.pod.key))
        outcomes = self._outcomes(state, asked, solutions, tied[0])
        return Placement(demand.pod.key, tied[0], tied, scores, refusals, outcomes=outcomes)

    def fits(self, state: ClusterState, demand: PodDemand, nodes: Iterable[str]) -> dict[str, tuple[Outcome, ...]]:
        """Return the nodes, of these, that the pod fits on, with what its claims get there."""
        if obstacle(demand, state):
            return {}
        try:
            asked = self._asked(state, demand)
            _, solutions = self._look(state, asked, [state.nodes[name] for name in nodes])
        except AllocationError:
            return {}
        return {name: self._outcomes(state, asked, solutions, name) for name in solutions}

    def suits(self, state: ClusterState, demand: PodDemand, node: str) -> bool:
        """Return whether the pod fits on the node."""
        if obstacle(demand, state):
            return False
        try:
            return bool(self._look(state, self._asked(state, demand), [state.nodes[node]])[1])
        except AllocationError:
            return False

    def alone(self, state: ClusterState, demand: PodDemand, node: str) -> ClusterState:
        """Return what decides whether the pod fits on the node, if no other node has a part in it."""
        pools = [pool.id for pool in self._devices.view(state.nodes[node].node).pools]
        return state.alone(node, pools, demand.entries.values())

    def bind(self, state: ClusterState, demand: PodDemand, node: str, outcomes: Sequence[Outcome]) -> ClusterState:
        """Return the state with the pod on the node."""
        allocated = [(each.claim, each.allocation) for each in outcomes if each.allocation is not None]
        special = [claim for claim, _ in allocated if ClaimKey.of(claim) not in demand.entries.values()]
        for claim in special:
            demand = demand.with_special(claim)
        if self._mappings:
            given = {ClaimKey.of(claim): allocation for claim, allocation in allocated}
            mine = {key: state.allocations[key] for key in map(ClaimKey.of, demand.claims) if key in state.allocations}
            statuses = claim_statuses(demand, {**mine, **given}, self._devices.view(state.nodes[node].node).pools)
            demand = replace(demand, info=PodInfo.of(demand.pod, self._minor, statuses))
        return state.with_pod(demand, node, allocated)

    def far_reaching(self, state: ClusterState, demand: PodDemand) -> bool:
        """Return whether what happens on other nodes can change where the pod fits."""
        try:
            asked = self._asked(state, demand)
        except AllocationError:
            return False
        # A pod that wants to be far from its like reaches as far as one that is there.
        terms = demand.info.terms
        pools = asked.devices.any and any(self._devices.view(info.node).shared for info in state.nodes.values())
        return asked.filters.far_reaching or bool(terms.affinity or terms.anti_affinity) or pools

    def sharers(self, state: ClusterState, demand: PodDemand, node: str) -> Iterator[str]:
        """Yield the pods on other nodes that hold devices of pools which the node shares, if the pod wants devices."""
        pools = self._devices.view(state.nodes[node].node).shared
        if not (demand.claims or demand.extended) or not pools:
            return
        claims = {holding.claim for pool in pools for holding in state.holdings.pools.get(pool, ())}
        for key, other in state.demands.items():
            if claims & set(other.entries.values()):
                yield key

    def devices_of(self, state: ClusterState, node: str) -> frozenset[tuple[PoolID, str]]:
        """Return the devices that a node sees, by pool and name."""
        pools = self._devices.view(state.nodes[node].node).pools
        return frozenset((pool.id, candidate.device.name) for pool in pools for candidate in pool.candidates)

    def miss(self, state: ClusterState, demand: PodDemand, node: str) -> Miss | None:
        """Return why the pod's claims do not fit on the node; None if they do, or if there is nothing to allocate."""
        try:
            devices = self._asked(state, demand).devices.on(state.nodes[node])
        except AllocationError:
            return None
        if devices is None:
            return None
        return self._devices.miss(state.nodes[node].node, devices, state.holdings)

    def _asked(self, state: ClusterState, demand: PodDemand) -> _Asked:
        unallocated = [claim for claim in demand.claims if ClaimKey.of(claim) not in state.allocations]
        keys = map(ClaimKey.of, demand.claims)
        fixed = {key: state.allocations[key] for key in keys if key in state.allocations}
        used = frozenset(key for key in fixed if self._mappings and (key in state.reserved or state.users(key)))
        devices = DevicesOn(self._devices, demand, unallocated)
        filters = Filters(demand.info, state.snapshot, self._minor, frozenset(demand.extended))
        return _Asked(demand, filters, devices, fixed, used)

    def _look(
        self, state: ClusterState, asked: _Asked, nodes: Iterable[NodeInfo]
    ) -> tuple[dict[str, Refusal], dict[str, Solution | None]]:
        """The nodes that refuse the pod, and the others with the devices for it."""
        refusals: dict[str, Refusal] = {}
        solutions: dict[str, Solution | None] = {}
        for info in nodes:
            refusal = asked.filters.refusal(info)
            if refusal is None:
                solution = self._solution(state, asked, info)
                refusal = solution if isinstance(solution, Refusal) else asked.filters.late_refusal(info)
            if refusal is not None:
                refusals[info.name] = refusal
            elif not isinstance(solution, Refusal):
                solutions[info.name] = solution
        return refusals, solutions

    def _solution(self, state: ClusterState, asked: _Asked, info: NodeInfo) -> Solution | Refusal | None:
        """The devices for the pod's claims; kube-scheduler looks for those before it minds where the others are."""
        here = {
            key: each
            for key, each in asked.fixed.items()
            if each.node_selector is None or selects(each.node_selector, info.node)
        }
        refusal = self._shared(asked, here, info)
        if refusal is not None:
            return refusal
        found: Solution | None = None
        devices = asked.devices.on(info)
        if devices is not None:
            solution = self._devices.solution(info.node, devices, state.holdings)
            if isinstance(solution, AllocationError):
                if solution.scope == "fatal":
                    raise solution
                return Refusal(DEVICES, (str(solution),), hopeless=False)
            if solution.picks is None:
                return Refusal(DEVICES, (CANNOT_ALLOCATE,), hopeless=False)
            found = solution
        refusal = self._overbooked(asked, found, info)
        if refusal is not None:
            return refusal
        if len(here) < len(asked.fixed):
            return Refusal(DEVICES, (NOT_AVAILABLE,), hopeless=False)
        return found

    def _shared(self, asked: _Asked, here: Mapping[ClaimKey, AllocationResult], info: NodeInfo) -> Refusal | None:
        """Refuse a node where the pod would share a claim that stands for something of the node."""
        for key in here.keys() & asked.used:
            statuses = claim_statuses(asked.demand, {key: here[key]}, self._devices.view(info.node).pools)
            if any(status.mapping for status in statuses):
                return Refusal(DEVICES, (SHARED_MAPPING.format(key.name),))
        return None

    def _overbooked(self, asked: _Asked, solution: Solution | None, info: NodeInfo) -> Refusal | None:
        """Refuse a node that has too little for the pod and for what its devices stand for (KEP-5517)."""
        pools = self._devices.view(info.node).pools
        if not self._mappings or not asked.demand.claims or not has_mappings(pools):
            return None
        allocations = dict(asked.fixed)
        devices = asked.devices.on(info)
        if devices is not None and solution is not None:
            for outcome in self._devices.outcomes(info.node, devices, solution):
                if outcome.allocation is not None:
                    allocations[ClaimKey.of(outcome.claim)] = outcome.allocation
        statuses = claim_statuses(asked.demand, allocations, pools)
        return refusal_for(asked.demand, info, statuses, self._minor) if statuses else None

    def _scores(
        self,
        state: ClusterState,
        demand: PodDemand,
        asked: _Asked,
        feasible: Sequence[NodeInfo],
        solutions: Mapping[str, Solution | None],
    ) -> tuple[NodeTotal, ...]:
        raws: dict[str, int] = {}
        if asked.devices.any:
            keys = [(claim, ClaimKey.of(claim)) for claim in demand.claims]
            before = sum(score_before(claim, state.allocations[key]) for claim, key in keys if key in state.allocations)
            for name, solution in solutions.items():
                devices = asked.devices.on(state.nodes[name])
                raws[name] = before
                if devices is not None and solution is not None:
                    raws[name] += self._devices.raw_score(devices, solution)
        return totals(demand.info, state.snapshot, feasible, raws, self._minor)

    def _outcomes(
        self, state: ClusterState, asked: _Asked, solutions: Mapping[str, Solution | None], node: str
    ) -> tuple[Outcome, ...]:
        solution = solutions[node]
        devices = asked.devices.on(state.nodes[node])
        if devices is None or solution is None:
            return ()
        return self._devices.outcomes(state.nodes[node].node, devices, solution)


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
        return f"pod {pod.key} waits until ResourceClaim {demand.left_over} of an attempt before is deleted"
    for claim in demand.claims:
        key = ClaimKey.of(claim)
        if key in demand.shared:
            continue  # the group uses it, however many pods it has
        if key in state.allocations and len(state.users(key)) >= _MOST_USERS:
            return f"resourceclaim in use: {key} has {_MOST_USERS} pods already, which is the most"
    return ""


def _bound(demand: PodDemand, state: ClusterState) -> str:
    """A pod that names its node passes the scheduler by, which alone allocates claims."""
    name = demand.pod.spec.node_name
    waiting = [str(ClaimKey.of(claim)) for claim in demand.claims if ClaimKey.of(claim) not in state.allocations]
    if waiting:
        return passed_by(demand.pod.key, name, waiting)
    return f"pod {demand.pod.key} is bound to {name} already"
