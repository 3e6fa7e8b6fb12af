"""A cluster as its dump describes it: all that decides where a pod can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final

from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import (
    DeviceClaim,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.manifests import by_key, check_manifests, decoded, decoded_claims
from dranode.sim.cluster.pod_claims import PodGroup
from dranode.sim.scheduler.amounts import (
    PriorityClass,
    check_node_amounts,
    check_pod_amounts,
    with_defaults,
)
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from dranode.sim.scheduler.terms import LabeledObject, Namespaces, Owners

# What kubectl has to get for a whole answer, and what is not known without it.
NEEDED: Final[Mapping[str, str]] = {
    "Namespace": "the labels of namespaces, which a namespaceSelector asks for",
    "Service": "which pods a Service spreads",
    "ReplicaSet": "which pods a ReplicaSet spreads",
    "StatefulSet": "which pods a StatefulSet spreads",
}
# What a cluster is asked for. Without the first nothing can be said; what the others would have said is noted.
ESSENTIAL_KINDS: Final = ("Node", "Pod", "ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate")
LIVE_KINDS: Final = (
    *ESSENTIAL_KINDS,
    "Namespace",
    "Service",
    "ReplicationController",
    "ReplicaSet",
    "StatefulSet",
    "PriorityClass",
    "DeviceTaintRule",
)


def live_kinds(features: Features) -> tuple[str, ...]:
    """Return the kinds that a cluster is asked for; PodGroups where they have claims."""
    return (*LIVE_KINDS, "PodGroup") if features.workload_resource_claims else LIVE_KINDS


@dataclass(frozen=True)
class ClusterDump:
    """The documents of a cluster, sorted out.

    Attributes:
        nodes: in the order of the documents.
        pods: those that have not ended, with what the API server fills in.
        claims: by namespace and name.
        templates: likewise.
        slices: all ResourceSlices.
        classes: all DeviceClasses.
        namespaces: the labels of namespaces.
        owners: what makes pods, and Services.
        kinds: the kinds of which objects were looked for and may be there.
        rules: all DeviceTaintRules.
        groups: all PodGroups.
    """

    nodes: tuple[SchedulingNode, ...]
    pods: tuple[SchedulingPod, ...]
    claims: Mapping[ClaimKey, ResourceClaim]
    templates: Mapping[ClaimKey, ResourceClaimTemplate]
    slices: tuple[ResourceSlice, ...]
    classes: tuple[DeviceClass, ...]
    namespaces: Namespaces
    owners: Owners
    kinds: frozenset[str]
    rules: tuple[DeviceTaintRule, ...] = ()
    groups: Mapping[ClaimKey, PodGroup] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def asked(self) -> Iterator[DeviceClaim]:
        """Return what all claims and templates ask for."""
        yield from (claim.spec.devices for claim in self.claims.values())
        yield from (template.spec.spec.devices for template in self.templates.values())

    @cached_property
    def images(self) -> Mapping[str, int]:
        """Return on how many nodes each image is, by each of its names."""
        return Counter(
            name for node in self.nodes for name in {name for image in node.status.images for name in image.names}
        )

    @cached_property
    def least_important(self) -> int | None:
        """Return the least priority of a pod that has a node; None if none has."""
        return min((pod.priority for pod in self.pods if pod.spec.node_name), default=None)

    @property
    def waiting(self) -> tuple[SchedulingPod, ...]:
        """Return the pods that are bound to no node, as the scheduler takes them: by priority, then by age."""
        pods = [pod for pod in self.pods if not pod.spec.node_name]
        # A pod of a file has no age; it comes after those of the cluster, in the order of the files.
        return tuple(sorted(pods, key=lambda pod: (-pod.priority, pod.metadata.creation_timestamp or "~")))


def read_dump(sources: Sequence[SourceDocument], kinds: Iterable[str] = ()) -> ClusterDump:
    """Sort out the documents of a dump; kinds that do not matter are passed over.

    `kinds` are those of which all objects are among the documents, though there may be none.

    Raises:
        DocumentError: a document does not decode, or two have one name; says where.
    """
    check_manifests(sources)
    priorities = {priority.metadata.name: priority for _, priority in decoded(sources, PriorityClass)}
    pods = by_key(decoded(sources, SchedulingPod, "Pod", check_pod_amounts))
    return ClusterDump(
        tuple(_named_nodes(decoded(sources, SchedulingNode, "Node", check_node_amounts))),
        tuple(with_defaults(pod, priorities) for pod in pods.values() if not pod.finished),
        by_key(decoded_claims(sources)),
        by_key(decoded(sources, ResourceClaimTemplate)),
        tuple(slice_ for _, slice_ in decoded(sources, ResourceSlice)),
        tuple(device_class for _, device_class in decoded(sources, DeviceClass)),
        {each.metadata.name: each.metadata.labels for _, each in decoded(sources, LabeledObject, "Namespace")},
        Owners(sources),
        frozenset([*kinds, *(source.kind for source in sources)]),
        taint_rules(sources),
        by_key(decoded(sources, PodGroup)),
    )


def _named_nodes(documents: Iterable[tuple[SourceDocument, SchedulingNode]]) -> list[SchedulingNode]:
    names: set[str] = set()
    for source, node in documents:
        if node.metadata.name in names:
            raise DocumentError(f"{source.place}: metadata.name: there is already a Node {node.metadata.name}")
        names.add(node.metadata.name)
    return [node for _, node in documents]
