"""Counts what a pod asks of a node's devices: its claims, and one for extended resources that devices stand for."""

from __future__ import annotations

from collections.abc import Sequence

from dranode.api.resource import ResourceClaim
from dranode.sim.cluster.devices import DeviceAnswers, DeviceDemand
from dranode.sim.cluster.extended import backed_here, special_claim
from dranode.sim.fit.demand import PodDemand
from dranode.sim.scheduler.snapshot import NodeInfo


class DevicesOn:
    """Asked once for nodes that have the same extended resources of their own."""

    def __init__(self, answers: DeviceAnswers, demand: PodDemand, claims: Sequence[ResourceClaim]) -> None:
        """Look at the claims that are not allocated.

        Raises:
            AllocationError: one cannot be allocated anywhere.
        """
        self._answers = answers
        self._pod = demand
        self._claims = tuple(claims)
        self._demands: dict[tuple[str, ...], DeviceDemand | None] = {(): answers.demand(claims) if claims else None}

    @property
    def any(self) -> bool:
        """Return whether devices are asked for on any node."""
        return bool(self._claims or self._pod.extended)

    def on(self, info: NodeInfo) -> DeviceDemand | None:
        """Return what is asked there; None if nothing is."""
        extended = backed_here(self._pod.extended, info.allocatable) if self._pod.extended else {}
        key = tuple(sorted(extended))
        if key not in self._demands:
            claims = (*self._claims, special_claim(self._pod.pod, extended))
            self._demands[key] = self._answers.demand(claims)
        return self._demands[key]
