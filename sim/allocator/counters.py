"""Shared counters of partitionable devices (KEP-4815): what is left of them, and what an attempt draws.

Compatibility groups (KEP-5963) are kept with them: devices that draw on one counter set have a group in common.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dranode.api.resource import Device
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate, Pool
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.state import Allocated, Amount, PoolID, PoolState

CounterKey: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class Counters:
    """The counters of a pool, or of all pools of one name, during one attempt.

    Attributes:
        available: what is available by set and name, before the attempt.
        drawn: what the attempt has drawn.
    """

    available: dict[CounterKey, Amount]
    drawn: dict[CounterKey, Amount] = field(default_factory=dict)

    def draw(self, device: Device) -> tuple[CounterKey, Amount] | None:
        """Draw what the device consumes; None, or the first counter that is short, with what is available of it."""
        for key, amount in _consumed(device):
            self.drawn[key] = self.drawn.get(key, 0) + amount
        for key, available in self.available.items():
            if self.drawn.get(key, 0) > available:
                self.give_back(device)
                return key, available - self.drawn.get(key, 0)
        return None

    def give_back(self, device: Device) -> None:
        """Undo `draw`."""
        for key, amount in _consumed(device):
            self.drawn[key] -= amount


# The compatibility groups that devices have in common; None for devices without any.
Groups: TypeAlias = frozenset[str] | None


@dataclass(slots=True)
class CompatibilityGroups:
    """The groups that the devices on each counter set of a pool have in common, during one attempt.

    Attributes:
        common: by counter set; a set of which nothing is drawn has no entry.
    """

    common: dict[str, Groups]

    def join(self, device: Device) -> dict[str, Groups] | None:
        """Add the device: what was common before, to restore; None, and no change, if it goes not with the others."""
        common = dict(self.common)
        for name, groups in _groups(device):
            known = common.get(name)
            if name not in common:
                common[name] = groups
            elif known is not None and groups is not None and known & groups:
                common[name] = known & groups
            elif known is not None or groups is not None:
                return None
        before, self.common = self.common, common
        return before


class CounterLedger:
    """Counters and compatibility groups of all pools during one attempt."""

    def __init__(self, pools: Mapping[PoolID, Pool], allocated: Allocated, features: Features) -> None:
        """Start with what is allocated; nothing is reckoned before it is asked for."""
        self._pools = pools
        self._allocated = allocated
        self._by_name = not features.has(Change.COUNTERS_BY_POOL_ID)
        self._minds_groups = features.device_compatibility_groups
        self._counters: dict[PoolID | str, Counters] = {}
        self._groups: dict[PoolID, CompatibilityGroups] = {}

    def draw(self, candidate: Candidate) -> Drawn | None:
        """Draw what the device consumes; None, and no change, if it cannot be had."""
        groups = self._groups_of(candidate.pool) if self._minds_groups else None
        before = groups.join(candidate.device) if groups is not None else None
        if groups is not None and before is None:
            return None
        counters = self._counters_of(candidate.pool)
        if counters.draw(candidate.device) is not None:
            if groups is not None and before is not None:
                groups.common = before
            return None
        return Drawn(counters, groups, before or {})

    def state(self) -> Hashable:
        """Return what is drawn and which groups are in common, by pool."""
        drawn = (
            (key, counter, amount)
            for key, counters in self._counters.items()
            for counter, amount in counters.drawn.items()
            if amount
        )
        groups = ((pool, *each) for pool, known in self._groups.items() for each in known.common.items())
        return frozenset(drawn), frozenset(groups)

    def _counters_of(self, pool: PoolID) -> Counters:
        key = pool.pool if self._by_name else pool
        counters = self._counters.get(key)
        if counters is None:
            counters = Counters(available_counters(self._pools[pool], self._allocated.pool(pool)))
            self._counters[key] = counters
        return counters

    def _groups_of(self, pool: PoolID) -> CompatibilityGroups:
        groups = self._groups.get(pool)
        if groups is None:
            groups = CompatibilityGroups(common_groups(self._pools[pool], self._allocated.pool(pool)))
            self._groups[pool] = groups
        return groups


@dataclass(frozen=True, slots=True)
class Drawn:
    """The counters that were drawn for one device.

    Attributes:
        counters: from these counters.
        groups: the groups that it joined, if they count.
        before: what these had in common before.
    """

    counters: Counters
    groups: CompatibilityGroups | None
    before: dict[str, Groups]

    def give_back(self, device: Device) -> None:
        """Undo the draw; last in, first out."""
        self.counters.give_back(device)
        if self.groups is not None:
            self.groups.common = self.before


def available_counters(pool: Pool, state: PoolState) -> dict[CounterKey, Amount]:
    """The pool's counters less what its allocated devices consume, on any node; a shared device counts once."""
    available: dict[CounterKey, Amount] = {
        (set_.name, name): counter.value.value
        for set_ in pool.counters.values()
        for name, counter in set_.counters.items()
    }
    for device in _allocated(pool, state):
        for key, amount in _consumed(device):
            if key in available:
                available[key] -= amount
    return available


def common_groups(pool: Pool, state: PoolState) -> dict[str, Groups]:
    """The compatibility groups that the allocated devices of each counter set have in common, on any node."""
    common: dict[str, Groups] = {}
    for device in _allocated(pool, state):
        for name, groups in _groups(device):
            known = common.get(name)
            if name not in common:
                common[name] = groups
            elif known is not None and groups is not None:
                common[name] = known & groups
    return common


def _allocated(pool: Pool, state: PoolState) -> Iterator[Device]:
    for device in (*(candidate.device for candidate in pool.candidates), *pool.elsewhere):
        if device.name in state.devices or device.name in state.shared:
            yield device


def _consumed(device: Device) -> Iterator[tuple[CounterKey, Amount]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (consumption.counter_set, name), counter.value.value


def _groups(device: Device) -> Iterator[tuple[str, Groups]]:
    for consumption in device.consumes_counters:
        yield consumption.counter_set, frozenset(consumption.compatibility_groups) or None
