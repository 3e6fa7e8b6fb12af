"""Nodes for queues: a number of pods for each flavor."""

from collections.abc import Mapping

from dranode.sim.queues.values import Admitted


class PodSlots:
    """Holds a number of pods for each flavor; a flavor without a number holds any number.

    Attributes:
        taken: each workload's pods by flavor.
    """

    def __init__(self, slots: Mapping[str, int] | None = None) -> None:
        self.slots = slots or {}
        self.taken: dict[str, dict[str, int]] = {}

    def place(self, admitted: Admitted) -> str:
        wanted: dict[str, int] = {}
        for name, flavors in admitted.flavors.items():
            for flavor in set(flavors.values()):
                wanted[flavor] = wanted.get(flavor, 0) + admitted.counts[name]
        for flavor, pods in wanted.items():
            free = self.slots.get(flavor, pods) - sum(taken.get(flavor, 0) for taken in self.taken.values())
            if flavor in self.slots and pods > free:
                return f"{pods} pods, but {flavor} has room for {free}"
        self.taken[admitted.workload.key] = wanted
        return ""

    def release(self, admitted: Admitted) -> None:
        self.taken.pop(admitted.workload.key, None)
