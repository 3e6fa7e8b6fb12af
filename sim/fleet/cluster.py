"""An imagined cluster: the nodes of a nodes.yaml as the source of a dump, beside the objects of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from dranode.api.manifests import SourceDocument
from dranode.api.quantity import Quantity
from dranode.api.resource import ResourceSlice
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.workload import PodWithClaims, WorkloadDocuments
from dranode.sim.fit.choice import PodChoice
from dranode.sim.fit.demand import PodDemand, demand_for_claim, demand_of
from dranode.sim.fit.dump import LIVE_KINDS, ClusterDump, read_dump
from dranode.sim.fit.notes import cluster_notes, pod_notes
from dranode.sim.scheduler.documents import SchedulingNode
from dranode.sim.scheduler.requests import CPU, MEMORY, STORAGE

# Where a nodes.yaml does not say how much of these a node has, there is more than any pods ask for. It is so much that
# what they take changes no score.
_UNLIMITED: Final = {CPU: Quantity("1M"), MEMORY: Quantity("1Ei"), STORAGE: Quantity("1Ei")}


def imagined_dump(
    nodes: Iterable[SchedulingNode],
    slices: Iterable[ResourceSlice],
    sources: Iterable[SourceDocument],
    workload: WorkloadDocuments,
) -> ClusterDump:
    """A cluster of these nodes with the objects of some documents, which are all that there are.

    Args:
        nodes: as a nodes.yaml describes them.
        slices: what they publish.
        sources: the documents; their own Nodes and ResourceSlices are of another cluster and are passed over.
        workload: the same documents as they are read for their pods and claims.

    Raises:
        DocumentError: a document does not decode; says where.
    """
    dump = read_dump([source for source in sources if source.kind not in ("Node", "ResourceSlice")], LIVE_KINDS)
    return replace(dump, nodes=tuple(map(_unlimited, nodes)), slices=tuple(slices), classes=workload.classes)


def demands_in(pods: Iterable[PodWithClaims], dump: ClusterDump, features: Features) -> tuple[PodDemand, ...]:
    """The pods that have not ended, in the order in which kube-scheduler takes them.

    A claim that no pod uses has the simplest pod that would; where it is allocated already, there is nothing to ask.

    Raises:
        DocumentError: a selector of a pod is none.
    """
    pods = tuple(pods)
    known = {pod.key: pod for pod in dump.pods}
    taken = {pod.name for pod in pods if pod.pod is not None}
    demands = []
    for pod in pods:
        if pod.pod is None:
            if any(claim.status.allocation is None for claim in pod.claims):
                demands.append(demand_for_claim(pod, taken, features))
        elif not pod.pod.finished:
            demand = demand_of(known.get(pod.name, pod.pod), dump, features)
            demands.append(replace(demand, claims=pod.claims))
    return tuple(sorted(demands, key=_turn))


def imagined_notes(nodes: Sequence[SchedulingNode], dump: ClusterDump, demands: Sequence[PodDemand]) -> Iterator[str]:
    """Return what the placement does not rest on, one sentence each; `nodes` are as their nodes.yaml describes them."""
    yield from cluster_notes(dump)
    for resource in _UNLIMITED:
        node = next((node.metadata.name for node in nodes if resource not in node.status.allocatable), None)
        asking = next((demand.pod.key for demand in demands if demand.info.requests.get(resource)), None)
        if node is not None and asking is not None:
            yield (
                f"node {node} does not say how much {resource} it has, of which pod {asking} asks some: it counts as "
                "enough there; say it in nodes.yaml: allocatable: {cpu: 30, memory: 120Gi}"
            )
    noted: dict[str, list[str]] = {}
    for demand in demands:
        for note in pod_notes(dump, demand, PodChoice(demand.pod.key, None)):
            noted.setdefault(note, []).append(demand.pod.key)
    for note, pods in noted.items():
        more = f" and {len(pods) - 1} more" if pods[1:] else ""
        yield f"pod {pods[0]}{more}: {note}"


def _unlimited(node: SchedulingNode) -> SchedulingNode:
    allocatable = {**_UNLIMITED, **node.status.allocatable}
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, allocatable=allocatable))


def _turn(demand: PodDemand) -> tuple[int, str]:
    return -demand.pod.priority, demand.pod.metadata.creation_timestamp or "~"
