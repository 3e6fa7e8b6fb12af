"""Finds the devices that claims would get on a node of a cluster, once for all nodes that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dranode.api.documents import encode_json
from dranode.api.resource import Node, ResourceClaim
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.explain import Miss
from dranode.sim.allocator.outcome import AllocationError, Outcome
from dranode.sim.allocator.picks import Oddity, Solution
from dranode.sim.allocator.requests import AllocationRequest
from dranode.sim.allocator.state import PoolID, PoolState
from dranode.sim.cluster.holdings import Holdings
from dranode.sim.cluster.solutions import moved, raw_score
from dranode.sim.cluster.views import NodeViews, View

# The kind of a node, the states of the pools that it sees, and the claims.
DeviceQuestion: TypeAlias = tuple[int, tuple[PoolState, ...], bytes]


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """Claims to allocate together.

    Attributes:
        claims: the claims.
        requests: for each claim, its requests as the allocator reads them.
        key: equal for claims that ask for the same.
    """

    claims: tuple[ResourceClaim, ...]
    requests: tuple[tuple[AllocationRequest, ...], ...]
    key: bytes


class DeviceAnswers:
    """Answers for nodes by what they see and what is held; it keeps only what it need not find out twice."""

    def __init__(self, allocator: Allocator) -> None:
        """Start without answers."""
        self._allocator = allocator
        self._makes = NodeViews(allocator.inventory)
        self._views: dict[str, View] = {}
        self._pools: dict[str, tuple[PoolID, ...]] = {}
        self._seers: dict[PoolID, list[str]] = defaultdict(list)
        self._solutions: dict[DeviceQuestion, Solution | AllocationError] = {}
        self._misses: dict[DeviceQuestion, Miss] = {}
        self._raws: dict[int, int] = {}  # by the identity of a solution, which `_solutions` keeps

    def demand(self, claims: Sequence[ResourceClaim]) -> DeviceDemand:
        """Return what the claims ask for.

        Raises:
            AllocationError: a claim cannot be allocated anywhere.
        """
        key = b"\n".join(encode_json(claim.spec) for claim in claims)
        return DeviceDemand(tuple(claims), self._allocator.requests(claims), key)

    def view(self, node: Node) -> View:
        """Return what the node sees; nodes of one name are one."""
        view = self._views.get(node.metadata.name)
        if view is None:
            view = self._views[node.metadata.name] = self._makes.view(node)
            for pool in view.pools:
                self._seers[pool.id].append(node.metadata.name)
        return view

    def solution(self, node: Node, demand: DeviceDemand, holdings: Holdings) -> Solution | AllocationError:
        """Return the devices for the claims on the node, or that there are none, or why the attempt ends there.

        An AllocationError is returned, not raised: one of scope `fatal` ends the attempt for the pod.
        """
        return self.answer(self.question(node, demand, holdings), node, demand, holdings)

    def answer(
        self, question: DeviceQuestion, node: Node, demand: DeviceDemand, holdings: Holdings
    ) -> Solution | AllocationError:
        """Return the solution where the question is known."""
        known = self._solutions.get(question)
        if known is None:
            try:
                known = self._allocator.search(
                    demand.claims, demand.requests, self.view(node).pools, holdings.allocated()
                )
            except AllocationError as error:
                if error.scope == "fatal":
                    return error  # its text names the claim
                known = error
            self._solutions[question] = known
        return known

    def raw_score(self, demand: DeviceDemand, solution: Solution) -> int:
        """Return the raw score of KEP-4816."""
        raw = self._raws.get(id(solution))
        if raw is None:
            raw = self._raws[id(solution)] = raw_score(demand.requests, solution)
        return raw

    def outcomes(self, node: Node, demand: DeviceDemand, solution: Solution) -> tuple[Outcome, ...]:
        """Return what each claim gets on the node."""
        return self._allocator.outcomes(
            demand.claims, demand.requests, moved(solution, self.view(node)), node.metadata.name
        )

    def miss(self, node: Node, demand: DeviceDemand, holdings: Holdings) -> Miss:
        """Return why the claims do not fit on the node."""
        question = self.question(node, demand, holdings)
        if question not in self._misses:
            self._misses[question] = self._allocator.nearest_miss(
                demand.claims, demand.requests, self.view(node).pools, holdings.allocated()
            )
        return self._misses[question]

    def oddities(self, node: Node, demand: DeviceDemand, holdings: Holdings) -> frozenset[Oddity]:
        """Return what is odd about the claims not fitting on the node, though kube-scheduler has it so."""
        solution = self.solution(node, demand, holdings)
        return solution.oddities if isinstance(solution, Solution) else frozenset()

    def question(self, node: Node, demand: DeviceDemand, holdings: Holdings) -> DeviceQuestion:
        """Return what the answers depend on."""
        return self.question_of(node, demand, self.states(node, holdings))

    def question_of(self, node: Node, demand: DeviceDemand, states: tuple[PoolState, ...]) -> DeviceQuestion:
        """Return the question where `states` is what is allocated of the pools that the node sees."""
        return self.view(node).kind, states, demand.key

    def states(self, node: Node, holdings: Holdings) -> tuple[PoolState, ...]:
        """Return what is allocated of the pools that the node sees."""
        pools = self._pools.get(node.metadata.name)
        if pools is None:
            pools = self._pools[node.metadata.name] = tuple(pool.id for pool in self.view(node).pools)
        return holdings.states_of(pools)

    def seers(self, pool: PoolID) -> Collection[str]:
        """Return the nodes that see a pool, of those that were looked at."""
        return self._seers.get(pool, ())
