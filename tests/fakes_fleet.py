"""A fleet for queues: nodes are a number of pods for each flavor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dranode.driver.local.queues.values import Admitted


@dataclass(frozen=True)
class PodSlots:
    """Holds so many pods for each flavor; a flavor that is not named holds any number.

    Attributes:
        taken: by workload, its pods by flavor.
    """

    slots: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def place(self, admitted: Admitted) -> tuple[PodSlots, str]:
        wanted: dict[str, int] = {}
        for name, flavors in admitted.flavors.items():
            for flavor in set(flavors.values()):
                wanted[flavor] = wanted.get(flavor, 0) + admitted.counts[name]
        for flavor, pods in wanted.items():
            free = self.slots.get(flavor, pods) - sum(taken.get(flavor, 0) for taken in self.taken.values())
            if flavor in self.slots and pods > free:
                return self, f"{pods} pods, but {flavor} has room for {free}"
        return replace(self, taken={**self.taken, admitted.workload.key: wanted}), ""

    def release(self, admitted: Admitted) -> PodSlots:
        left = {key: pods for key, pods in self.taken.items() if key != admitted.workload.key}
        assert len(left) < len(self.taken), f"{admitted.workload.key} was never placed"
        return replace(self, taken=left)
