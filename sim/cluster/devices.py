"""Finds the devices that claims would get on the nodes of a cluster, once for all nodes with equal pools.

Nodes are scored by the alternatives of prioritized lists that they can serve (KEP-4816).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dranode.api.documents import encode_json
from dranode.api.resource import AllocationResult, Node, PoolID, ResourceClaim
from dranode.driver.claims.grant import readable_results
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.explain import Miss
from dranode.sim.allocator.pools import Candidate, Pool, PoolIndex
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, AllocationRequest, DeviceDemand, Outcome
from dranode.sim.allocator.result import Oddity, Solution, active_alternatives
from dranode.sim.allocator.state import PoolState
from dranode.sim.cluster.holdings import Holdings


@dataclass(frozen=True, slots=True)
class View:
    """A node with the pools that it can use.

    Attributes:
        node: the node.
        pools: the pools.
        candidates: the devices of valid pools; they have the same numbers on all nodes of one kind.
        local: the pools that no other node can use.
        shared: the other pools.
        kind: a number that is equal for nodes that differ only in their names.
    """

    node: Node
    pools: tuple[Pool, ...]
    candidates: tuple[Candidate, ...]
    local: tuple[PoolID, ...]
    shared: tuple[PoolID, ...]
    kind: int


class NodeViews:
    """Creates the views of nodes and numbers their kinds."""

    def __init__(self, inventory: PoolIndex) -> None:
        """Start without kinds."""
        self._inventory = inventory
        self._kinds: dict[object, int] = {}

    def view(self, node: Node) -> View:
        """Return the view of the node."""
        pools = self._inventory.pools(node)
        name = node.metadata.name
        local = tuple(pool.id for pool in pools if _is_local(pool, name))
        shared = tuple(pool.id for pool in pools if not _is_local(pool, name))
        names = {pool_name: index for index, pool_name in enumerate(dict.fromkeys(pool.id.pool for pool in pools))}
        key = tuple(_local_key(pool, names) if pool.id in local else _shared_key(pool) for pool in pools)
        kind = self._kinds.setdefault(key, len(self._kinds))
        candidates = tuple(candidate for pool in pools if pool.usable for candidate in pool.candidates)
        return View(node, pools, candidates, local, shared, kind)


def _is_local(pool: Pool, node: str) -> bool:
    return not pool.elsewhere and all(candidate.slice.node_name == node for candidate in pool.candidates)


def _local_key(pool: Pool, names: Mapping[str, int]) -> object:
    counters = tuple(encode_json(counter_set) for counter_set in pool.counters.values())
    devices = tuple(
        (candidate.device.name, candidate.content.number, candidate.servable, candidate.slice.skip_node_operations)
        for candidate in pool.candidates
    )
    return pool.id.driver, names[pool.id.pool], pool.incomplete, pool.invalid, devices, counters


def _shared_key(pool: Pool) -> object:
    return (
        pool.id,
        pool.incomplete,
        pool.invalid,
        tuple((id(candidate.device), candidate.servable) for candidate in pool.candidates if candidate.reachable),
    )


# KEP-4816: the first of at most 8 alternatives counts 8, the last 1.
_FIRST_ALTERNATIVE: Final = 8


def score_before(claim: ResourceClaim, allocation: AllocationResult) -> int:
    """Return what an allocated claim adds to each node's raw score: for each prioritized list, 8 minus the index."""
    requests = {result.request for result in readable_results(allocation)}
    return sum(
        _FIRST_ALTERNATIVE - index
        for request in claim.spec.devices.requests
        for index, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in requests
    )


def moved(solution: Solution, view: View) -> Solution:
    """Return the same solution for a node of the same kind."""
    if solution.picks is None:
        return solution
    picks = tuple(
        tuple(replace(pick, candidate=view.candidates[pick.number]) for pick in picked) for picked in solution.picks
    )
    return replace(solution, picks=picks)


def raw_score(requests: Sequence[tuple[AllocationRequest, ...]], solution: Solution) -> int:
    """Return the raw score of a solution: for each prioritized list, 8 minus the index of the chosen alternative."""
    score = 0
    for requested, picks in zip(requests, solution.picks or (), strict=True):
        names = {alternative.name for alternative in active_alternatives(requested, picks)}
        for request in requested:
            if request.listed:
                index = next(
                    index for index, alternative_ in enumerate(request.alternatives) if alternative_.name in names
                )
                score += _FIRST_ALTERNATIVE - index
    return score


# The kind of a node, the states of its pools, and the claims.
DeviceQuestion: TypeAlias = tuple[int, tuple[PoolState, ...], bytes]


class DeviceAnswers:
    """Answers for nodes, which depend on their pools and the allocated devices. It caches results only."""

    def __init__(self, allocator: Allocator) -> None:
        """Start without answers."""
        self._allocator = allocator
        self._makes = NodeViews(allocator.inventory)
        self._views: dict[str, View] = {}
        self._pools: dict[str, tuple[PoolID, ...]] = {}
        self._nodes_with: dict[PoolID, list[str]] = defaultdict(list)
        self._solutions: dict[DeviceQuestion, Solution | AllocationError] = {}
        self._misses: dict[DeviceQuestion, Miss] = {}
        self._raws: dict[int, int] = {}  # by the identity of a solution, which `_solutions` keeps

    def demand(self, claims: Sequence[ResourceClaim]) -> DeviceDemand:
        """Return the demand of the claims.

        Raises:
            AllocationError: a claim cannot be allocated anywhere.
        """
        return self._allocator.demand(claims)

    def view(self, node: Node) -> View:
        """Return the view of the node, which is identified by its name."""
        view = self._views.get(node.metadata.name)
        if view is None:
            view = self._views[node.metadata.name] = self._makes.view(node)
            for pool in view.pools:
                self._nodes_with[pool.id].append(node.metadata.name)
        return view

    def solution(
        self, node: Node, demand: DeviceDemand, holdings: Holdings, question: DeviceQuestion | None = None
    ) -> Solution | AllocationError:
        """Return the devices for the claims on the node, or the error that ends the attempt there.

        An AllocationError is returned, not raised; one with the scope `fatal` ends the attempt for the pod. `question`
        is the question of these arguments, if it is known already.
        """
        question = question or self.question(node, demand, holdings)
        result = self._solutions.get(question)
        if result is None:
            try:
                result = self._allocator.search(demand, self.view(node).pools, holdings.allocated())
            except AllocationError as error:
                if error.scope == "fatal":
                    return error  # its text names the claim
                result = error
            self._solutions[question] = result
        return result

    def raw_score(self, demand: DeviceDemand, solution: Solution) -> int:
        """Return the raw KEP-4816 score; 0 in releases that do not score nodes by their devices."""
        if not self._allocator.features.has(Change.ALTERNATIVES_SCORED):
            return 0
        raw = self._raws.get(id(solution))
        if raw is None:
            raw = self._raws[id(solution)] = raw_score(demand.requests, solution)
        return raw

    def outcomes(self, node: Node, demand: DeviceDemand, solution: Solution) -> tuple[Outcome, ...]:
        """Return the outcome of each claim on the node."""
        return self._allocator.outcomes(demand, moved(solution, self.view(node)), node.metadata.name)

    def miss(self, node: Node, demand: DeviceDemand, holdings: Holdings) -> Miss:
        """Return why the claims do not fit on the node."""
        question = self.question(node, demand, holdings)
        if question not in self._misses:
            pools = self.view(node).pools
            self._misses[question] = self._allocator.nearest_miss(demand, pools, holdings.allocated())
        return self._misses[question]

    def oddities(self, node: Node, demand: DeviceDemand, holdings: Holdings) -> frozenset[Oddity]:
        """Return surprising behavior of kube-scheduler that contributed to the claims not fitting on the node."""
        solution = self.solution(node, demand, holdings)
        return solution.oddities if isinstance(solution, Solution) else frozenset()

    def question(self, node: Node, demand: DeviceDemand, holdings: Holdings) -> DeviceQuestion:
        """Return everything that the answers depend on."""
        return self.question_of(node, demand, self.states(node, holdings))

    def question_of(self, node: Node, demand: DeviceDemand, states: tuple[PoolState, ...]) -> DeviceQuestion:
        """Return the question for the allocated `states` of the node's pools."""
        return self.view(node).kind, states, demand.key

    def states(self, node: Node, holdings: Holdings) -> tuple[PoolState, ...]:
        """Return the allocated parts of the node's pools."""
        pools = self._pools.get(node.metadata.name)
        if pools is None:
            pools = self._pools[node.metadata.name] = tuple(pool.id for pool in self.view(node).pools)
        return holdings.states_of(pools)

    def nodes_with(self, pool: PoolID) -> Collection[str]:
        """Return the nodes with a pool, among those that were viewed."""
        return self._nodes_with.get(pool, ())
