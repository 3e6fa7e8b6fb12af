"""Reads a cluster from its documents: slices, classes, nodes, pods and claims, some of them already allocated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceClass, Node, ObjectMeta, ResourceSlice
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.taint_rules import DeviceTaintRule
from dranode.sim.cluster.manifests import decoded
from dranode.sim.cluster.workload import PodWithClaims, read_workload
from dranode.sim.scheduler.amounts import check_node_amounts
from dranode.sim.scheduler.documents import SchedulingNode


@dataclass(frozen=True, slots=True)
class ClusterDocuments:
    """The decoded documents by kind.

    Attributes:
        slices: all ResourceSlices.
        classes: the DeviceClasses, including the default ones.
        nodes: the nodes to try, in order.
        pods: the pods with their claims, in the order of the documents; a claim without a pod has a generated one.
        rules: the DeviceTaintRules.
    """

    slices: tuple[ResourceSlice, ...]
    classes: tuple[DeviceClass, ...]
    nodes: tuple[Node, ...]
    pods: tuple[PodWithClaims, ...]
    rules: tuple[DeviceTaintRule, ...] = ()


def read_cluster_documents(
    documents: Sequence[SourceDocument], features: Features, only_node: str | None = None
) -> ClusterDocuments:
    """Decode the documents of a dump; other kinds are ignored.

    Raises:
        DocumentError: a document does not decode, or two of a kind have the same name; names the place.
    """
    workload = read_workload(documents, features)
    slices = tuple(slice_ for _, slice_ in decoded(documents, ResourceSlice))
    nodes = _nodes(documents, slices, only_node)
    return ClusterDocuments(slices, workload.classes, nodes, workload.pods, workload.rules)


def nodes_among(documents: Sequence[SourceDocument], only_node: str | None = None) -> tuple[Node, ...]:
    """Return the nodes of the documents: the Nodes, or those that slices name, or only `only_node`.

    Raises:
        DocumentError: a Node or a slice does not decode; names the place.
    """
    return _nodes(documents, [slice_ for _, slice_ in decoded(documents, ResourceSlice)], only_node)


def _nodes(
    documents: Iterable[SourceDocument], slices: Iterable[ResourceSlice], only_node: str | None
) -> tuple[Node, ...]:
    nodes: tuple[Node, ...] = tuple(node for _, node in decoded(documents, SchedulingNode, "Node", check_node_amounts))
    if not nodes:
        specs = [slice_.spec for slice_ in slices]
        names = (name for spec in specs for name in (spec.node_name, *(device.node_name for device in spec.devices)))
        nodes = tuple(_node(name) for name in dict.fromkeys(names) if name)
    if only_node is not None:
        nodes = tuple(node for node in nodes if node.metadata.name == only_node) or (_node(only_node),)
    return nodes


def _node(name: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))


def not_scheduled(pod: str, node: str, claims: Iterable[str]) -> str:
    """Return why unallocated claims of a pod with spec.nodeName are not allocated."""
    return (
        f"pod {pod} sets spec.nodeName to {node}, so kube-scheduler skips it: {', '.join(claims)} will never be "
        "allocated, and kubelet will not start the pod; remove spec.nodeName and use a nodeSelector"
    )
