"""Finds the nodes of a fleet that are the same, so that an answer about one holds for all.

Nodes that differ by name alone are of one kind. Nodes of one kind with the same devices allocated are in one state. A
pool that several nodes see belongs to no node's state; what is allocated of it is kept apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

from dranode.driver.core.api.resource import AllocationResult, Node
from dranode.sim.allocator.pools import Pool, PoolIndex
from dranode.sim.allocator.state import Allocated, PoolID, PoolState
from dranode.sim.cluster.views import NodeViews, View


class States:
    """The kinds and states of nodes, which are numbered in their order; `take` changes them.

    Attributes:
        views: what every node sees.
        of: the state that every node is in.
    """

    def __init__(self, inventory: PoolIndex, nodes: Sequence[Node], allocated: Allocated) -> None:
        """Start with what is allocated already."""
        views = NodeViews(inventory)
        self._states: dict[tuple[int, tuple[PoolState, ...]], int] = {}
        self._contents: list[tuple[int, tuple[PoolState, ...]]] = []  # of every state: the kind, and the local pools
        self._example: dict[int, int] = {}  # kind -> a node of it
        self._shared: dict[PoolID, PoolState] = {}
        self._members: dict[int, list[int]] = {}  # state -> heap of nodes, some of which may have moved on
        self.views = [views.view(node) for node in nodes]
        self.of = [-1] * len(self.views)
        for number, view in enumerate(self.views):
            self._example.setdefault(view.kind, number)
            for pool in view.shared:
                self._shared[pool] = allocated.pool(pool)
            self._enter(number, tuple(allocated.pool(pool) for pool in view.local))

    def kind(self, state: int) -> int:
        """The kind of the nodes in a state."""
        return self._contents[state][0]

    def key(self, state: int) -> tuple[int, tuple[PoolState, ...]]:
        """Return what an answer about nodes in a state depends on: the state, and the shared pools that they see."""
        return state, tuple(self._shared[pool] for pool in self._example_of(state).shared)

    def example(self, state: int) -> tuple[tuple[Pool, ...], Allocated]:
        """The pools that a node of the state's kind sees, with what is allocated of them in that state."""
        view = self._example_of(state)
        return view.pools, self._allocated(state, view)

    def allocated(self, number: int) -> Allocated:
        """Return what is allocated of the pools that a node sees."""
        return self._allocated(self.of[number], self.views[number])

    def take(self, number: int, allocations: Sequence[AllocationResult]) -> None:
        """Allocate devices on a node."""
        view = self.views[number]
        after = self.allocated(number).with_allocations(allocations)
        for pool in view.shared:
            self._shared[pool] = after.pool(pool)
        self._enter(number, tuple(after.pool(pool) for pool in view.local))

    def living(self, allows: Callable[[Node], bool] | None) -> Iterator[tuple[int, int]]:
        """Each state that a node is in, with the first such node that `allows` lets through; None allows all."""
        if allows is None:
            for state in list(self._members):
                number = self._first(state)
                if number is None:
                    del self._members[state]
                else:
                    yield state, number
            return
        seen: set[int] = set()
        for number, view in enumerate(self.views):
            if self.of[number] not in seen and allows(view.node):
                seen.add(self.of[number])
                yield self.of[number], number

    def _enter(self, number: int, states: tuple[PoolState, ...]) -> None:
        contents = (self.views[number].kind, states)
        state = self._states.get(contents)
        if state is None:
            state = self._states[contents] = len(self._contents)
            self._contents.append(contents)
        self.of[number] = state
        heapq.heappush(self._members.setdefault(state, []), number)

    def _example_of(self, state: int) -> View:
        return self.views[self._example[self.kind(state)]]

    def _allocated(self, state: int, view: View) -> Allocated:
        _, states = self._contents[state]
        pools: Mapping[PoolID, PoolState] = dict(zip(view.local, states, strict=True))
        return Allocated({**pools, **{pool: self._shared[pool] for pool in view.shared}})

    def _first(self, state: int) -> int | None:
        """The first node that is in the state now."""
        heap = self._members[state]
        while heap and self.of[heap[0]] != state:
            heapq.heappop(heap)
        return heap[0] if heap else None
