"""Finds the pods that would have to go so that another fits: as few as can be, and of these the least important."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

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
        result[name] = tuple(pod for pod in pods if may_go(pod.pod, demand.pod.priority))
    return result


def may_go(pod: SchedulingPod, priority: int) -> bool:
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
