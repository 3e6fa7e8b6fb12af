"""Keeps how the nodes stand with the classes of pods that were asked for, and chooses nodes by it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, TypeVar

from msgspec.structs import replace

from dranode.api.documents import encode_json
from dranode.sim.allocator.outcome import Outcome
from dranode.sim.allocator.picks import Solution
from dranode.sim.cluster.devices import DeviceAnswers, DeviceDemand
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.choice import PodChoice, no_choice
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.node_table import NodeTable
from dranode.sim.fit.reasons import RefusalCase
from dranode.sim.fit.standing import RefusedNodes, Standing
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.snapshot import PodInfo
from dranode.sim.scheduler.spread import SpreadConstraint, preferred_spread, requires_spread
from dranode.sim.scheduler.spread_tally import SpreadTally

T = TypeVar("T")

# So many nodes are kept in all classes together, some hundreds of MiB; the class that was asked for longest ago goes.
_MOST_NODES: Final = 500_000
_LEAST_CLASSES: Final = 16


class Standings:
    """The classes of pods that were asked for."""

    def __init__(self, devices: DeviceAnswers, minor: int) -> None:
        """Start without any."""
        self._devices = devices
        self._minor = minor
        self._tables: OrderedDict[Hashable, NodeTable] = OrderedDict()
        self._standings: OrderedDict[Hashable, tuple[NodeTable, Standing]] = OrderedDict()

    def choice(self, state: ClusterState, demand: PodDemand) -> PodChoice | None:
        """Choose a node; None for pods of which more decides than what is kept.

        Raises:
            AllocationError: a claim cannot be allocated anywhere.
            DocumentError: a selector of the pod is none.
        """
        if _is_tied_to_others(state, demand):
            return None
        table, standing = self._standing(state, demand)
        if not standing.follow(state):
            return None
        best = standing.best()
        if best is None:
            cases = (self._case(state, table, each) for each in standing.refused())
            return no_choice(demand.pod.key, "", cases, len(state.nodes))
        return PodChoice(
            demand.pod.key, best.first[0], best, outcomes=self._outcomes(state, demand, table, best.first[0])
        )

    def _standing(self, state: ClusterState, demand: PodDemand) -> tuple[NodeTable, Standing]:
        devices = self._devices.demand(demand.claims) if demand.claims else None
        constraints, own = preferred_spread(demand.pod, state.snapshot)
        kind = _kind(demand.info, devices)
        key = (kind, _spread(demand.info, constraints, own=own), _relations(state, demand.info))
        most = max(_LEAST_CLASSES, _MOST_NODES // max(len(state.nodes), 1))
        known = self._standings.get(key)
        if known is None:
            table = self._tables.get(kind)
            if table is None:
                table = NodeTable(demand.pod, devices, self._devices, self._minor)
                _keep(self._tables, kind, table, most)
            tally = SpreadTally(demand.pod, constraints, own=own) if constraints else None
            known = (table, Standing(demand.info, table, tally, self._devices))
        _keep(self._standings, key, known, most)
        return known

    def _case(self, state: ClusterState, table: NodeTable, nodes: RefusedNodes) -> RefusalCase:
        if nodes.refused.devices is None or table.demand is None:
            return RefusalCase(nodes.refused.refusal, None, nodes.first, nodes.size)
        asked = (state.nodes[nodes.first].node, table.demand, state.holdings)
        miss, oddities = self._devices.miss(*asked), self._devices.oddities(*asked)
        return RefusalCase(nodes.refused.refusal, miss, nodes.first, nodes.size, oddities)

    def _outcomes(self, state: ClusterState, demand: PodDemand, table: NodeTable, name: str) -> tuple[Outcome, ...]:
        if table.demand is None:
            return ()
        node = state.nodes[name].node
        solution = self._devices.solution(node, table.demand, state.holdings)
        if not isinstance(solution, Solution):
            return ()
        return self._devices.outcomes(node, DeviceDemand(demand.claims, table.demand.requests, b""), solution)


def _is_tied_to_others(state: ClusterState, demand: PodDemand) -> bool:
    """Return whether more decides about the pod than nodes by themselves and what spreads it.

    So it is with affinity to other pods, required spread, claims that are allocated already, and extended resources.
    """
    return bool(
        not demand.info.terms.none
        or demand.extended
        or requires_spread(demand.pod)
        or any(ClaimKey.of(claim) in state.allocations for claim in demand.claims)
    )


def _kind(info: PodInfo, devices: DeviceDemand | None) -> Hashable:
    """Return what is equal for pods of one kind: all of a pod that one node asks for."""
    spec = replace(
        info.pod.spec,
        node_name="",
        containers=tuple(replace(each, image="") for each in info.pod.spec.containers),
        init_containers=tuple(replace(each, image="") for each in info.pod.spec.init_containers),
        resource_claims=(),
        volumes=(),
        priority=None,
        priority_class_name="",
        topology_spread_constraints=(),
    )
    return encode_json(spec), tuple(info.requests.items()), devices.key if devices is not None else None


def _spread(info: PodInfo, constraints: tuple[SpreadConstraint, ...], *, own: bool) -> Hashable:
    """Return what is equal for pods that are spread alike."""
    if not constraints:
        return None
    return info.pod.metadata.namespace, own, tuple(constraint.key for constraint in constraints)


def _relations(state: ClusterState, info: PodInfo) -> Hashable:
    """Return what terms of other pods see of a pod; nothing where no pod has any."""
    if not state.snapshot.with_terms:
        return None
    metadata = info.pod.metadata
    return metadata.namespace, tuple(sorted(metadata.labels.items()))


def _keep(kept: OrderedDict[Hashable, T], key: Hashable, value: T, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
