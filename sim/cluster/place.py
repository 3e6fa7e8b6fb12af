"""Many nodes: where kube-scheduler would put pods with claims, and what each claim would get there.

Each state that nodes are in is evaluated once for each kind of claim. Among the nodes that fit, the score of KEP-4816
decides, then the order of the nodes (where kube-scheduler draws lots, and other plug-ins have a say).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from dranode.driver.core.api.documents import encode_json
from dranode.driver.core.api.resource import Node, ResourceClaim
from dranode.sim.allocator.allocate import Allocator, failures, unfit
from dranode.sim.allocator.explain import Miss
from dranode.sim.allocator.outcome import AllocationError, Outcome, Reason
from dranode.sim.allocator.picks import Oddity, Solution
from dranode.sim.allocator.pools import Pool
from dranode.sim.allocator.requests import AllocationRequest
from dranode.sim.allocator.state import Allocated, PoolState
from dranode.sim.cluster.extended import NOT_BOUND, backed_here, extended_of, special_claims
from dranode.sim.cluster.solutions import moved, raw_score
from dranode.sim.cluster.states import States
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod

# KEP-4816 spreads scores from 0 to 100; kube-scheduler, which decides, takes them as a part of the greatest.
MAX_SCORE: Final = 100
SCORING: Final = "kube-scheduler's DynamicResources: 100 times raw over the greatest raw, rounded down"

Requests: TypeAlias = tuple[tuple[AllocationRequest, ...], ...]
# A state, what is allocated of the pools that its nodes share with others, and the claims.
_Question: TypeAlias = tuple[int, tuple[PoolState, ...], bytes]


@dataclass(frozen=True, slots=True)
class NodeScore:
    """The score of a node for a pod, by kube-scheduler's plug-in for dynamic resources.

    Attributes:
        node: the node; it fits.
        raw: the sum over the prioritized lists of 8 less the index of the alternative.
        score: 100 times `raw` over the greatest `raw` of all nodes that fit, rounded down; 0 for all without a list.
    """

    node: str
    raw: int
    score: int


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """The place of a pod.

    Attributes:
        node: the node; None if it fits nowhere.
        outcomes: what its claims got that were not allocated yet.
        scores: the nodes that fit, if they were asked for.
        misses: if it fits nowhere, the nearest miss for each kind of node: a node of the kind, and the miss.
    """

    node: str | None
    outcomes: tuple[Outcome, ...]
    scores: tuple[NodeScore, ...] = ()
    misses: tuple[tuple[str, Miss], ...] = ()


@dataclass(frozen=True, slots=True)
class _Demand:
    """Claims to allocate; `key` is equal for claims that want the same."""

    claims: tuple[ResourceClaim, ...]
    requests: Requests
    key: bytes


@dataclass(frozen=True, slots=True)
class NodeAsk:
    """The claims that a pod has on some nodes.

    Attributes:
        claims: those that are not allocated yet.
        allows: whether the pod asks this of a node; None: of all.
        unbindable: why kube-scheduler fails to bind the pod to such a node once it has chosen it; empty if it does not.
    """

    claims: tuple[ResourceClaim, ...]
    allows: Callable[[Node], bool] | None = None
    unbindable: str = ""


class Fleet:
    """Nodes with what is allocated on them; `place` changes it.

    Attributes:
        nodes: in the order in which they are preferred, other things being equal.
    """

    def __init__(self, allocator: Allocator, nodes: Sequence[Node], allocated: Allocated) -> None:
        """Start with what is allocated already."""
        self._allocator = allocator
        self.nodes = tuple(nodes)
        self._states = States(allocator.inventory, self.nodes, allocator.counted(allocated))
        self._number = {node.metadata.name: number for number, node in enumerate(self.nodes)}
        self._solutions: dict[_Question, Solution | AllocationError] = {}
        self._misses: dict[_Question, Miss] = {}
        self._raws: dict[int, int] = {}  # by the identity of what was found, which `_solutions` keeps

    def place(
        self,
        claims: Sequence[ResourceClaim],
        *,
        allows: Callable[[Node], bool] | None = None,
        scores: bool = False,
        before: int = 0,
    ) -> NodeChoice:
        """Find a node for a pod and allocate its claims there, all or none; see `place_one_of`."""
        return self.place_one_of([NodeAsk(tuple(claims), allows)], scores=scores, before=before)

    def place_one_of(self, asks: Sequence[NodeAsk], *, scores: bool = False, before: int = 0) -> NodeChoice:
        """Find a node for a pod and allocate there what is asked there, all or nothing.

        An error that ends the attempt is in the outcomes of the claims, not raised.

        Args:
            asks: what the pod asks of which nodes; no node is in two.
            scores: whether the table of scores is made.
            before: what the pod's allocated claims add to the raw score on every node (`score_before`).
        """
        most = max(asks, key=lambda ask: len(ask.claims))
        try:
            demands = [self._demand(ask.claims) for ask in asks]
            fits = {
                (number, state): found
                for number, ask in enumerate(asks)
                for state, found in self._fits(demands[number], ask.allows).items()
            }
        except AllocationError as error:
            return NodeChoice(None, failures(most.claims, None, error))
        if not fits:
            return self._nowhere(most, list(zip(asks, demands, strict=True)))
        before = before if most.claims else 0
        raws = {place: self._raw(demands[place[0]], solution) + before for place, (_, solution) in fits.items()}
        best = max(fits, key=lambda place: (raws[place], -fits[place][0]))
        if asks[best[0]].unbindable:
            ending = AllocationError(asks[best[0]].unbindable, Reason.INCOMPLETE_CLAIM, "fatal")
            return NodeChoice(None, failures(most.claims, None, ending))
        demand, (number, solution) = demands[best[0]], fits[best]
        view = self._states.views[number]
        outcomes = self._allocator.outcomes(
            demand.claims, demand.requests, moved(solution, view), view.node.metadata.name
        )
        self._states.take(number, [outcome.allocation for outcome in outcomes if outcome.allocation is not None])
        table = self._scores(raws, best[1], number, asks) if scores else ()
        return NodeChoice(view.node.metadata.name, outcomes, table)

    def extended(self, pod: SchedulingPod) -> dict[str, str]:
        """Return the DeviceClass of each extended resource of the pod that has one."""
        return extended_of(pod, self._allocator.classes.values(), self._allocator.features)

    def asks(
        self, pod: SchedulingPod, extended: Mapping[str, str], ask: NodeAsk, *, claims: bool
    ) -> tuple[NodeAsk, ...]:
        """Return what a pod asks besides where devices stand for its extended resources, as they do not everywhere.

        `claims` is whether the pod has claims of its own, allocated or not.
        """
        nodes: dict[tuple[str, ...], set[str]] = {}
        for node in self.nodes:
            own = node.status.allocatable if isinstance(node, SchedulingNode) else {}
            backed = backed_here(extended, {name: int(amount.value) for name, amount in own.items()})
            nodes.setdefault(tuple(sorted(backed)), set()).add(node.metadata.name)
        if not nodes:
            nodes[tuple(sorted(extended))] = set()  # what a node would be asked if there were one
        return tuple(
            NodeAsk(
                (*ask.claims, *special_claims(pod, {name: extended[name] for name in names})),
                _among(members, ask),
                "" if names or not claims else NOT_BOUND.format(pod.key),
            )
            for names, members in nodes.items()
        )

    def drivers(self, node: str, claims: Sequence[ResourceClaim]) -> frozenset[str]:
        """The drivers whose devices the claims would get on the node as it is now; none if they do not fit there."""
        try:
            solution = self._evaluate(self.state(node), self._demand(claims))
        except AllocationError:
            return frozenset()
        picks = solution.picks if isinstance(solution, Solution) else None
        return frozenset(pick.candidate.pool.driver for picked in picks or () for pick in picked)

    def misses(
        self, claims: Sequence[ResourceClaim], allows: Callable[[Node], bool] | None = None
    ) -> tuple[tuple[tuple[str, ...], Miss | AllocationError | None], ...]:
        """Return what keeps the claims from each node, nodes in the same state together; None where they fit.

        Raises:
            AllocationError: an error that ends the attempt for all nodes.
        """
        demand = self._demand(claims)
        members: dict[int, list[str]] = {}
        for number, node in enumerate(self.nodes):
            if allows is None or allows(node):
                members.setdefault(self._states.of[number], []).append(node.metadata.name)
        return tuple((tuple(names), self._keeps(state, demand)) for state, names in members.items())

    def _keeps(self, state: int, demand: _Demand) -> Miss | AllocationError | None:
        solution = self._evaluate(state, demand)
        if isinstance(solution, AllocationError):
            if solution.scope == "fatal":
                raise solution
            return solution
        return None if solution.picks is not None else self._miss(state, demand)

    def pools(self, node: str) -> tuple[tuple[Pool, PoolState], ...]:
        """The pools that the node sees, with what is allocated of them now."""
        number = self._number[node]
        allocated = self._states.allocated(number)
        return tuple((pool, allocated.pool(pool.id)) for pool in self._states.views[number].pools)

    def usable(self, node: str, claims: Sequence[ResourceClaim]) -> frozenset[tuple[str, str, str]]:
        """The devices of a node that the claims' requests choose, and those that share counters with them.

        Each by driver, pool and name, whoever has it now.

        Raises:
            AllocationError: a class is not there, or a selector cannot be evaluated.
        """
        pools = [pool for pool, _ in self.pools(node)]
        return self._allocator.usable(claims, pools)

    def state(self, node: str) -> int:
        """A number that is equal for nodes in the same state."""
        return self._states.of[self._number[node]]

    def _demand(self, claims: Sequence[ResourceClaim]) -> _Demand:
        return _Demand(
            tuple(claims),
            self._allocator.requests(claims),
            b"\n".join(encode_json(claim.spec) for claim in claims),
        )

    def _fits(self, demand: _Demand, allows: Callable[[Node], bool] | None) -> dict[int, tuple[int, Solution]]:
        """The states in which the claims fit, with the first node and what was found.

        Raises:
            AllocationError: an error that ends the attempt for all nodes.
        """
        fits: dict[int, tuple[int, Solution]] = {}
        for state, number in self._states.living(allows):
            solution = self._evaluate(state, demand)
            if isinstance(solution, AllocationError):
                if solution.scope == "fatal":
                    raise solution
            elif solution.picks is not None:
                fits[state] = (number, solution)
        return fits

    def _evaluate(self, state: int, demand: _Demand) -> Solution | AllocationError:
        key = (*self._states.key(state), demand.key)
        known = self._solutions.get(key)
        if known is None:
            pools, allocated = self._states.example(state)
            try:
                known = self._allocator.search(demand.claims, demand.requests, pools, allocated)
            except AllocationError as error:
                if error.scope == "fatal":
                    return error  # its text names the claim
                known = error
            self._solutions[key] = known
        return known

    def _raw(self, demand: _Demand, solution: Solution) -> int:
        raw = self._raws.get(id(solution))
        if raw is None:
            raw = self._raws[id(solution)] = raw_score(demand.requests, solution)
        return raw

    def _nowhere(self, most: NodeAsk, asked: Sequence[tuple[NodeAsk, _Demand]]) -> NodeChoice:
        nearest: dict[int, tuple[str, Miss]] = {}
        errors: list[AllocationError] = []
        oddities: set[Oddity] = set()
        for ask, demand in asked:
            for state, number in self._states.living(ask.allows):
                solution = self._evaluate(state, demand)
                if isinstance(solution, AllocationError):
                    errors.append(solution)
                    continue
                oddities |= solution.oddities
                miss, kind = self._miss(state, demand), self._states.kind(state)
                if kind not in nearest or nearest[kind][1] < miss:
                    nearest[kind] = (self.nodes[number].metadata.name, miss)
        misses = tuple(sorted(nearest.values(), key=lambda each: each[1], reverse=True))
        if errors and not misses:
            return NodeChoice(None, failures(most.claims, None, errors[0]))
        return NodeChoice(None, unfit(most.claims, _sentence(len(self.nodes), misses), oddities), misses=misses)

    def _miss(self, state: int, demand: _Demand) -> Miss:
        key = (*self._states.key(state), demand.key)
        if key not in self._misses:
            pools, allocated = self._states.example(state)
            self._misses[key] = self._allocator.nearest_miss(demand.claims, demand.requests, pools, allocated)
        return self._misses[key]

    def _scores(
        self, raws: Mapping[tuple[int, int], int], before: int, taken: int, asks: Sequence[NodeAsk]
    ) -> tuple[NodeScore, ...]:
        most = max(raws.values())
        table = []
        for number, node in enumerate(self.nodes):
            state = before if number == taken else self._states.of[number]
            asked = (index for index, ask in enumerate(asks) if ask.allows is None or ask.allows(node))
            raw = next((raws.get((index, state)) for index in asked), None)
            if raw is not None:
                score = MAX_SCORE * raw // most if most else 0
                table.append(NodeScore(node.metadata.name, raw, score))
        return tuple(table)


def _among(nodes: set[str], ask: NodeAsk) -> Callable[[Node], bool]:
    return lambda node: node.metadata.name in nodes and (ask.allows is None or ask.allows(node))


def _sentence(nodes: int, misses: Sequence[tuple[str, Miss]]) -> str:
    if not misses:
        return "there is no node that the pod may go to"
    nearest, miss = misses[0]
    if nodes == 1:
        return f"does not fit on node {nearest}: {miss.sentence}"
    return f"does not fit on any of {nodes} nodes; nearest is {nearest}: {miss.sentence}"
