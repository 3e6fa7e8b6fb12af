"""Says of each node whether pods of one kind fit there and how well, and ranks all nodes for pods of one class.

A kind is what one node decides by itself: its labels and taints, ports, resources and devices. Nodes of which the same
is to be said share an entry, so that few entries stand for thousands of nodes (kube-scheduler's equivalence classes);
only nodes that have changed are looked at again. A class is pods of one kind that spread alike. Nodes with the same
entry and the same part in the spread have the same score, so they are ranked as one group, and a pod that is placed
moves one node to another group. What the answers are is said by `Scheduler.place`, which looks at every node for every
pod; a test compares the two.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple, TypeAlias

from dranode.sim.allocator.requests import AllocationError
from dranode.sim.allocator.result import Solution
from dranode.sim.allocator.state import PoolID, PoolState
from dranode.sim.cluster.devices import DeviceAnswers, DeviceDemand
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
    """Return why DynamicResources refuses a node; None if there are devices for the claims, or the attempt ends."""
    if isinstance(solution, AllocationError):
        if solution.scope == "fatal":
            return None
        return Refusal(DEVICES, (solution.message,), solution.detail, hopeless=False)
    return Refusal(DEVICES, (CANNOT_ALLOCATE,), hopeless=False) if solution.picks is None else None


class FittingNode(NamedTuple):
    """A node that a pod fits on, with the raw scores of the plug-ins that ask one node alone.

    Attributes:
        taints: how many taints the pod would rather avoid.
        preference: the weight of the preferred node affinity that holds.
        least_allocated: how much would be left.
        balanced: how even the use of cpu and memory would be.
        devices: the raw score of KEP-4816.
    """

    taints: int
    preference: int
    least_allocated: int
    balanced: int
    devices: int


class RefusingNode(NamedTuple):
    """A node that refuses a pod.

    Attributes:
        refusal: why.
        devices: what the devices lack depends on this, if it is for them; None if it is not.
    """

    refusal: Refusal
    devices: Hashable


class FatalNode(NamedTuple):
    """A node on which the attempt ends for all nodes."""


NodeEntry: TypeAlias = FittingNode | RefusingNode | FatalNode


class _Lasting(NamedTuple):
    """The part of an entry that lasts, whichever pods there are."""

    early: Refusal | None
    late: Refusal | None
    taints: int
    preference: int


class _Known(NamedTuple):
    """The number of an entry, and what it was found out for."""

    info: NodeInfo
    pools: tuple[PoolState, ...]
    number: int


class NodeTable:
    """The nodes as pods of one kind see them.

    Attributes:
        entries: what is said of nodes, by number.
        asks_nothing: whether the pods ask for neither cpu nor memory, so that balance says nothing.
    """

    def __init__(self, pod: SchedulingPod, demand: DeviceDemand | None, devices: DeviceAnswers, minor: int) -> None:
        """Get ready for pods like this one, whose claims ask for `demand`; None if they have none to allocate."""
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
        """Return what the claims ask for."""
        return self._demand

    def entry(self, state: ClusterState, info: NodeInfo) -> int:
        """Return the number of the node's entry as it is in this state."""
        pools = self._devices.states(info.node, state.holdings) if self._demand is not None else ()
        known = self._known.get(info.name)
        if known is not None and known.info is info and known.pools == pools:
            return known.number
        entry = self._look(state, info, pools)
        number = self._numbers.setdefault(entry, len(self.entries))
        if number == len(self.entries):
            self.entries.append(entry)
        self._known[info.name] = _Known(info, pools, number)
        return number

    def _look(self, state: ClusterState, info: NodeInfo, pools: tuple[PoolState, ...]) -> NodeEntry:
        lasting = self._lasting.get(info.name) or self._last(info)
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

    def _last(self, info: NodeInfo) -> _Lasting:
        node = info.node
        early, late = self._filters.lasting_refusal(node), self._filters.late_refusal(node)
        lasting = _Lasting(early, late, disliked_taints(node, self._pod), preference(self._pod, node))
        self._lasting[info.name] = lasting
        return lasting


# The number of an entry of the table, and the part in the spread.
_Key: TypeAlias = tuple[int, SpreadPart | None]


class RefusedNodes(NamedTuple):
    """Nodes that refuse a pod in the same words and for the same numbers.

    Attributes:
        refused: why.
        first: the first of them.
        size: how many they are.
    """

    refused: RefusingNode
    first: str
    size: int


class Best(NamedTuple):
    """The nodes that a pod may go to.

    Attributes:
        feasible: how many nodes it fits on.
        total: the greatest score; 0 if there is one node, which is not scored.
        tied: how many have it.
        first: the first of these, in the order of the nodes; `SHOWN` at most.
    """

    feasible: int
    total: int
    tied: int
    first: tuple[str, ...]


SHOWN: Final = 5


class _Group:
    """Nodes that stand alike, of which the first can be had at once."""

    __slots__ = ("_heap", "members")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self._heap: list[tuple[int, str]] = []

    def add(self, place: int, name: str) -> None:
        self.members.add(name)
        heapq.heappush(self._heap, (place, name))

    def first(self, count: int = 1) -> list[tuple[int, str]]:
        """Return the first of them; those that are gone are forgotten on the way."""
        found: list[tuple[int, str]] = []
        while self._heap and len(found) < count:
            each = heapq.heappop(self._heap)
            if each[1] in self.members and (not found or found[-1] != each):
                found.append(each)
        for each in found:
            heapq.heappush(self._heap, each)
        return found


class NodeRanking:
    """The nodes in groups, as pods of one class see them."""

    def __init__(self, info: PodInfo, table: NodeTable, tally: SpreadTally | None, devices: DeviceAnswers) -> None:
        """Start without nodes; `tally` is None if nothing is spread."""
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
        """Come to a state; return False if more decides there than the groups say.

        So it is where a term of a bound pod's affinity means pods of this class, and where an attempt ends early.
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
        """Return the nodes that a pod may go to; None if it fits nowhere."""
        fitting = {key: entry for key in self._groups if isinstance(entry := self._table.entries[key[0]], FittingNode)}
        if not fitting:
            return None
        totals = self._totals(fitting)
        most = max(totals.values())
        winners = [self._groups[key] for key, total in totals.items() if total == most]
        first = heapq.nsmallest(SHOWN, (each for group in winners for each in group.first(SHOWN)))
        feasible = sum(len(self._groups[key].members) for key in fitting)
        return Best(
            feasible,
            most if feasible > 1 else 0,
            sum(len(group.members) for group in winners),
            tuple(name for _, name in first),
        )

    def refused(self) -> list[RefusedNodes]:
        """Return the nodes that refuse a pod, those of the first node first."""
        refused = []
        for (number, _), group in self._groups.items():
            entry = self._table.entries[number]
            if isinstance(entry, RefusingNode):
                place, name = group.first()[0]
                refused.append((place, RefusedNodes(entry, name, len(group.members))))
        return [each for _, each in sorted(refused, key=lambda pair: pair[0])]

    def _changed(self, state: ClusterState) -> set[str]:
        """Return the nodes of which something else may have to be said, of other clusters too."""
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
        """The weighted scores of the groups, as `scores.totals` has them of single nodes."""
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
