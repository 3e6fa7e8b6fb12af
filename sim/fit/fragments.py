"""Finds the claims that fragment nodes: the nodes' devices would do for a pod if those claims were elsewhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.choice import Placement
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.scores import DEVICES


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The part of a node that a claim holds.

    Attributes:
        claim: `<namespace>/<name>`.
        pods: the bound pods that use it.
        devices: `<pool>/<device>`, each once.
    """

    claim: str
    pods: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A node that has devices left, too few or not the right ones, and would suit if it were empty.

    Attributes:
        node: its name.
        devices: how many devices it sees.
        held: who holds some of them, in the order of the claims' names.
    """

    node: str
    devices: int
    held: tuple[HeldDevices, ...]


def fragments_of(
    scheduler: Scheduler, state: ClusterState, demand: PodDemand, placement: Placement
) -> tuple[Fragment, ...]:
    """The nodes that refuse the pod for their devices alone, and on which it would fit without the pods there."""
    short = [name for name, refusal in placement.refusals.items() if refusal.plugin == DEVICES]
    fragments = (_fragment(scheduler, state, demand, name) for name in sorted(short))
    return tuple(fragment for fragment in fragments if fragment is not None)


def _fragment(scheduler: Scheduler, state: ClusterState, demand: PodDemand, node: str) -> Fragment | None:
    emptied = state.without_pods(frozenset(state.nodes[node].pods))
    if not scheduler.suits(emptied, demand, node):
        return None
    devices = scheduler.devices_of(state, node)
    holders: dict[ClaimKey, list[str]] = defaultdict(list)
    for pool in {device[0] for device in devices}:
        for holding in state.holdings.pools.get(pool, ()):
            if (pool, holding.result.device) in devices:
                holders[holding.claim].append(f"{pool.pool}/{holding.result.device}")
    held = tuple(
        HeldDevices(str(claim), tuple(sorted(state.users(claim))), tuple(sorted(set(names))))
        for claim, names in sorted(holders.items())
    )
    return Fragment(node, len(devices), held)
