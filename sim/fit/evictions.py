"""Finds the pods to evict so that another fits, or to move, each evicted and placed again: as few as can be.

Up to `EXACT_PODS` pods that may move, all sets of one, two, three ... pods are tried, with all nodes and all orders in
which they can be placed again, so that no plan has fewer. Beyond, a plan is looked for among the sets on one node whose
eviction makes room, and what is proven is a bound: fewer evictions do not make room, so fewer moves do not either.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, TypeAlias

from msgspec.structs import replace

from dranode.api.documents import encode_json
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod

# How often a set of pods is tried at most before the answer is only a good one.
_MOST_TRIALS: Final = 20_000
_MIRROR: Final = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """Pods whose end makes room on a node.

    Attributes:
        node: where there is room then.
        pods: the pods, `<namespace>/<name>`, the least important first.
        priorities: theirs.
        least: fewer pods do not make room; what is not proven is only that no other set could be smaller.
        preemption: kube-scheduler may evict them by itself: all are less important than the pod.
    """

    node: str
    pods: tuple[str, ...]
    priorities: tuple[int, ...]
    least: bool
    preemption: bool


def evictions_for(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> EvictionPlan | None:
    """The plan with the fewest pods, then with the lowest priorities; None if no eviction makes room.

    Pods that are more important than the one that waits stay, and so do those that come back to their node by
    themselves: of DaemonSets, and static ones.
    """
    candidates = candidates_by_node(scheduler, state, demand)
    trials = _Trials(scheduler, state, demand)
    roomy = {node: pods for node, pods in candidates.items() if trials.fits_without(node, pods)}
    bounds = [trials.spared(node, pods) for node, pods in roomy.items()]
    if not bounds:
        return None
    most = min(map(_cost, bounds))[0]
    for count in range(1, most + 1):
        plans = list(trials.plans(roomy, count))
        if plans:
            best = min(plans, key=_cost)
            return _plan(best, demand, least=True)
        if trials.exhausted:
            break
    return _plan(min(bounds, key=_cost), demand, least=False)


def candidates_by_node(
    scheduler: Scheduler, state: ClusterState, demand: PodDemand
) -> Mapping[str, tuple[PodDemand, ...]]:
    """For each node where an eviction may help, the pods that may go: its own, and those that hold what it shares."""
    placement = scheduler.place(state, demand)
    result: dict[str, tuple[PodDemand, ...]] = {}
    for name, refusal in placement.refusals.items():
        if refusal.hopeless:
            continue
        keys = [*state.nodes[name].pods, *scheduler.sharers(state, demand, name)]
        pods = [state.demands[key] for key in dict.fromkeys(keys)]
        result[name] = tuple(pod for pod in pods if may_be_evicted(pod.pod, demand.pod.priority))
    return result


def may_be_evicted(pod: SchedulingPod, priority: int) -> bool:
    """Return whether a pod may be evicted for one of this priority."""
    stays = any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owner_references)
    return pod.priority <= priority and not stays and _MIRROR not in pod.metadata.annotations


_Victims = tuple[str, tuple[PodDemand, ...]]


class _Trials:
    """Sets of pods that are tried, and not too many."""

    def __init__(self, scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> None:
        self._scheduler = scheduler
        self._state = state
        self._demand = demand
        self._remaining = _MOST_TRIALS
        # A node by itself is a much smaller state to try thousands of sets on.
        self._alone: dict[str, ClusterState] | None = None if scheduler.far_reaching(state, demand) else {}

    @property
    def exhausted(self) -> bool:
        return self._remaining <= 0

    def plans(self, candidates: Mapping[str, tuple[PodDemand, ...]], count: int) -> Iterator[_Victims]:
        """All sets of so many pods that make room, as long as trials are left."""
        for node, pods in candidates.items():
            for chosen in combinations(pods, count):
                self._remaining -= 1
                if self.exhausted:
                    return
                if self.fits_without(node, chosen):
                    yield node, chosen

    def fits_without(self, node: str, pods: Iterable[PodDemand]) -> bool:
        after = self._of(node).without_pods(frozenset(pod.pod.key for pod in pods))
        return self._scheduler.suits(after, self._demand, node)

    def spared(self, node: str, pods: Sequence[PodDemand]) -> _Victims:
        """A set from which no pod can be spared: all go, and come back one by one, the most important first."""
        going = list(pods)
        for pod in sorted(pods, key=lambda pod: -pod.pod.priority):
            rest = [other for other in going if other is not pod]
            if self.fits_without(node, rest):
                going = rest
        return node, tuple(going)

    def _of(self, node: str) -> ClusterState:
        if self._alone is None:
            return self._state
        if node not in self._alone:
            self._alone[node] = self._scheduler.alone(self._state, self._demand, node)
        return self._alone[node]


def _cost(victims: _Victims) -> tuple[int, list[int]]:
    return len(victims[1]), sorted((pod.pod.priority for pod in victims[1]), reverse=True)


def _plan(victims: _Victims, demand: PodDemand, *, least: bool) -> EvictionPlan:
    node, pods = victims
    ordered = sorted(pods, key=lambda pod: (pod.pod.priority, pod.pod.key))
    priorities = tuple(pod.pod.priority for pod in ordered)
    willing = demand.pod.spec.preemption_policy != "Never"
    preemption = willing and all(priority < demand.pod.priority for priority in priorities)
    return EvictionPlan(node, tuple(pod.pod.key for pod in ordered), priorities, least, preemption)


# The order matters, since the allocator takes the first devices that do. Shortcuts do not change the answer: of pods
# that are alike one is tried in each place, what failed once is not tried again, and where no pod minds its neighbors,
# a pod that fits nowhere now will not fit when more is placed.
# Pods and the nodes where they are placed, in this order.
Steps: TypeAlias = list[tuple[PodDemand, str]]
_MOST_LOOKS: Final = 50_000


class Replacements:
    """The search for places for pods that were evicted, beside one that waits.

    Attributes:
        exhausted: whether not all ways could be tried, so that nothing is proven.
    """

    def __init__(self, scheduler: Scheduler, pods: Sequence[PodDemand]) -> None:
        """Get ready for these pods and some of them."""
        self._scheduler = scheduler
        self._shapes = {pod.pod.key: _shape(pod) for pod in pods}
        self._alone = all(pod.info.terms.none and not pod.pod.spec.topology_spread_constraints for pod in pods)
        self._failed: set[Hashable] = set()
        self._looks = 0

    @property
    def exhausted(self) -> bool:
        """Return whether the search was given up."""
        return self._looks > _MOST_LOOKS

    def steps(self, state: ClusterState, demand: PodDemand, chosen: Sequence[PodDemand]) -> Steps | None:
        """Return places for the pod that waits and for the chosen ones, once they are gone; None if there are none."""
        after = state.without_pods(frozenset(pod.pod.key for pod in chosen))
        return self._place(after, (demand, *(pod.waiting() for pod in chosen)))

    def _place(self, state: ClusterState, pods: tuple[PodDemand, ...]) -> Steps | None:
        if not pods:
            return []
        key = self._key(state, pods)
        if key in self._failed or self.exhausted:
            return None
        fits = {}
        for pod in pods:
            fits[pod.pod.key] = self._scheduler.fits(state, pod, state.nodes)
            self._looks += 1
            if self._alone and not fits[pod.pod.key]:
                self._failed.add(key)
                return None
        tried: set[bytes] = set()
        for pod in pods:
            shape = self._shapes[pod.pod.key]
            if shape in tried:
                continue
            tried.add(shape)
            rest = tuple(other for other in pods if other is not pod)
            for node, outcomes in fits[pod.pod.key].items():
                steps = self._place(self._scheduler.bind(state, pod, node, outcomes), rest)
                if steps is not None:
                    return [(pod, node), *steps]
        self._failed.add(key)
        return None

    def _key(self, state: ClusterState, pods: tuple[PodDemand, ...]) -> Hashable:
        """Return what the answer depends on: what is still to be placed, and who is where with what."""
        shapes = sorted(self._shapes[pod.pod.key] for pod in pods)
        placed = frozenset(
            (self._shapes.get(key, key), demand.pod.spec.node_name, self._count(state, demand))
            for key, demand in state.demands.items()
        )
        pools = frozenset((pool, state.holdings.state(pool)) for pool in state.holdings.pools)
        return tuple(shapes), placed, pools

    def _count(self, state: ClusterState, demand: PodDemand) -> int:
        """Return how many pods of the same shape are on its node: a set alone would forget it."""
        shape = self._shapes.get(demand.pod.key)
        pods = state.nodes[demand.pod.spec.node_name].pods if demand.pod.spec.node_name in state.nodes else ()
        return sum(self._shapes.get(key) == shape for key in pods)


def _shape(demand: PodDemand) -> bytes:
    """Equal for pods that differ by name alone; a claim that is not made from a template is one of its own."""
    spec = replace(demand.pod.spec, node_name="")
    templated = {entry.name for entry in spec.resource_claims if entry.resource_claim_template_name is not None}
    own = {demand.entries[name] for name in templated & demand.entries.keys()}
    claims = [
        encode_json(claim.spec) if ClaimKey.of(claim) in own else str(ClaimKey.of(claim)).encode()
        for claim in demand.claims
    ]
    labels = sorted(demand.pod.metadata.labels.items())
    return b"\n".join((demand.pod.metadata.namespace.encode(), encode_json(spec), encode_json(labels), *claims))


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
    movable = [pod for pod in state.demands.values() if may_be_evicted(pod.pod, demand.pod.priority)]
    if len(movable) <= EXACT_PODS:
        return _exact(scheduler, state, demand, movable)
    return _by_evictions(scheduler, state, demand)


def _exact(
    scheduler: Scheduler, state: ClusterState, demand: PodDemand, movable: Sequence[PodDemand]
) -> MovePlan | None:
    replacing = Replacements(scheduler, [demand, *movable])
    for count in range(1, len(movable) + 1):
        for chosen in combinations(movable, count):
            steps = replacing.steps(state, demand, chosen)
            if steps is not None:
                return _move_plan(state, demand, steps, count)
            if replacing.exhausted:
                return _by_evictions(scheduler, state, demand)
    return None


def _by_evictions(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> MovePlan | None:
    """The first set of pods on one node whose eviction makes room, and that find places again."""
    evicted = evictions_for(scheduler, state, demand)
    if evicted is None:
        return None
    bound = len(evicted.pods) if evicted.least else 1
    for chosen in _pod_sets(candidates_by_node(scheduler, state, demand), len(evicted.pods)):
        after = state.without_pods(frozenset(pod.pod.key for pod in chosen))
        again = sorted((pod.waiting() for pod in chosen), key=_size, reverse=True)
        steps = _in_turn(scheduler, after, [demand, *again])
        if steps is not None:
            return _move_plan(state, demand, steps, bound)
    return None


def _pod_sets(candidates: Mapping[str, Sequence[PodDemand]], least: int) -> Iterator[tuple[PodDemand, ...]]:
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


def _move_plan(state: ClusterState, demand: PodDemand, steps: Steps, bound: int) -> MovePlan:
    position = next(index for index, (pod, _) in enumerate(steps) if pod.pod.key == demand.pod.key)
    moves = tuple(_move(state, pod, node) for pod, node in steps if pod.pod.key != demand.pod.key)
    return MovePlan(steps[position][1], moves, position, bound)


def _move(state: ClusterState, demand: PodDemand, node: str) -> Move:
    before = state.demands[demand.pod.key]
    return Move(demand.pod.key, tuple(state.held(before)), before.pod.spec.node_name, node)
