"""Many nodes: where kube-scheduler would put pods with claims, and what each claim would get there.

Nodes that are the same but for their name, with the same devices allocated, are in one state, and each state is
evaluated once for each kind of claim. Among the nodes that fit, the score of KEP-4816 decides, then the order of the
nodes (where kube-scheduler draws lots, and other plug-ins have a say).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dranode.driver.core.documents import encode_json
from dranode.driver.core.resource import AllocationResult, Node, ResourceClaim
from dranode.driver.local.allocator.allocate import Allocator, failures, unfit
from dranode.driver.local.allocator.attempt import Oddity
from dranode.driver.local.allocator.explain import Miss
from dranode.driver.local.allocator.outcome import AllocationError, Outcome
from dranode.driver.local.allocator.pools import Candidate, Pool
from dranode.driver.local.allocator.requests import Request
from dranode.driver.local.allocator.result import active_alternatives
from dranode.driver.local.allocator.search import Found
from dranode.driver.local.allocator.state import Allocated, PoolID, PoolState

MAX_SCORE: Final = 100
# KEP-4816: the first of at most 8 alternatives counts 8, the last 1.
_FIRST_ALTERNATIVE: Final = 8

Requests: TypeAlias = tuple[tuple[Request, ...], ...]


@dataclass(frozen=True, slots=True)
class NodeScore:
    """How KEP-4816 scores a node for a pod.

    Attributes:
        node: the node; it fits.
        raw: the sum over the prioritized lists of 8 less the index of the alternative.
        score: the same normalised: 100 for the best node, 0 for the worst, 100 for all if they are equal.
    """

    node: str
    raw: int
    score: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod went.

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
class _View:
    """A node with the pools that it sees; `kind` is equal for nodes that differ by name alone."""

    node: Node
    pools: tuple[Pool, ...]
    candidates: tuple[Candidate, ...]
    local: tuple[PoolID, ...]
    shared: tuple[PoolID, ...]
    kind: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Claims to allocate; `key` is equal for claims that want the same."""

    claims: tuple[ResourceClaim, ...]
    requests: Requests
    key: bytes


class Fleet:
    """Nodes with what is allocated on them; `place` changes it.

    Attributes:
        nodes: in the order in which they are preferred, other things being equal.
    """

    def __init__(self, allocator: Allocator, nodes: Sequence[Node], allocated: Allocated) -> None:
        """Start with what is allocated already."""
        self._allocator = allocator
        self.nodes = tuple(nodes)
        self._kinds: dict[object, int] = {}
        self._states: dict[tuple[int, tuple[PoolState, ...]], int] = {}
        self._state_keys: list[tuple[int, tuple[PoolState, ...]]] = []
        self._example: dict[int, int] = {}  # kind -> a node of it
        self._shared: dict[PoolID, PoolState] = {}
        self._raws: dict[int, int] = {}  # by the identity of what was found, which `_found` keeps
        self._found: dict[tuple[int, tuple[PoolState, ...], bytes], Found | AllocationError] = {}
        self._misses: dict[tuple[int, tuple[PoolState, ...], bytes], Miss] = {}
        self._views = [self._view(node) for node in self.nodes]
        self._number = {node.metadata.name: number for number, node in enumerate(self.nodes)}
        self._members: dict[int, list[int]] = {}  # state -> heap of nodes, some of which may have moved on
        self._state_of = [-1] * len(self.nodes)
        for number, view in enumerate(self._views):
            self._example.setdefault(view.kind, number)
            for pool in view.shared:
                self._shared[pool] = allocated.pool(pool)
            self._enter(number, tuple(allocated.pool(pool) for pool in view.local))

    def place(
        self,
        claims: Sequence[ResourceClaim],
        *,
        allows: Callable[[Node], bool] | None = None,
        scores: bool = False,
    ) -> Placement:
        """Find a node for a pod and allocate its claims there, all or none.

        `allows` says which nodes the pod may go to at all; `scores` asks for the table.
        """
        try:
            wanted = self._wanted(claims)
            fits = self._fits(wanted, allows)
        except AllocationError as error:
            return Placement(None, failures(claims, None, error))
        if not fits:
            return self._nowhere(wanted, allows)
        raws = {state: self._raw(wanted, found) for state, (_, found) in fits.items()}
        best = max(fits, key=lambda state: (raws[state], -fits[state][0]))
        number, found = fits[best]
        view = self._views[number]
        outcomes = self._allocator.outcomes(
            wanted.claims, wanted.requests, _moved(found, view), view.node.metadata.name
        )
        self._take(number, [outcome.allocation for outcome in outcomes if outcome.allocation is not None])
        table = self._scores(raws, best, number, allows) if scores else ()
        return Placement(view.node.metadata.name, outcomes, table)

    def drivers(self, node: str, claims: Sequence[ResourceClaim]) -> frozenset[str]:
        """The drivers whose devices the claims would get on the node as it is now; none if they do not fit there."""
        try:
            found = self._evaluate(self._state_of[self._number[node]], self._wanted(claims))
        except AllocationError:
            return frozenset()
        picks = found.picks if isinstance(found, Found) else None
        return frozenset(pick.candidate.pool.driver for picked in picks or () for pick in picked)

    def pools(self, node: str) -> tuple[tuple[Pool, PoolState], ...]:
        """The pools that the node sees, with what is allocated of them now."""
        number = self._number[node]
        view = self._views[number]
        states = self._pool_states(self._state_of[number], view)
        return tuple((pool, states.pool(pool.id)) for pool in view.pools)

    def state(self, node: str) -> int:
        """A number that is equal for nodes in the same state."""
        return self._state_of[self._number[node]]

    # --- kinds and states ---

    def _view(self, node: Node) -> _View:
        pools = self._allocator.inventory.pools(node)
        name = node.metadata.name
        local = tuple(pool.id for pool in pools if _is_local(pool, name))
        shared = tuple(pool.id for pool in pools if not _is_local(pool, name))
        names = {pool_name: index for index, pool_name in enumerate(dict.fromkeys(pool.id.pool for pool in pools))}
        key = tuple(_local_key(pool, names) if pool.id in local else _shared_key(pool) for pool in pools)
        kind = self._kinds.setdefault(key, len(self._kinds))
        candidates = tuple(candidate for pool in pools if pool.usable for candidate in pool.candidates)
        return _View(node, pools, candidates, local, shared, kind)

    def _enter(self, number: int, states: tuple[PoolState, ...]) -> None:
        key = (self._views[number].kind, states)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = len(self._state_keys)
            self._state_keys.append(key)
        self._state_of[number] = state
        heapq.heappush(self._members.setdefault(state, []), number)

    def _take(self, number: int, allocations: Sequence[AllocationResult]) -> None:
        view = self._views[number]
        states = self._pool_states(self._state_of[number], view).with_allocations(allocations)
        for pool in view.shared:
            self._shared[pool] = states.pool(pool)
        self._enter(number, tuple(states.pool(pool) for pool in view.local))

    def _pool_states(self, state: int, view: _View) -> Allocated:
        _, states = self._state_keys[state]
        pools: Mapping[PoolID, PoolState] = dict(zip(view.local, states, strict=True))
        return Allocated({**pools, **{pool: self._shared[pool] for pool in view.shared}})

    def _first(self, state: int) -> int | None:
        """The first node that is in the state now."""
        heap = self._members[state]
        while heap and self._state_of[heap[0]] != state:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _living(self, allows: Callable[[Node], bool] | None) -> Iterator[tuple[int, int]]:
        """Each state that a node is in, with the first such node that the pod may go to."""
        if allows is None:
            for state in list(self._members):
                number = self._first(state)
                if number is None:
                    del self._members[state]
                else:
                    yield state, number
            return
        seen: set[int] = set()
        for number, node in enumerate(self.nodes):
            if self._state_of[number] not in seen and allows(node):
                seen.add(self._state_of[number])
                yield self._state_of[number], number

    # --- questions ---

    def _wanted(self, claims: Sequence[ResourceClaim]) -> _Wanted:
        return _Wanted(
            tuple(claims),
            self._allocator.requests(claims),
            b"\n".join(encode_json(claim.spec) for claim in claims),
        )

    def _fits(self, wanted: _Wanted, allows: Callable[[Node], bool] | None) -> dict[int, tuple[int, Found]]:
        """The states in which the claims fit, with the first node and what was found.

        Raises:
            AllocationError: an error that ends the attempt for all nodes.
        """
        fits: dict[int, tuple[int, Found]] = {}
        for state, number in self._living(allows):
            found = self._evaluate(state, wanted)
            if isinstance(found, AllocationError):
                if found.scope == "fatal":
                    raise found
            elif found.picks is not None:
                fits[state] = (number, found)
        return fits

    def _memo_key(self, state: int, wanted: _Wanted) -> tuple[int, tuple[PoolState, ...], bytes]:
        view = self._views[self._example[self._state_keys[state][0]]]
        return state, tuple(self._shared[pool] for pool in view.shared), wanted.key

    def _evaluate(self, state: int, wanted: _Wanted) -> Found | AllocationError:
        key = self._memo_key(state, wanted)
        known = self._found.get(key)
        if known is None:
            view = self._views[self._example[self._state_keys[state][0]]]
            try:
                known = self._allocator.search(
                    wanted.claims, wanted.requests, view.pools, self._pool_states(state, view)
                )
            except AllocationError as error:
                if error.scope == "fatal":
                    return error  # its text names the claim
                known = error
            self._found[key] = known
        return known

    def _raw(self, wanted: _Wanted, found: Found) -> int:
        raw = self._raws.get(id(found))
        if raw is None:
            raw = self._raws[id(found)] = _raw_score(wanted.requests, found)
        return raw

    def _nowhere(self, wanted: _Wanted, allows: Callable[[Node], bool] | None) -> Placement:
        nearest: dict[int, tuple[str, Miss]] = {}
        errors: list[AllocationError] = []
        oddities: set[Oddity] = set()
        for state, number in self._living(allows):
            found = self._evaluate(state, wanted)
            if isinstance(found, AllocationError):
                errors.append(found)
                continue
            oddities |= found.oddities
            miss, kind = self._miss(state, wanted), self._state_keys[state][0]
            if kind not in nearest or nearest[kind][1] < miss:
                nearest[kind] = (self.nodes[number].metadata.name, miss)
        misses = tuple(sorted(nearest.values(), key=lambda each: each[1], reverse=True))
        if errors and not misses:
            return Placement(None, failures(wanted.claims, None, errors[0]))
        return Placement(None, unfit(wanted.claims, _sentence(len(self.nodes), misses), oddities), misses=misses)

    def _miss(self, state: int, wanted: _Wanted) -> Miss:
        key = self._memo_key(state, wanted)
        if key not in self._misses:
            view = self._views[self._example[self._state_keys[state][0]]]
            states = self._pool_states(state, view)
            self._misses[key] = self._allocator.nearest_miss(wanted.claims, wanted.requests, view.pools, states)
        return self._misses[key]

    def _scores(
        self, raws: Mapping[int, int], before: int, taken: int, allows: Callable[[Node], bool] | None
    ) -> tuple[NodeScore, ...]:
        least, most = min(raws.values()), max(raws.values())
        table = []
        for number, node in enumerate(self.nodes):
            raw = raws.get(before if number == taken else self._state_of[number])
            if raw is not None and (allows is None or allows(node)):
                score = MAX_SCORE if most == least else (raw - least) * MAX_SCORE // (most - least)
                table.append(NodeScore(node.metadata.name, raw, score))
        return tuple(table)


def _is_local(pool: Pool, node: str) -> bool:
    return not pool.elsewhere and all(candidate.slice.node_name == node for candidate in pool.candidates)


def _local_key(pool: Pool, names: Mapping[str, int]) -> object:
    counters = tuple(encode_json(each) for each in pool.counters.values())
    devices = tuple((candidate.device.name, candidate.content.number) for candidate in pool.candidates)
    return pool.id.driver, names[pool.id.pool], pool.incomplete, pool.invalid, devices, counters


def _shared_key(pool: Pool) -> object:
    return pool.id, pool.incomplete, pool.invalid, tuple(id(each.device) for each in pool.candidates if each.reachable)


def _moved(found: Found, view: _View) -> Found:
    """The same solution on a node of the same kind."""
    if found.picks is None:
        return found
    picks = tuple(
        tuple(replace(pick, candidate=view.candidates[pick.number]) for pick in picked) for picked in found.picks
    )
    return replace(found, picks=picks)


def _raw_score(requests: Requests, found: Found) -> int:
    score = 0
    for wanted, picks in zip(requests, found.picks or (), strict=True):
        names = {alternative.name for alternative in active_alternatives(wanted, picks)}
        for request in wanted:
            if request.listed:
                index = next(index for index, one in enumerate(request.alternatives) if one.name in names)
                score += _FIRST_ALTERNATIVE - index
    return score


def _sentence(nodes: int, misses: Sequence[tuple[str, Miss]]) -> str:
    if not misses:
        return "there is no node that the pod may go to"
    nearest, miss = misses[0]
    if nodes == 1:
        return f"does not fit on node {nearest}: {miss.sentence}"
    return f"does not fit on any of {nodes} nodes; nearest is {nearest}: {miss.sentence}"
