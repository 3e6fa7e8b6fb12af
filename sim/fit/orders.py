"""Would another order of devices serve better: first fit beside other orders, on a trace of pods that come and go.

kube-scheduler takes the first devices that do, in the order in which a driver publishes them; so a driver's order is a
policy. A trace is a YAML file:

    trace:
    - pod: default/small     # a pod of the documents, by whose pattern pods come
      count: 20              # how many; 1 if left out
      at: 0                  # when the first comes, in seconds
      every: 30              # how long after it the next one comes, and so on
      for: 600               # how long each runs once it is placed; to the end of the trace if left out
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import field

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import DocumentError, UsageError
from dranode.driver.core.api.resource import Device, DeviceAttribute, ResourceSlice
from dranode.sim.cluster.controllers import MOST_PODS
from dranode.sim.fit.demand import PodDemand, copy_of
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState

PUBLISHED: Final = "published"


class TraceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pods of one pattern that come one after another; times are in seconds."""

    pod: str
    count: int = 1
    at: float = 0
    every: float = 0
    lifetime: float | None = field(default=None, name="for")


class _TraceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    trace: tuple[TraceEntry, ...]


@dataclass(frozen=True, slots=True)
class OrderResult:
    """The result of a trace with one order of devices.

    Attributes:
        order: its name.
        pods: how many came.
        waited: how many found no place when they came.
        waiting_seconds: how long those waited that found one later, all together.
        never: how many found none to the end.
    """

    order: str
    pods: int
    waited: int
    waiting_seconds: float
    never: int


def read_trace(document: object) -> tuple[TraceEntry, ...]:
    """The entries of a trace.

    Raises:
        DocumentError: it does not have the form above; says where.
    """
    entries = decode(_TraceFile, document).trace
    if not entries:
        raise DocumentError("no pods come", "trace")
    for index, entry in enumerate(entries):
        if entry.count < 1:
            raise DocumentError(f"{entry.count} pods are too few; 1 is the least", f"trace[{index}].count")
        if entry.count > MOST_PODS:
            raise DocumentError(f"{entry.count} pods are too many; {MOST_PODS} is the most", f"trace[{index}].count")
        if entry.at < 0 or entry.every < 0:
            raise DocumentError("times are not below 0", f"trace[{index}]")
        if entry.lifetime is not None and entry.lifetime <= 0:
            raise DocumentError(f"{entry.lifetime:g} s are no time to run", f"trace[{index}].for")
    return entries


def reordered(slices: Iterable[ResourceSlice], order: str) -> tuple[ResourceSlice, ...]:
    """The slices with the devices of each in another order.

    Orders are `published`, `reversed`, `smallest` and `largest` (by capacity, then by what is drawn from counters),
    `attribute:NAME` (those with one value together) and `spread:NAME` (one of each value in turn).

    Raises:
        UsageError: there is no such order.
    """
    sort = _sort(order)
    return tuple(
        msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, devices=tuple(sort(each.spec.devices))))
        for each in slices
    )


def run_trace(
    scheduler: Scheduler, state: ClusterState, entries: Sequence[tuple[TraceEntry, PodDemand]], order: str
) -> OrderResult:
    """Let the pods of a trace come and go; one that finds no place waits, and is tried again when another ends."""
    run = _Run(scheduler, state)
    for entry, demand in entries:
        for number in range(entry.count):
            run.comes(entry.at + number * entry.every, copy_of(demand, run.pods), entry.lifetime)
    return run.result(order)


class _Run:
    """A trace as it goes."""

    def __init__(self, scheduler: Scheduler, state: ClusterState) -> None:
        self.pods = 0
        self._scheduler = scheduler
        self._state = state
        # When; pods that end come before those that begin; the number orders events of one time.
        self._events: list[tuple[float, int, int]] = []
        self._coming: dict[int, tuple[PodDemand, float | None]] = {}
        self._waiting: list[tuple[float, int]] = []
        self._waited = 0
        self._seconds = 0.0

    def comes(self, when: float, demand: PodDemand, lifetime: float | None) -> None:
        self._coming[self.pods] = (demand, lifetime)
        heapq.heappush(self._events, (when, 1, self.pods))
        self.pods += 1

    def result(self, order: str) -> OrderResult:
        while self._events:
            when, begins, number = heapq.heappop(self._events)
            if begins:
                if not self._placed(when, number):
                    self._waited += 1
                    self._waiting.append((when, number))
            else:
                self._state = self._state.without_pods(frozenset([self._coming[number][0].pod.key]))
                self._retry(when)
        return OrderResult(order, self.pods, self._waited, self._seconds, len(self._waiting))

    def _retry(self, when: float) -> None:
        still = []
        for since, number in self._waiting:
            if self._placed(when, number):
                self._seconds += when - since
            else:
                still.append((since, number))
        self._waiting = still

    def _placed(self, when: float, number: int) -> bool:
        demand, lifetime = self._coming[number]
        choice = self._scheduler.choose(self._state, demand)
        if choice.node is None:
            return False
        self._state = self._scheduler.bind(self._state, demand, choice.node, choice.outcomes)
        if lifetime is not None:
            heapq.heappush(self._events, (when + lifetime, 0, number))
        return True


def _sort(order: str) -> Callable[[Sequence[Device]], Iterable[Device]]:
    name, _, attribute = order.partition(":")
    by_attribute = {"attribute": _together, "spread": _spread}.get(name) if attribute else None
    if by_attribute is not None:
        return lambda devices: by_attribute(devices, attribute)
    sort = _SORTS.get(order)
    if sort is None:
        raise UsageError(f'there is no order "{order}"; there are {", ".join(_SORTS)}, attribute:NAME and spread:NAME')
    return sort


def _size(device: Device) -> tuple[object, ...]:
    capacity = sum(each.value.value for each in device.capacity.values())
    drawn = sum(each.value.value for used in device.consumes_counters for each in used.counters.values())
    return capacity, drawn


_SORTS: Final[Mapping[str, Callable[[Sequence[Device]], Iterable[Device]]]] = {
    PUBLISHED: lambda devices: devices,
    "reversed": lambda devices: devices[::-1],
    "smallest": lambda devices: sorted(devices, key=_size),
    "largest": lambda devices: sorted(devices, key=_size, reverse=True),
}


def _groups(devices: Sequence[Device], attribute: str) -> list[list[Device]]:
    groups: dict[DeviceAttribute | None, list[Device]] = defaultdict(list)
    for device in devices:
        groups[_attribute(device, attribute)].append(device)
    return list(groups.values())


def _attribute(device: Device, name: str) -> DeviceAttribute | None:
    """The attribute by its full name, or by its name without a domain."""
    full = device.attributes.get(name)
    return full or next((value for key, value in device.attributes.items() if key.rpartition("/")[2] == name), None)


def _together(devices: Sequence[Device], attribute: str) -> Iterable[Device]:
    return (device for group in _groups(devices, attribute) for device in group)


def _spread(devices: Sequence[Device], attribute: str) -> Iterable[Device]:
    groups = _groups(devices, attribute)
    longest = max(map(len, groups), default=0)
    return (group[turn] for turn in range(longest) for group in groups if turn < len(group))
