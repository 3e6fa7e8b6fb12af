"""Shared counters of partitionable devices (KEP-4815): what is left of them, and what an attempt draws.

kube-scheduler 1.36 keeps both by pool name, without the driver; that is kept here, as it decides what people get.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from dranode.driver.core.api.resource import Device
from dranode.sim.allocator.pools import Pool
from dranode.sim.allocator.state import Amount, PoolState

CounterKey: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class Counters:
    """The counters of all pools of one name during one attempt.

    Attributes:
        left: what is left by set and name, before the attempt.
        drawn: what the attempt has drawn.
    """

    left: dict[CounterKey, Amount]
    drawn: dict[CounterKey, Amount] = field(default_factory=dict)

    def draw(self, device: Device) -> tuple[CounterKey, Amount] | None:
        """Draw what the device consumes; None, or the first counter that is short, with what is left of it."""
        for key, amount in _consumed(device):
            self.drawn[key] = self.drawn.get(key, 0) + amount
        for key, left in self.left.items():
            if self.drawn.get(key, 0) > left:
                self.give_back(device)
                return key, left - self.drawn.get(key, 0)
        return None

    def give_back(self, device: Device) -> None:
        """Undo `draw`."""
        for key, amount in _consumed(device):
            self.drawn[key] -= amount


def counters_left(pool: Pool, state: PoolState) -> dict[CounterKey, Amount]:
    """The pool's counters less what its allocated devices consume, on any node; a shared device counts once."""
    left: dict[CounterKey, Amount] = {
        (set_.name, name): counter.value.value
        for set_ in pool.counters.values()
        for name, counter in set_.counters.items()
    }
    for device in (*(candidate.device for candidate in pool.candidates), *pool.elsewhere):
        if device.name in state.devices or device.name in state.shared:
            for key, amount in _consumed(device):
                if key in left:
                    left[key] -= amount
    return left


def _consumed(device: Device) -> Iterable[tuple[CounterKey, Amount]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (consumption.counter_set, name), counter.value.value
