"""Proves a shape on a fleet: the allocator gives its claims until no more fit, and what each got is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dranode.api.resource import AllocationResult, ObjectMeta, ResourceClaim
from dranode.driver.claims.allocation import readable_results
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.state import Allocated, PoolState
from dranode.sim.bundle.groups import BundledDevice, shared_values
from dranode.sim.bundle.kinds import DeviceKind
from dranode.sim.bundle.manifests import spec_of
from dranode.sim.bundle.shapes import Shape
from dranode.sim.cluster.views import View

# Nobody asks for more of one node, and each costs a search.
_MOST_ON_A_NODE: Final = 512


@dataclass(frozen=True, slots=True)
class Grounds:
    """The fleet that shapes are proved on.

    Attributes:
        allocator: the fleet's allocator.
        views: its nodes.
        devices: its devices by driver, pool and name.
        allocated: what claims have already.
    """

    allocator: Allocator
    views: Sequence[View]
    devices: Mapping[tuple[str, str, str], BundledDevice]
    allocated: Allocated


@dataclass(frozen=True, slots=True)
class Proof:
    """The allocator's answer about a shape.

    Attributes:
        nodes: how many claims fit at once on each node; nodes on which none fits are left out.
        problem: why it is not proved; empty if it is.
        capped: whether counting stopped on a node before nothing fitted any more.
    """

    nodes: Mapping[str, int]
    problem: str = ""
    capped: bool = False

    @property
    def count(self) -> int:
        """Return how many claims fit at once."""
        return sum(self.nodes.values())


def prove(shape: Shape, classes: Mapping[DeviceKind, str], grounds: Grounds) -> Proof:
    """Allocate claims of the shape on one node after another; `classes` has the class of each kind of device."""
    allocated = grounds.allocated
    nodes: dict[str, int] = {}
    known: dict[int, int] = {}
    why = ""
    claim = ResourceClaim(metadata=ObjectMeta(name=shape.name, namespace="default"), spec=spec_of(shape, classes))
    for view in grounds.views:
        # Nodes that differ by name alone have room for as many.
        alike = not view.shared and not any(allocated.pool(pool.id) != PoolState() for pool in view.pools)
        if not alike or view.kind not in known:
            count, after = 0, allocated
            while count < _MOST_ON_A_NODE:
                (outcome,) = grounds.allocator.allocate([claim], view.node, after)
                if outcome.allocation is None:
                    why = outcome.error or why
                    break
                problem = _misaligned(shape, outcome.allocation, grounds.devices)
                if problem:
                    return Proof({}, problem)
                count, after = count + 1, after.with_allocations([outcome.allocation])
            known[view.kind] = count
            if view.shared:
                allocated = after
        if known[view.kind]:
            nodes[view.node.metadata.name] = known[view.kind]
    return Proof(nodes, "" if nodes else why, capped=_MOST_ON_A_NODE in nodes.values())


def _misaligned(
    shape: Shape, allocation: AllocationResult, devices: Mapping[tuple[str, str, str], BundledDevice]
) -> str:
    """Return which alignment the devices of an allocation do not keep; empty if they keep all."""
    given: dict[str, list[BundledDevice]] = {}
    for result in readable_results(allocation):
        given.setdefault(result.request, []).append(devices[result.driver, result.pool, result.device])
    for alignment in shape.alignments:
        together = [each for request in alignment.requests for each in given.get(request, ())]
        if not shared_values(together, alignment.attribute):
            return f"what it was given does not share {alignment.attribute}"
    return ""
