"""Counts how many more pods like one fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dranode.sim.fit.demand import PodDemand, copy_of
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState

# Where one node's answer depends on others, each pod has to look at all nodes anew.
MOST_TOGETHER: Final = 1_000
MOST_ALONE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Room:
    """The number of pods that fit.

    Attributes:
        count: the number.
        nodes: how many on each node; nodes without any are left out.
        more: whether counting stopped before nothing fitted any more.
        shared: claims that all of them would share, since the pod names them itself.
    """

    count: int
    nodes: Mapping[str, int]
    more: bool = False
    shared: tuple[str, ...] = ()


def room_for(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> Room:
    """Count the pods that fit beside all that is there, the one that is asked about among them.

    Where neither pods nor pools reach beyond a node, each node is filled by itself; else pod after pod goes where
    kube-scheduler would put it.
    """
    if scheduler.far_reaching(state, demand):
        nodes, more = _together(scheduler, state, demand)
    else:
        nodes, more = _alone(scheduler, state, demand)
    named = {entry.name for entry in demand.pod.spec.resource_claims if entry.resource_claim_name is not None}
    shared = tuple(str(key) for entry, key in demand.entries.items() if entry in named)
    return Room(sum(nodes.values()), nodes, more, shared)


def _together(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> tuple[dict[str, int], bool]:
    nodes: Counter[str] = Counter()
    for number in range(MOST_TOGETHER):
        copy = copy_of(demand, number)
        choice = scheduler.choose(state, copy)
        if choice.node is None:
            return dict(nodes), False
        nodes[choice.node] += 1
        state = scheduler.bind(state, copy, choice.node, choice.outcomes)
    return dict(nodes), True


def _alone(scheduler: Scheduler, state: ClusterState, demand: PodDemand) -> tuple[dict[str, int], bool]:
    nodes: dict[str, int] = {}
    number = 0
    for name in scheduler.fits(state, demand, state.nodes):
        begun = number
        while number < MOST_ALONE:
            copy = copy_of(demand, number)
            fits = scheduler.fits(state, copy, [name])
            if name not in fits:
                break
            state = scheduler.bind(state, copy, name, fits[name])
            number += 1
        if number > begun:
            nodes[name] = number - begun
    return nodes, number >= MOST_ALONE
