"""Admitted workloads on a fleet: their pods are placed as `dranode.sim.cluster.place` places any."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.resource import AllocationResult, Node, Pod, PodSpec, ResourceClaim
from dranode.driver.core.api.source_document import SourceDocument
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.state import Allocated
from dranode.sim.cluster.place import Fleet
from dranode.sim.cluster.pods import PodPlacement, place_pods
from dranode.sim.cluster.workload import PodWithClaims, read_workload
from dranode.sim.queues.pods import pods_of
from dranode.sim.queues.setup import Setup
from dranode.sim.queues.values import Admitted

_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")


class FleetNodes:
    """Nodes with devices, and the pods that were placed on them.

    Attributes:
        fleet: the nodes as they are now; another value after pods were taken off.
        placements: by workload, where its pods went.
    """

    def __init__(
        self,
        allocator: Allocator,
        nodes: Sequence[Node],
        allocated: Allocated,
        setup: Setup,
        sources: Iterable[SourceDocument],
    ) -> None:
        """Start with what is `allocated` already; claims and templates are among the `sources`."""
        self._allocator = allocator
        self._nodes = tuple(nodes)
        self._allocated = allocated
        self._setup = setup
        self._claims = tuple(source for source in sources if source.kind in _CLAIMS)
        self.fleet = Fleet(allocator, self._nodes, allocated)
        self.placements: dict[str, tuple[PodPlacement, ...]] = {}
        self._has: dict[str, dict[tuple[str, str], AllocationResult]] = {}  # by workload, what its claims got

    def place(self, admitted: Admitted) -> str:
        """Place all pods of a workload, or none.

        Returns:
            Why they have no place, with the first pod that has none; empty if they were placed.

        Raises:
            DocumentError: a pod, claim or template of the workload does not decode, or names what there is not.
        """
        key = admitted.workload.key
        pods = pods_of(self._setup.documents[key], admitted, self._setup.queues.flavors)
        specs = {f"{pod.document['metadata']['namespace']}/{pod.name}": decode(Pod, pod.document).spec for pod in pods}
        features = self._allocator.features
        for name, spec in specs.items():
            if not any(spec.node_selector.items() <= node.metadata.labels.items() for node in self._nodes):
                return f"pod {name}: no node has the labels {_labels(spec)}"
        names = {
            entry.resource_claim_name or entry.resource_claim_template_name
            for spec in specs.values()
            for entry in spec.resource_claims
        }
        claims = (source for source in self._claims if source.name in names)
        held = self._held()
        unplaced = [_settled(pod, held) for pod in read_workload((*claims, *pods), features).pods if pod.name in specs]
        placed = tuple(place_pods(self.fleet, unplaced))
        outcomes = ((item.pod, outcome) for item in placed for outcome in (*item.outcomes, *item.shared))
        error = next((f"pod {pod}: {outcome.error}" for pod, outcome in outcomes if outcome.error), "")
        if error:
            self._rebuild()
        else:
            self.placements[key] = placed
            self._has[key] = _claims_of(unplaced, held) | _got(placed)
        return error

    def release(self, admitted: Admitted) -> None:
        """Take the pods of a workload off again; a claim that workloads share stays until the last of them has left."""
        if self.placements.pop(admitted.workload.key, None):
            del self._has[admitted.workload.key]
            self._rebuild()

    def _held(self) -> dict[tuple[str, str], AllocationResult]:
        """Return what the claims of the placed pods got.

        One that workloads share stays until the last of them has left.
        """
        return {claim: allocation for has in self._has.values() for claim, allocation in has.items()}

    def _rebuild(self) -> None:
        """The fleet can only give, so what remains is given anew."""
        held = self._held().values()
        self.fleet = Fleet(self._allocator, self._nodes, self._allocated.with_allocations(held))


def _settled(pod: PodWithClaims, held: Mapping[tuple[str, str], AllocationResult]) -> PodWithClaims:
    """A pod whose claims, where workloads share them, are where an earlier one has put them."""

    def settled(claim: ResourceClaim) -> ResourceClaim:
        allocation = held.get((claim.metadata.namespace, claim.metadata.name), claim.status.allocation)
        return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=allocation))

    return dataclasses.replace(pod, claims=tuple(settled(claim) for claim in pod.claims))


def _claims_of(
    pods: Iterable[PodWithClaims], held: Mapping[tuple[str, str], AllocationResult]
) -> dict[tuple[str, str], AllocationResult]:
    keys = {(claim.metadata.namespace, claim.metadata.name) for pod in pods for claim in pod.claims}
    return {key: held[key] for key in keys & held.keys()}


def _got(placed: Iterable[PodPlacement]) -> dict[tuple[str, str], AllocationResult]:
    return {
        (outcome.claim.metadata.namespace, outcome.claim.metadata.name): outcome.allocation
        for item in placed
        for outcome in item.outcomes
        if outcome.allocation is not None
    }


def _labels(spec: PodSpec) -> str:
    return ", ".join(f"{key}={value}" for key, value in spec.node_selector.items())
