"""Finds the fewest pods to evict, or to move (evict and place again), so that another pod fits.

With up to `EXACT_PODS` movable pods, all sets of one, two, three and more pods are tried, on all nodes and in all
orders of placing them again, so no plan can have fewer moves. With more, only sets of pods on one node are tried. That
proves a lower bound: fewer evictions do not make room, so fewer moves do not either.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, TypeAlias

from msgspec.structs import replace

from dranode.api.documents import encode_json
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.daemons import comes_with_node
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod

# After so many sets of pods, the search ends with the best plan so far instead of the smallest.
_MOST_TRIALS: Final = 20_000


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """Pods whose eviction makes room on a node.

    Attributes:
        node: the node.
        pods: the pods, `<namespace>/<name>`, lowest priority first.
        priorities: the priorities of these pods.
        least: whether it is proven that fewer evictions do not make room on any node.
        preemption: whether kube-scheduler may preempt all of them itself, because their priorities are lower and the
            pod needs no device of theirs.
    """

    node: str
    pods: tuple[str, ...]
    priorities: tuple[int, ...]
    least: bool
    preemption: bool


def evictions_for(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> EvictionPlan | None:
    """Return the plan with the fewest pods, then with the lowest priorities; None if no eviction makes room.

    Pods with a higher priority than the waiting pod stay. So do pods of DaemonSets and static pods, because they would
    be created on the same node again.
    """
    candidates = candidates_by_node(scheduler, state, demand)
    trials = _Trials(scheduler, state, demand)
    roomy = {node: pods for node, pods in candidates.items() if trials.fits_without(node, pods)}
    bounds = [trials.minimal(node, pods) for node, pods in roomy.items()]
    if not bounds:
        return None
    most = min(map(_cost, bounds))[0]
    for count in range(1, most + 1):
        plans = list(trials.plans(roomy, count))
        if plans:
            best = min(plans, key=_cost)
            return trials.plan(best, least=True)
        if trials.exhausted:
            break
    return trials.plan(min(bounds, key=_cost), least=False)


def candidates_by_node(
    scheduler: Scheduler, state: ClusterState, demand: PodDemand
) -> Mapping[str, tuple[PodDemand, ...]]:
    """Return the evictable pods for each node where that may help: on the node, or holding devices of shared pools."""
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
    """Return whether a pod may be evicted for a pod of this priority."""
    return pod.priority <= priority and not comes_with_node(pod)


_Victims = tuple[str, tuple[PodDemand, ...]]


class _Trials:
    """A limited number of attempts to fit a pod after evicting a set of others."""

    def __init__(self, scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> None:
        self._scheduler = scheduler
        self._state = state
        self._demand = demand
        self._remaining = _MOST_TRIALS
        # Thousands of sets are tried much faster on the state of one node, where other nodes do not matter.
        self._alone: dict[str, ClusterState] | None = None if scheduler.far_reaching(state, demand) else {}

    @property
    def exhausted(self) -> bool:
        return self._remaining <= 0

    def plans(self, candidates: Mapping[str, tuple[PodDemand, ...]], count: int) -> Iterator[_Victims]:
        """Yield all sets of `count` pods whose eviction makes room, as long as attempts are left."""
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

    def minimal(self, node: str, pods: Sequence[PodDemand]) -> _Victims:
        """Reduce the pods to a set in which each is needed: evict all, then reprieve pods, highest priority first."""
        victims = list(pods)
        for pod in sorted(pods, key=lambda pod: -pod.pod.priority):
            fewer = [victim for victim in victims if victim is not pod]
            if self.fits_without(node, fewer):
                victims = fewer
        return node, tuple(victims)

    def plan(self, victims: _Victims, *, least: bool) -> EvictionPlan:
        """Return the plan to evict these pods; kube-scheduler preempts none for their devices (KEP-5690)."""
        node, pods = victims
        ordered = sorted(pods, key=lambda pod: (pod.pod.priority, pod.pod.key))
        keys, priorities = tuple(pod.pod.key for pod in ordered), tuple(pod.pod.priority for pod in ordered)
        preempts = self._demand.pod.spec.preemption_policy != "Never"
        if preempts and all(priority < self._demand.pod.priority for priority in priorities):
            state = self._of(node)
            without = state.without_pods(frozenset(keys), keep_claims=True)
            preempts = self._scheduler.suits(without, self._demand, node)
        else:
            preempts = False
        return EvictionPlan(node, keys, priorities, least, preempts)

    def _of(self, node: str) -> ClusterState:
        if self._alone is None:
            return self._state
        if node not in self._alone:
            self._alone[node] = self._scheduler.alone(self._state, self._demand, node)
        return self._alone[node]


def _cost(victims: _Victims) -> tuple[int, list[int]]:
    return len(victims[1]), sorted((pod.pod.priority for pod in victims[1]), reverse=True)


# Pods and the nodes where they are placed, in this order. The order matters, because the allocator takes the first
# devices that fit.
Steps: TypeAlias = list[tuple[PodDemand, str]]
_MOST_CHECKS: Final = 50_000


class Replacements:
    """The search for nodes for a waiting pod and the pods that are evicted for it.

    Three shortcuts do not change the answer: of identical pods only one is tried at each position, a combination that
    failed is not tried again, and if no pod has rules about its neighbors, a pod that fits nowhere now will not fit
    after more pods are placed.
    """

    def __init__(self, scheduler: Scheduler, pods: Sequence[PodDemand]) -> None:
        """Prepare for these pods or any subset of them."""
        self._scheduler = scheduler
        self._shapes = {pod.pod.key: _shape(pod) for pod in pods}
        self._independent = all(pod.info.terms.none and not pod.pod.spec.topology_spread_constraints for pod in pods)
        self._failed: set[Hashable] = set()
        self._checks = 0

    @property
    def exhausted(self) -> bool:
        """Return whether the search was given up, so that nothing is proven."""
        return self._checks > _MOST_CHECKS

    def steps(self, state: ClusterState, demand: PodDemand, chosen: Sequence[PodDemand]) -> Steps | None:
        """Return nodes for the waiting pod and the evicted ones, in the order of placing; None if there are none."""
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
            self._checks += 1
            if self._independent and not fits[pod.pod.key]:
                self._failed.add(key)
                return None
        tried: set[bytes] = set()
        for pod in pods:
            shape = self._shapes[pod.pod.key]
            if shape in tried:
                continue
            tried.add(shape)
            remaining = tuple(other for other in pods if other is not pod)
            for node, outcomes in fits[pod.pod.key].items():
                steps = self._place(self._scheduler.bind(state, pod, node, outcomes), remaining)
                if steps is not None:
                    return [(pod, node), *steps]
        self._failed.add(key)
        return None

    def _key(self, state: ClusterState, pods: tuple[PodDemand, ...]) -> Hashable:
        """Return everything that the answer depends on: the pods to place, and which pods and devices are where."""
        shapes = sorted(self._shapes[pod.pod.key] for pod in pods)
        placed = frozenset(
            (self._shapes.get(key, key), demand.pod.spec.node_name, self._count(state, demand))
            for key, demand in state.demands.items()
        )
        pools = frozenset((pool, state.holdings.state(pool)) for pool in state.holdings.pools)
        return tuple(shapes), placed, pools

    def _count(self, state: ClusterState, demand: PodDemand) -> int:
        """Return how many pods of the same shape are on the node of a pod, which a set would lose."""
        shape = self._shapes.get(demand.pod.key)
        pods = state.nodes[demand.pod.spec.node_name].pods if demand.pod.spec.node_name in state.nodes else ()
        return sum(self._shapes.get(key) == shape for key in pods)


def _shape(demand: PodDemand) -> bytes:
    """Return a value that is equal for pods that differ only in their names; named claims have to be the same."""
    spec = replace(demand.pod.spec, node_name="")
    templated = {entry.name for entry in spec.resource_claims if entry.resource_claim_template_name is not None}
    generated = {demand.entries[name] for name in templated & demand.entries.keys()}
    claims = [
        encode_json(claim.spec) if ClaimKey.of(claim) in generated else str(ClaimKey.of(claim)).encode()
        for claim in demand.claims
    ]
    labels = sorted(demand.pod.metadata.labels.items())
    return b"\n".join((demand.pod.metadata.namespace.encode(), encode_json(spec), encode_json(labels), *claims))


EXACT_PODS: Final = 12
_MOST_SETS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that moves to another node, or to other devices of the same node.

    Attributes:
        pod: `<namespace>/<name>`.
        claims: the devices it holds today: `default/a: gpu-0, gpu-1`.
        source: its node today.
        target: its node after the move.
    """

    pod: str
    claims: tuple[str, ...]
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves that make room.

    Attributes:
        node: the node of the waiting pod after the moves.
        moves: the moves in the order of placing the pods again, after all of them have been evicted.
        position: how many of them are placed before the waiting pod.
        bound: the proven lower bound for the number of moves.
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
    """Return the plan with the fewest moves; None if there is none, or if an incomplete search finds none.

    The same pods may move as in `evictions_for`: none with a higher priority, of a DaemonSet, or static.
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
    """Return a plan for the first set of pods on one node whose eviction makes room and that fit elsewhere."""
    evicted = evictions_for(scheduler, state, demand)
    if evicted is None:
        return None
    bound = len(evicted.pods) if evicted.least else 1
    for chosen in _pod_sets(candidates_by_node(scheduler, state, demand), len(evicted.pods)):
        after = state.without_pods(frozenset(pod.pod.key for pod in chosen))
        displaced = sorted((pod.waiting() for pod in chosen), key=_size, reverse=True)
        steps = _in_turn(scheduler, after, [demand, *displaced])
        if steps is not None:
            return _move_plan(state, demand, steps, bound)
    return None


def _pod_sets(candidates: Mapping[str, Sequence[PodDemand]], least: int) -> Iterator[tuple[PodDemand, ...]]:
    """Yield sets of pods on one node, the smallest first, up to a limit."""
    tried = 0
    for count in range(least, max(map(len, candidates.values()), default=0) + 1):
        for pods in candidates.values():
            for chosen in combinations(pods, count):
                tried += 1
                if tried > _MOST_SETS:
                    return
                yield chosen


def _in_turn(scheduler: Scheduler, state: ClusterState, pods: Sequence[PodDemand]) -> Steps | None:
    """Place the pods one after another as kube-scheduler would; return None if a pod fits nowhere."""
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
    moved = [(state.demands[pod.pod.key], node) for pod, node in steps if pod.pod.key != demand.pod.key]
    moves = tuple(Move(pod.pod.key, tuple(state.held(pod)), pod.pod.spec.node_name, node) for pod, node in moved)
    return MovePlan(steps[position][1], moves, position, bound)
