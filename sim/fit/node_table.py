"""Says of each node whether pods of one kind fit there and how well, and asks again only of nodes that have changed.

A kind is what one node decides by itself: its labels and taints, ports, resources and devices. Nodes of which the same
is to be said share an entry, so that few entries stand for thousands of nodes (kube-scheduler's equivalence classes).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeAlias

from dranode.sim.allocator.outcome import AllocationError
from dranode.sim.allocator.state import PoolState
from dranode.sim.cluster.devices import DeviceAnswers, DeviceDemand
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.filters import OwnFilters, Refusal
from dranode.sim.scheduler.node_affinity import preference
from dranode.sim.scheduler.resources import ResourceScore
from dranode.sim.scheduler.scores import DEVICES
from dranode.sim.scheduler.snapshot import NodeInfo
from dranode.sim.scheduler.taints import disliked_taints

CANNOT_ALLOCATE: Final = "cannot allocate all claims"


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
            solution = self._devices.answer(question, info.node, self._demand, state.holdings)
            if isinstance(solution, AllocationError):
                if solution.scope == "fatal":
                    return FatalNode()
                return RefusingNode(Refusal(DEVICES, (solution.message,), solution.detail, hopeless=False), question)
            if solution.picks is None:
                return RefusingNode(Refusal(DEVICES, (CANNOT_ALLOCATE,), hopeless=False), question)
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
