"""Places a pod as kube-scheduler would, with its filters, its scores and the devices of the claims.

Source: kube-scheduler 1.36.4 and 1.37.1. Reasons to refuse the pod for all nodes come first: PreFilter of NodeAffinity,
then of DynamicResources.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, TypeVar

import msgspec

from dranode.api.documents import encode_json
from dranode.api.errors import UsageError
from dranode.api.resource import PoolID, ResourceClaim
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Pool
from dranode.sim.allocator.requests import AllocationError, DeviceDemand, Outcome
from dranode.sim.allocator.result import Solution
from dranode.sim.allocator.state import PoolState
from dranode.sim.cluster.devices import DeviceAnswers
from dranode.sim.cluster.extended import NOT_BOUND, cannot_be_bound
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.choice import Placement, PodChoice, RefusalCase, choice_of, no_choice, obstacle
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.node_allocatable import MAPPINGS_SINCE, claim_statuses
from dranode.sim.fit.node_check import NodeCheck
from dranode.sim.fit.node_table import NodeRanking, NodeTable, RefusedNodes
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.filters import CONTRADICTION, Refusal
from dranode.sim.scheduler.node_rules import named_nodes
from dranode.sim.scheduler.scores import DEVICES, best, totals
from dranode.sim.scheduler.snapshot import PodInfo
from dranode.sim.scheduler.spread import SpreadConstraint, SpreadTally, preferred_spread, requires_spread


def _problems(claim: ResourceClaim, classes: Collection[str], features: Features) -> Iterator[str]:
    for request in claim.spec.devices.requests:
        if request.first_available and not features.prioritized_list:
            where = f"resource claim {ClaimKey.of(claim)}, request {request.name}"
            yield f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled"
        for name, option in request.options.items():
            if option.device_class_name not in classes:
                yield f"request {name}: device class {option.device_class_name} does not exist"


T = TypeVar("T")

# All rankings together keep at most so many nodes, some hundreds of MiB; the least recently used ranking is dropped.
_MOST_NODES: Final = 500_000
_LEAST_CLASSES: Final = 16


class NodeRankings:
    """The rankings of nodes for the classes of pods that were placed lately."""

    def __init__(self, devices: DeviceAnswers, minor: int) -> None:
        """Start without a ranking."""
        self._devices = devices
        self._minor = minor
        self._tables: OrderedDict[Hashable, NodeTable] = OrderedDict()
        self._rankings: OrderedDict[Hashable, tuple[NodeTable, NodeRanking]] = OrderedDict()

    def choice(self, state: ClusterState, demand: PodDemand) -> PodChoice | None:
        """Choose a node; None if a ranking cannot answer for this pod.

        Raises:
            AllocationError: a claim cannot be allocated anywhere.
            DocumentError: a selector of the pod is invalid.
        """
        if _is_tied_to_others(state, demand):
            return None
        table, ranking = self._ranking(state, demand)
        if not ranking.follow(state):
            return None
        best = ranking.best()
        if best is None:
            cases = (self._case(state, table, nodes) for nodes in ranking.refused())
            return no_choice(demand.pod.key, "", cases, len(state.nodes))
        return PodChoice(
            demand.pod.key, best.first[0], best, outcomes=self._outcomes(state, demand, table, best.first[0])
        )

    def _ranking(self, state: ClusterState, demand: PodDemand) -> tuple[NodeTable, NodeRanking]:
        devices = self._devices.demand(demand.claims) if demand.claims else None
        constraints, sets_constraints = preferred_spread(demand.pod, state.snapshot, self._minor)
        kind = _kind(demand.info, devices)
        key = (
            kind,
            _spread(demand.info, constraints, sets_constraints=sets_constraints),
            _relations(state, demand.info),
        )
        most = max(_LEAST_CLASSES, _MOST_NODES // max(len(state.nodes), 1))
        known = self._rankings.get(key)
        if known is None:
            table = self._tables.get(kind)
            if table is None:
                table = NodeTable(demand.pod, devices, self._devices, self._minor)
                _keep(self._tables, kind, table, most)
            tally = SpreadTally(demand.pod, constraints, own=sets_constraints) if constraints else None
            known = (table, NodeRanking(demand.info, table, tally, self._devices))
        _keep(self._rankings, key, known, most)
        return known

    def _case(self, state: ClusterState, table: NodeTable, nodes: RefusedNodes) -> RefusalCase:
        if nodes.refused.devices is None or table.demand is None:
            return RefusalCase(nodes.refused.refusal, None, nodes.first, nodes.size)
        asked = (state.nodes[nodes.first].node, table.demand, state.holdings)
        miss, oddities = self._devices.miss(*asked), self._devices.oddities(*asked)
        return RefusalCase(nodes.refused.refusal, miss, nodes.first, nodes.size, oddities)

    def _outcomes(self, state: ClusterState, demand: PodDemand, table: NodeTable, name: str) -> tuple[Outcome, ...]:
        if table.demand is None:
            return ()
        node = state.nodes[name].node
        solution = self._devices.solution(node, table.demand, state.holdings)
        if not isinstance(solution, Solution):
            return ()
        return self._devices.outcomes(node, DeviceDemand(demand.claims, table.demand.requests), solution)


def _is_tied_to_others(state: ClusterState, demand: PodDemand) -> bool:
    """Return whether a ranking cannot answer for the pod.

    That is so with affinity to other pods, required spread, allocated claims, and extended resources.
    """
    return bool(
        not demand.info.terms.none
        or demand.extended
        or requires_spread(demand.pod)
        or any(ClaimKey.of(claim) in state.allocations for claim in demand.claims)
    )


def _kind(info: PodInfo, devices: DeviceDemand | None) -> Hashable:
    """Return a value that is equal for pods of one kind: everything in the pod that a single node is checked for."""
    spec = msgspec.structs.replace(
        info.pod.spec,
        node_name="",
        containers=tuple(msgspec.structs.replace(container, image="") for container in info.pod.spec.containers),
        init_containers=tuple(
            msgspec.structs.replace(container, image="") for container in info.pod.spec.init_containers
        ),
        resource_claims=(),
        volumes=(),
        priority=None,
        priority_class_name="",
        topology_spread_constraints=(),
    )
    return encode_json(spec), tuple(info.requests.items()), devices.key if devices is not None else None


def _spread(info: PodInfo, constraints: tuple[SpreadConstraint, ...], *, sets_constraints: bool) -> Hashable:
    """Return a value that is equal for pods that are spread in the same way."""
    if not constraints:
        return None
    return info.pod.metadata.namespace, sets_constraints, tuple(constraint.key for constraint in constraints)


def _relations(state: ClusterState, info: PodInfo) -> Hashable:
    """Return what affinity terms of other pods match: namespace and labels; None if no pod has such terms."""
    if not state.snapshot.with_terms:
        return None
    metadata = info.pod.metadata
    return metadata.namespace, tuple(sorted(metadata.labels.items()))


def _keep(cache: OrderedDict[Hashable, T], key: Hashable, value: T, most: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)


class Scheduler:
    """Answers as kube-scheduler would for states of one cluster. It caches results, but has no other state."""

    def __init__(self, allocator: Allocator) -> None:
        """Answer as the allocator's release does."""
        self._minor = allocator.features.release.number[0]
        self._mappings = allocator.features.node_allocatable_resources
        if self._mappings and self._minor < MAPPINGS_SINCE:
            raise UsageError(
                f"DRANodeAllocatableResources can be simulated from 1.{MAPPINGS_SINCE}; older releases use other fields"
            )
        self._allocator = allocator
        self._devices = DeviceAnswers(allocator)
        self._rankings = NodeRankings(self._devices, self._minor)

    def choose(self, state: ClusterState, demand: PodDemand) -> PodChoice:
        """Choose a node for a pod: the same as `place`, but much faster if many pods are alike."""
        problem = obstacle(demand, state)
        if problem:
            return no_choice(demand.pod.key, problem, (), len(state.nodes))
        refused = self._refused_everywhere(state, demand)
        if refused:
            return no_choice(demand.pod.key, refused, (), len(state.nodes), everywhere=True)
        choice = None
        if not self._mappings:
            try:
                choice = self._rankings.choice(state, demand)
            except AllocationError as error:
                return replace(no_choice(demand.pod.key, str(error), (), len(state.nodes)), error=error)
        if choice is None:
            placement = self.place(state, demand)
            cases = self.cases(state, demand, placement.refusals)
            choice = choice_of(placement, cases, len(state.nodes))
        return choice

    def cases(self, state: ClusterState, demand: PodDemand, refusals: Mapping[str, Refusal]) -> Iterator[RefusalCase]:
        """Yield the nodes that refuse a pod, with the missing devices where DynamicResources refuses it."""
        check: NodeCheck | None = None
        for name, refusal in refusals.items():
            if refusal.plugin == DEVICES and not refusal.shortages:
                check = check or self._check(state, demand)
                yield self._case(state, check, refusal, name)
            else:
                yield RefusalCase(refusal, None, name)

    def place(self, state: ClusterState, demand: PodDemand) -> Placement:
        """Evaluate every node for a pod and choose one."""
        problem = obstacle(demand, state)
        if problem:
            return Placement(demand.pod.key, None, problem=problem)
        refused = self._refused_everywhere(state, demand)
        if refused:
            return Placement(demand.pod.key, None, problem=refused, everywhere=True)
        try:
            check = self._check(state, demand)
            refusals, solutions = check.at(state.nodes.values())
        except AllocationError as error:
            return Placement(demand.pod.key, None, problem=str(error), error=error)
        feasible = [state.nodes[name] for name in solutions]
        if not feasible:
            return Placement(demand.pod.key, None, refusals=refusals)
        devices = check.raw_scores(solutions)
        scores = totals(demand.info, state.snapshot, feasible, devices, self._minor) if len(feasible) > 1 else ()
        tied = best(scores) if scores else (feasible[0].name,)
        # If binding fails, kube-scheduler schedules the pod again and may draw another node, so one that works is
        # enough.
        node = next((name for name in tied if self._can_be_bound(state, demand, name)), None)
        if node is None:
            return Placement(demand.pod.key, None, tied, scores, problem=NOT_BOUND.format(demand.pod.key))
        outcomes = check.outcomes(solutions[node], node)
        return Placement(demand.pod.key, node, tied, scores, refusals, outcomes=outcomes, devices=devices)

    def fits(self, state: ClusterState, demand: PodDemand, nodes: Iterable[str]) -> dict[str, tuple[Outcome, ...]]:
        """Return the devices for the pod's claims on each of these nodes that fits."""
        if obstacle(demand, state):
            return {}
        try:
            check = self._check(state, demand)
            _, solutions = check.at([state.nodes[name] for name in nodes])
        except AllocationError:
            return {}
        return {name: check.outcomes(solution, name) for name, solution in solutions.items()}

    def suits(self, state: ClusterState, demand: PodDemand, node: str) -> bool:
        """Return whether the pod fits on the node."""
        if obstacle(demand, state):
            return False
        try:
            return bool(self._check(state, demand).at([state.nodes[node]])[1])
        except AllocationError:
            return False

    def alone(self, state: ClusterState, demand: PodDemand, node: str) -> ClusterState:
        """Return the state of one node, which is enough to fit the pod there unless `far_reaching`."""
        pools = [pool.id for pool in self._devices.view(state.nodes[node].node).pools]
        return state.alone(node, pools, demand.entries.values())

    def bind(self, state: ClusterState, demand: PodDemand, node: str, outcomes: Sequence[Outcome]) -> ClusterState:
        """Return the state with the pod on the node."""
        allocated = [(outcome.claim, outcome.allocation) for outcome in outcomes if outcome.allocation is not None]
        special = [claim for claim, _ in allocated if ClaimKey.of(claim) not in demand.entries.values()]
        for claim in special:
            demand = demand.with_special(claim)
        if self._mappings:
            keys = map(ClaimKey.of, demand.claims)
            allocations = {key: state.allocations[key] for key in keys if key in state.allocations}
            allocations |= {ClaimKey.of(claim): allocation for claim, allocation in allocated}
            statuses = claim_statuses(demand, allocations, self._devices.view(state.nodes[node].node).pools)
            demand = replace(demand, info=PodInfo.of(demand.pod, self._minor, statuses))
        return state.with_pod(demand, node, allocated)

    def far_reaching(self, state: ClusterState, demand: PodDemand) -> bool:
        """Return whether pods and devices of other nodes can change whether the pod fits on a node."""
        try:
            check = self._check(state, demand)
        except AllocationError:
            return False
        # A pod with affinity or anti-affinity matters for other nodes once it is placed, even if no bound pod has any.
        terms = demand.info.terms
        pools = check.wants_devices and any(self._devices.view(info.node).shared for info in state.nodes.values())
        return check.filters.far_reaching or bool(terms.affinity or terms.anti_affinity) or pools

    def sharers(self, state: ClusterState, demand: PodDemand, node: str) -> Iterator[str]:
        """Yield the pods with devices of pools that the node shares with others, if the pod needs devices."""
        pools = self._devices.view(state.nodes[node].node).shared
        if not (demand.claims or demand.extended) or not pools:
            return
        claims = {holding.claim for pool in pools for holding in state.holdings.pools.get(pool, ())}
        for key, holder in state.demands.items():
            if claims & set(holder.entries.values()):
                yield key

    def devices_of(self, state: ClusterState, node: str) -> frozenset[tuple[PoolID, str]]:
        """Return the devices that a node can use, by pool and name."""
        pools = self._devices.view(state.nodes[node].node).pools
        return frozenset((pool.id, candidate.device.name) for pool in pools for candidate in pool.candidates)

    def pools(self, state: ClusterState, node: str) -> tuple[tuple[Pool, PoolState], ...]:
        """Return the pools that a node can use, with their allocated devices."""
        pools = self._devices.view(state.nodes[node].node).pools
        held = state.holdings.only(pool.id for pool in pools).allocated()
        allocated = self._allocator.counted(held)
        return tuple((pool, allocated.pool(pool.id)) for pool in pools)

    def devices_left(self, state: ClusterState, node: str) -> Hashable:
        """Return a value that is equal for nodes with the same devices of which the same are free."""
        info = state.nodes[node]
        return self._devices.view(info.node).kind, self._devices.states(info.node, state.holdings)

    def useful_drivers(self, state: ClusterState, node: str, claim: ResourceClaim) -> frozenset[str]:
        """Return the drivers whose devices a claim would get on a node; empty if it does not fit there."""
        try:
            solution = self._devices.solution(state.nodes[node].node, self._devices.demand((claim,)), state.holdings)
        except AllocationError:
            return frozenset()
        picks = solution.picks if isinstance(solution, Solution) else None
        return frozenset(pick.candidate.pool.driver for picked in picks or () for pick in picked)

    def _can_be_bound(self, state: ClusterState, demand: PodDemand, node: str) -> bool:
        return not cannot_be_bound(demand.extended, demand.claims, state.nodes[node].allocatable)

    def _refused_everywhere(self, state: ClusterState, demand: PodDemand) -> str:
        """Return why a plug-in refuses the pod for all nodes, in kube-scheduler's words; empty if none does."""
        named = named_nodes(demand.pod)
        if named is not None and not named:
            return CONTRADICTION
        unallocated = (claim for claim in demand.claims if ClaimKey.of(claim) not in state.allocations)
        problems = (_problems(claim, self._allocator.classes, self._allocator.features) for claim in unallocated)
        return next(chain.from_iterable(problems), "")

    def _check(self, state: ClusterState, demand: PodDemand) -> NodeCheck:
        return NodeCheck(self._devices, state, demand, self._minor, mappings=self._mappings)

    def _case(self, state: ClusterState, check: NodeCheck, refusal: Refusal, node: str) -> RefusalCase:
        """Return the refusal with the missing devices, if the pod has claims to allocate."""
        devices = check.device_demand(state.nodes[node])
        if devices is None:
            return RefusalCase(refusal, None, node)
        asked = (state.nodes[node].node, devices, state.holdings)
        return RefusalCase(refusal, self._devices.miss(*asked), node, oddities=self._devices.oddities(*asked))
