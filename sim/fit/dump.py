"""The documents of a cluster that decide where a pod can run."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final

from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceClaim, DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.manifests import by_key, check_manifests, decoded, decoded_claims
from dranode.sim.cluster.pod_claims import PodGroup
from dranode.sim.scheduler.amounts import PriorityClass, check_node_amounts, check_pod, with_defaults
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from dranode.sim.scheduler.terms import LabeledObject, Namespaces, Owners

# Kinds that kubectl has to dump for a complete answer, and what is unknown without them.
NEEDED: Final[Mapping[str, str]] = {
    "Namespace": "the labels of namespaces, which a namespaceSelector matches",
    "Service": "which pods a Service spreads",
    "ReplicaSet": "which pods a ReplicaSet spreads",
    "StatefulSet": "which pods a StatefulSet spreads",
}
# Kinds that are read from a cluster. Without the essential ones there is no answer; for the others, a note is enough.
ESSENTIAL_KINDS: Final = ("Node", "Pod", "ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate")
LIVE_KINDS: Final = (
    *ESSENTIAL_KINDS,
    "Namespace",
    "Service",
    "ReplicationController",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "PriorityClass",
    "DeviceTaintRule",
)


def live_kinds(features: Features) -> tuple[str, ...]:
    """Return the kinds to read from a cluster; PodGroups only where they can have claims."""
    return (*LIVE_KINDS, "PodGroup") if features.workload_resource_claims else LIVE_KINDS


@dataclass(frozen=True)
class ClusterDump:
    """The documents of a cluster by kind.

    Attributes:
        nodes: in the order of the documents.
        pods: the pods that have not finished, with the API server's defaults.
        claims: by namespace and name.
        templates: by namespace and name.
        slices: all ResourceSlices.
        classes: all DeviceClasses.
        namespaces: the labels of namespaces.
        owners: controllers of pods, and Services.
        kinds: the kinds that were read or occur in the documents; other kinds may exist in the cluster unseen.
        rules: all DeviceTaintRules.
        groups: all PodGroups.
        daemon_sets: the documents of all DaemonSets.
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
    daemon_sets: tuple[SourceDocument, ...] = ()

    @property
    def device_claims(self) -> Iterator[DeviceClaim]:
        """Yield the requests and constraints of all claims and templates."""
        yield from (claim.spec.devices for claim in self.claims.values())
        yield from (template.spec.spec.devices for template in self.templates.values())

    @cached_property
    def images(self) -> Mapping[str, int]:
        """Return how many nodes have each image, by each of its names."""
        return Counter(
            name for node in self.nodes for name in {name for image in node.status.images for name in image.names}
        )

    @cached_property
    def least_important(self) -> int | None:
        """Return the lowest priority of the bound pods; None without any."""
        return min((pod.priority for pod in self.pods if pod.spec.node_name), default=None)

    @property
    def waiting(self) -> tuple[SchedulingPod, ...]:
        """Return the pods without a node in the order of the scheduling queue: by priority, then by age."""
        pods = [pod for pod in self.pods if not pod.spec.node_name]
        # Pods of files have no creation time; they follow the pods of the cluster, in the order of the files.
        return tuple(sorted(pods, key=lambda pod: (-pod.priority, pod.metadata.creation_timestamp or "~")))


def read_dump(sources: Sequence[SourceDocument], kinds: Iterable[str] = ()) -> ClusterDump:
    """Decode the documents of a dump; other kinds are ignored.

    `kinds` are the kinds that were read completely, even if the cluster has no object of them.

    Raises:
        DocumentError: a document does not decode, or two have the same name; names the place.
    """
    check_manifests(sources)
    priorities = {priority.metadata.name: priority for _, priority in decoded(sources, PriorityClass)}
    pods = by_key(decoded(sources, SchedulingPod, "Pod", check_pod))
    return ClusterDump(
        tuple(_named_nodes(decoded(sources, SchedulingNode, "Node", check_node_amounts))),
        tuple(with_defaults(pod, priorities) for pod in pods.values() if not pod.finished),
        by_key(decoded_claims(sources)),
        by_key(decoded(sources, ResourceClaimTemplate)),
        tuple(slice_ for _, slice_ in decoded(sources, ResourceSlice)),
        tuple(device_class for _, device_class in decoded(sources, DeviceClass)),
        {item.metadata.name: item.metadata.labels for _, item in decoded(sources, LabeledObject, "Namespace")},
        Owners(sources),
        frozenset([*kinds, *(source.kind for source in sources)]),
        taint_rules(sources),
        by_key(decoded(sources, PodGroup)),
        tuple(source for source in sources if source.kind == "DaemonSet"),
    )


def _named_nodes(documents: Iterable[tuple[SourceDocument, SchedulingNode]]) -> list[SchedulingNode]:
    names: set[str] = set()
    for source, node in documents:
        if node.metadata.name in names:
            raise DocumentError(f"{source.place}: metadata.name: there is already a Node {node.metadata.name}")
        names.add(node.metadata.name)
    return [node for _, node in documents]
