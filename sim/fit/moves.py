"""Finds the pods that would have to move so that a large one fits: the fewest, each evicted and placed anew.

Up to `EXACT_PODS` pods that may move, all sets of one, two, three ... pods are tried, with all nodes and all orders in
which they can be placed again, so that no plan has fewer. Beyond, a plan is looked for among the sets on one node whose
eviction makes room, and what is proven is a bound: fewer evictions do not make room, so fewer moves do not either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.evictions import candidates_by_node, evictions_for, may_go
from dranode.sim.fit.replacing import Replacing, Steps
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState

EXACT_PODS: Final = 12
_MOST_SETS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Move:
    """One pod that goes and comes back elsewhere, or on the same node with other devices.

    Attributes:
        pod: `<namespace>/<name>`.
        claims: what it holds today: `default/a: gpu-0, gpu-1`.
        source: the node where it is.
        target: the node where it goes.
    """

    pod: str
    claims: tuple[str, ...]
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves that make room.

    Attributes:
        node: where the large pod goes then.
        moves: in the order in which the pods are placed again, once all of them are gone.
        position: how many of them are placed before the large one.
        bound: how many moves there are at least.
    """

    node: str
    moves: tuple[Move, ...]
    position: int
    bound: int

    @property
    def optimal(self) -> bool:
        """Return whether no plan has fewer moves."""
        return len(self.moves) == self.bound


def moves_for(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> MovePlan | None:
    """The plan with the fewest moves; None if there is none, or none was found where not all could be tried.

    Pods move that may be evicted for the large one: none that is more important, of a DaemonSet, or static.
    """
    movable = [pod for pod in state.demands.values() if may_go(pod.pod, demand.pod.priority)]
    if len(movable) <= EXACT_PODS:
        return _fewest(scheduler, state, demand, movable)
    return _good(scheduler, state, demand)


def _fewest(
    scheduler: Scheduler, state: ClusterState, demand: PodDemand, movable: Sequence[PodDemand]
) -> MovePlan | None:
    replacing = Replacing(scheduler, [demand, *movable])
    for count in range(1, len(movable) + 1):
        for chosen in combinations(movable, count):
            steps = replacing.steps(state, demand, chosen)
            if steps is not None:
                return _plan(state, demand, steps, count)
            if replacing.exhausted:
                return _good(scheduler, state, demand)
    return None


def _good(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> MovePlan | None:
    """The first set of pods on one node whose eviction makes room, and that find places again."""
    evicted = evictions_for(scheduler, state, demand)
    if evicted is None:
        return None
    bound = len(evicted.pods) if evicted.least else 1
    for chosen in _sets(candidates_by_node(scheduler, state, demand), len(evicted.pods)):
        after = state.without_pods(frozenset(pod.pod.key for pod in chosen))
        again = sorted((pod.waiting() for pod in chosen), key=_size, reverse=True)
        steps = _in_turn(scheduler, after, [demand, *again])
        if steps is not None:
            return _plan(state, demand, steps, bound)
    return None


def _sets(candidates: Mapping[str, Sequence[PodDemand]], least: int) -> Iterator[tuple[PodDemand, ...]]:
    """Sets of pods on one node, small ones first, and not too many."""
    tried = 0
    for count in range(least, max(map(len, candidates.values()), default=0) + 1):
        for pods in candidates.values():
            for chosen in combinations(pods, count):
                tried += 1
                if tried > _MOST_SETS:
                    return
                yield chosen


def _in_turn(scheduler: Scheduler, state: ClusterState, pods: Sequence[PodDemand]) -> Steps | None:
    """Place the pods one after another where kube-scheduler would; None if one fits nowhere."""
    steps: Steps = []
    for pod in pods:
        choice = scheduler.choose(state, pod)
        if choice.node is None:
            return None
        steps.append((pod, choice.node))
        state = scheduler.bind(state, pod, choice.node, choice.outcomes)
    return steps


def _size(demand: PodDemand) -> tuple[int, int]:
    devices = sum(len(claim.spec.devices.requests) for claim in demand.claims)
    return devices, sum(demand.info.requests.values())


def _plan(state: ClusterState, demand: PodDemand, steps: Steps, bound: int) -> MovePlan:
    position = next(index for index, (pod, _) in enumerate(steps) if pod.pod.key == demand.pod.key)
    moves = tuple(_move(state, pod, node) for pod, node in steps if pod.pod.key != demand.pod.key)
    return MovePlan(steps[position][1], moves, position, bound)


def _move(state: ClusterState, demand: PodDemand, node: str) -> Move:
    before = state.demands[demand.pod.key]
    return Move(demand.pod.key, tuple(state.held(before)), before.pod.spec.node_name, node)
