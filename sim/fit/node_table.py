"""Remembers whether and how well pods of one kind fit on each node, and ranks the nodes for pods of one class.

Pods of one kind ask the same of a single node: labels and taints, ports, resources and devices. Nodes with the same
answer share an entry, so a few entries cover thousands of nodes, and only nodes that changed are evaluated again. Pods
of one class are of one kind and are spread in the same way. Nodes with the same entry and the same part in the spread
have the same score, so they are ranked as one group; placing a pod moves one node to another group.

`Scheduler.place` evaluates every node for every pod and defines the right answer; a test compares the two.
"""

import heapq
from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple, TypeAlias

from dranode.api.resource import PoolID
from dranode.sim.allocator.requests import AllocationError, DeviceDemand
from dranode.sim.allocator.result import Solution
from dranode.sim.allocator.state import PoolState
from dranode.sim.cluster.devices import DeviceAnswers
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.filters import OwnFilters, Refusal
from dranode.sim.scheduler.node_rules import disliked_taints, preference
from dranode.sim.scheduler.pod_affinity import concerns
from dranode.sim.scheduler.resources import ResourceScore, normalized
from dranode.sim.scheduler.scores import DEVICES, WEIGHTS
from dranode.sim.scheduler.snapshot import NodeInfo, PodInfo
from dranode.sim.scheduler.spread import SpreadPart, SpreadTally
from dranode.sim.scheduler.versions import VersionedMap

CANNOT_ALLOCATE: Final = "cannot allocate all claims"


def device_refusal(solution: Solution | AllocationError) -> Refusal | None:
    """Return why DynamicResources refuses a node; None if the claims fit, or if the error ends the whole attempt."""
    if isinstance(solution, AllocationError):
        if solution.scope == "fatal":
            return None
        return Refusal(DEVICES, (solution.message,), solution.detail, hopeless=False)
    return Refusal(DEVICES, (CANNOT_ALLOCATE,), hopeless=False) if solution.picks is None else None


class FittingNode(NamedTuple):
    """A node that fits a pod, with the raw scores of the plug-ins that score a node by itself.

    Attributes:
        taints: the number of PreferNoSchedule taints that the pod does not tolerate.
        preference: the total weight of the preferred node affinity terms that match.
        least_allocated: the score for what would be left.
        balanced: the score for how evenly CPU and memory would be used.
        devices: the raw KEP-4816 score.
    """

    taints: int
    preference: int
    least_allocated: int
    balanced: int
    devices: int


class RefusingNode(NamedTuple):
    """A node that refuses a pod.

    Attributes:
        refusal: the reason.
        devices: everything that the missing devices depend on; None if another plug-in refuses the pod.
    """

    refusal: Refusal
    devices: Hashable


class FatalNode(NamedTuple):
    """A node with an error that ends the attempt for all nodes."""


NodeEntry: TypeAlias = FittingNode | RefusingNode | FatalNode


class _Lasting(NamedTuple):
    """The part of an entry that depends only on the node, not on its pods."""

    early: Refusal | None
    late: Refusal | None
    taints: int
    preference: int


class _Known(NamedTuple):
    """The number of an entry, and the state of the node that it belongs to."""

    info: NodeInfo
    pools: tuple[PoolState, ...]
    number: int


class NodeTable:
    """Whether and how well pods of one kind fit on each node.

    Attributes:
        entries: the distinct answers; a node refers to one by its number.
        asks_nothing: whether the pods request neither CPU nor memory, so that balance is not scored.
    """

    def __init__(self, pod: SchedulingPod, demand: DeviceDemand | None, devices: DeviceAnswers, minor: int) -> None:
        """Prepare for pods like this one with the device requests `demand`; None if they have no claim to allocate."""
        resources = ResourceScore.of(pod, minor)
        self.entries: list[NodeEntry] = []
        self.asks_nothing = resources.asks_nothing
        self._pod = pod
        self._demand = demand
        self._devices = devices
        self._filters = OwnFilters(pod, minor)
        self._resources = resources
        self._numbers: dict[NodeEntry, int] = {}
        self._lasting: dict[str, _Lasting] = {}
        self._known: dict[str, _Known] = {}

    @property
    def demand(self) -> DeviceDemand | None:
        """Return the device requests of the claims."""
        return self._demand

    def entry(self, state: ClusterState, info: NodeInfo) -> int:
        """Return the number of the node's entry in this state."""
        pools = self._devices.states(info.node, state.holdings) if self._demand is not None else ()
        known = self._known.get(info.name)
        if known is not None and known.info is info and known.pools == pools:
            return known.number
        entry = self._evaluate(state, info, pools)
        number = self._numbers.setdefault(entry, len(self.entries))
        if number == len(self.entries):
            self.entries.append(entry)
        self._known[info.name] = _Known(info, pools, number)
        return number

    def _evaluate(self, state: ClusterState, info: NodeInfo, pools: tuple[PoolState, ...]) -> NodeEntry:
        lasting = self._lasting.get(info.name) or self._evaluate_node(info)
        refusal = lasting.early or self._filters.passing_refusal(info)
        if refusal is not None:
            return RefusingNode(refusal, None)
        raw = 0
        if self._demand is not None:
            question = self._devices.question_of(info.node, self._demand, pools)
            solution = self._devices.solution(info.node, self._demand, state.holdings, question)
            refusal = device_refusal(solution)
            if refusal is not None:
                return RefusingNode(refusal, question)
            if isinstance(solution, AllocationError):
                return FatalNode()
            raw = self._devices.raw_score(self._demand, solution)
        if lasting.late is not None:
            return RefusingNode(lasting.late, None)
        balanced = 0 if self.asks_nothing else self._resources.balanced(info)
        least_allocated = self._resources.least_allocated(info)
        return FittingNode(lasting.taints, lasting.preference, least_allocated, balanced, raw)

    def _evaluate_node(self, info: NodeInfo) -> _Lasting:
        node = info.node
        early, late = self._filters.lasting_refusal(node), self._filters.late_refusal(node)
        lasting = _Lasting(early, late, disliked_taints(node, self._pod), preference(self._pod, node))
        self._lasting[info.name] = lasting
        return lasting


# The number of an entry of the table, and the part in the spread.
_Key: TypeAlias = tuple[int, SpreadPart | None]


class RefusedNodes(NamedTuple):
    """Nodes that refuse a pod for the same reason, with the same numbers.

    Attributes:
        refused: the reason.
        first: the first of these nodes.
        size: the number of nodes.
    """

    refused: RefusingNode
    first: str
    size: int


class Best(NamedTuple):
    """The nodes that kube-scheduler may choose for a pod.

    Attributes:
        feasible: how many nodes fit.
        total: the highest score; 0 if only one node fits, which is not scored.
        tied: how many nodes have it.
        first: the first of these, in the order of the nodes, at most `SHOWN`.
    """

    feasible: int
    total: int
    tied: int
    first: tuple[str, ...]


SHOWN: Final = 5


class _Group:
    """Nodes with the same score. Names that left stay in the heap until `first` pops them."""

    __slots__ = ("_heap", "members")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self._heap: list[tuple[int, str]] = []

    def add(self, place: int, name: str) -> None:
        self.members.add(name)
        heapq.heappush(self._heap, (place, name))

    def first(self, count: int = 1) -> list[tuple[int, str]]:
        """Return the first members; drop names that left on the way, and repeated ones."""
        first: list[tuple[int, str]] = []
        while self._heap and len(first) < count:
            entry = heapq.heappop(self._heap)
            if entry[1] in self.members and (not first or first[-1] != entry):
                first.append(entry)
        for entry in first:
            heapq.heappush(self._heap, entry)
        return first


class NodeRanking:
    """The nodes in groups of equal score, for pods of one class."""

    def __init__(self, info: PodInfo, table: NodeTable, tally: SpreadTally | None, devices: DeviceAnswers) -> None:
        """Start without nodes; `tally` is None if the pods are not spread."""
        self._info = info
        self._table = table
        self._tally = tally
        self._devices = devices
        self._nodes: VersionedMap[str, NodeInfo] = VersionedMap()
        self._pools: VersionedMap[PoolID, PoolState] = VersionedMap()
        self._places: dict[str, int] = {}
        self._key_of: dict[str, _Key] = {}
        self._groups: dict[_Key, _Group] = {}
        self._concerned: set[str] = set()

    def follow(self, state: ClusterState) -> bool:
        """Update the groups to a state; return False if the groups cannot answer there.

        They cannot if an affinity term of a bound pod selects pods of this class, or if an error ends the attempt.
        """
        changed = self._changed(state)
        if any(name not in self._places for name in changed):
            for name in state.nodes:
                self._places.setdefault(name, len(self._places))
        for name in changed:
            self._enter(state, name)
        self._nodes, self._pools = state.nodes, state.holdings.states
        return not self._concerned and not any(
            isinstance(self._table.entries[number], FatalNode) for number, _ in self._groups
        )

    def best(self) -> Best | None:
        """Return the nodes that kube-scheduler may choose; None if the pod fits nowhere."""
        fitting = {key: entry for key in self._groups if isinstance(entry := self._table.entries[key[0]], FittingNode)}
        if not fitting:
            return None
        totals = self._totals(fitting)
        most = max(totals.values())
        winners = [self._groups[key] for key, total in totals.items() if total == most]
        first = heapq.nsmallest(SHOWN, (entry for group in winners for entry in group.first(SHOWN)))
        feasible = sum(len(self._groups[key].members) for key in fitting)
        return Best(
            feasible,
            most if feasible > 1 else 0,
            sum(len(group.members) for group in winners),
            tuple(name for _, name in first),
        )

    def refused(self) -> list[RefusedNodes]:
        """Return the groups of nodes that refuse a pod, in the order of their first nodes."""
        refused = []
        for (number, _), group in self._groups.items():
            entry = self._table.entries[number]
            if isinstance(entry, RefusingNode):
                place, name = group.first()[0]
                refused.append((place, RefusedNodes(entry, name, len(group.members))))
        return [nodes for _, nodes in sorted(refused, key=lambda pair: pair[0])]

    def _changed(self, state: ClusterState) -> set[str]:
        """Return the nodes whose entry may have changed; all nodes if the states belong to different clusters."""
        nodes = state.nodes.differing(self._nodes)
        pools = state.holdings.states.differing(self._pools)
        if nodes is None or pools is None:
            return {*state.nodes, *self._key_of}
        return {*nodes, *(name for pool in pools for name in self._devices.nodes_with(pool))}

    def _enter(self, state: ClusterState, name: str) -> None:
        info = state.nodes.get(name)
        key = self._key(state, info) if info is not None else None
        before = self._key_of.get(name)
        if key == before:
            return
        if before is not None:
            group = self._groups[before]
            group.members.discard(name)
            if not group.members:
                del self._groups[before]
        if key is None:
            self._key_of.pop(name, None)
            self._concerned.discard(name)
            return
        self._key_of[name] = key
        self._groups.setdefault(key, _Group()).add(self._places[name], name)

    def _key(self, state: ClusterState, info: NodeInfo) -> _Key:
        if info.with_terms and concerns(info.with_terms, self._info.pod, state.snapshot.namespaces):
            self._concerned.add(info.name)
        elif self._concerned:
            self._concerned.discard(info.name)
        return self._table.entry(state, info), self._tally.part(info) if self._tally is not None else None

    def _totals(self, fitting: Mapping[_Key, FittingNode]) -> dict[_Key, int]:
        """Return the weighted scores of the groups, as `scores.totals` does for single nodes."""
        tables: dict[str, Mapping[_Key, int]] = {
            "TaintToleration": normalized({key: entry.taints for key, entry in fitting.items()}, reverse=True),
            "NodeResourcesFit": {key: entry.least_allocated for key, entry in fitting.items()},
            "NodeAffinity": normalized({key: entry.preference for key, entry in fitting.items()}),
            "NodeResourcesBalancedAllocation": {key: entry.balanced for key, entry in fitting.items()},
            DEVICES: normalized({key: entry.devices for key, entry in fitting.items()}),
        }
        if self._tally is not None:
            parts = {key: (key[1], len(self._groups[key].members)) for key in fitting if key[1] is not None}
            tables["PodTopologySpread"] = self._tally.scores(parts)
        return {key: sum(WEIGHTS[plugin] * table[key] for plugin, table in tables.items()) for key in fitting}
