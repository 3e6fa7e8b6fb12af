"""A cluster as its documents describe it: slices, classes, nodes, pods and claims, some of them allocated already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.resource import (
    AllocationResult,
    DeviceClass,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    ResourceClaim,
    ResourceSlice,
)
from dranode.driver.core.api.source_document import SourceDocument
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.explain import Miss
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.nodeselector import selects
from dranode.sim.allocator.outcome import Outcome, Reason
from dranode.sim.allocator.state import Allocated
from dranode.sim.allocator.taint_rules import DeviceTaintRule
from dranode.sim.cluster.place import Fleet, NodeChoice, NodeScore
from dranode.sim.cluster.solutions import score_before
from dranode.sim.cluster.workload import PodWithClaims, read_workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """The place of one pod, and the devices of its claims.

    Attributes:
        pod: `<namespace>/<name>`.
        node: the node, or None.
        outcomes: of the claims that were not allocated before, in the order of the pod.
        shared: of the claims that were; the pod goes where they are, or nowhere.
        scores: the nodes that fit, if they were asked for.
        misses: if it fits nowhere, the nearest miss for each kind of node.
    """

    pod: str
    node: str | None
    outcomes: tuple[Outcome, ...]
    shared: tuple[Outcome, ...] = ()
    scores: tuple[NodeScore, ...] = ()
    misses: tuple[tuple[str, Miss], ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterDocuments:
    """The documents, sorted out.

    Attributes:
        slices: all ResourceSlices.
        classes: the DeviceClasses of the documents.
        nodes: the nodes to try, in order.
        pods: pods with their claims, in the order given; a claim without a pod has one made up.
        specs: the specs of the pods that are really there, by `<namespace>/<name>`.
        rules: the DeviceTaintRules.
    """

    slices: tuple[ResourceSlice, ...]
    classes: tuple[DeviceClass, ...]
    nodes: tuple[Node, ...]
    pods: tuple[PodWithClaims, ...]
    specs: Mapping[str, PodSpec]
    rules: tuple[DeviceTaintRule, ...] = ()

    def place(self, features: Features, new_share_id: Callable[[], str]) -> Iterator[PodPlacement]:
        """Place pod by pod, each with what the ones before it have left."""
        allocator = Allocator(self.slices, self.classes, features, new_share_id=new_share_id, rules=self.rules)
        allocated = Allocated.of(claim for pod in self.pods for claim in pod.claims)
        fleet = Fleet(allocator, self.nodes, allocated)
        return place_pods(fleet, self.pods, self.specs)


def place_pods(
    fleet: Fleet, pods: Iterable[PodWithClaims], specs: Mapping[str, PodSpec], *, scores: bool = False
) -> Iterator[PodPlacement]:
    """Place pod by pod; a claim that an earlier pod shares is where that pod put it, and the later one follows."""
    settled: dict[tuple[str, str], AllocationResult] = {}
    for pod in pods:
        if pod.missing:
            yield _lacking(pod)
            continue
        unplaced: list[ResourceClaim] = []
        fixed: list[tuple[ResourceClaim, AllocationResult]] = []
        for claim in pod.claims:
            key = claim.metadata.namespace, claim.metadata.name
            allocation = settled.get(key) or claim.status.allocation
            if allocation is None:
                unplaced.append(claim)
            else:
                fixed.append((claim, allocation))
        spec = specs.get(pod.name)
        here = any((claim.metadata.namespace, claim.metadata.name) in settled for claim, _ in fixed)
        if not unplaced and not here and (not fixed or spec is None or spec.node_name):
            continue  # a claim or a running pod that has all it wants: there is nothing to answer
        if spec is not None and spec.node_name and unplaced:
            yield _passed_by(pod, spec.node_name, unplaced)
            continue
        allows = _allows(spec, [allocation for _, allocation in fixed])
        before = sum(score_before(claim, allocation) for claim, allocation in fixed)
        placed = fleet.place(unplaced, allows=allows, scores=scores, before=before)
        for outcome in placed.outcomes:
            if outcome.allocation is not None:
                settled[outcome.claim.metadata.namespace, outcome.claim.metadata.name] = outcome.allocation
        shared = tuple(_shared(pod.name, claim, allocation, placed) for claim, allocation in fixed)
        yield PodPlacement(pod.name, placed.node, placed.outcomes, shared, placed.scores, placed.misses)


def _shared(pod: str, claim: ResourceClaim, allocation: AllocationResult, placed: NodeChoice) -> Outcome:
    if placed.node is not None:
        return Outcome(claim, placed.node, allocation, notes=(f"it was allocated before; pod {pod} shares it",))
    why = next((outcome.error for outcome in placed.outcomes if outcome.error), "no node where it is suits the pod")
    error = f"it is allocated already, and pod {pod}, which shares it, can go nowhere: {why}"
    return Outcome(claim, error=error, reason=Reason.DOES_NOT_FIT)


def read_cluster_documents(documents: Sequence[SourceDocument], only_node: str | None = None) -> ClusterDocuments:
    """Sort out the documents of a dump; kinds that do not matter are passed over.

    Raises:
        DocumentError: a document does not decode; says where.
    """
    slices = _decoded(documents, "ResourceSlice", ResourceSlice)
    classes = _decoded(documents, "DeviceClass", DeviceClass)
    nodes = _nodes(documents, slices, only_node)
    specs = {
        f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}": pod.spec
        for pod in _decoded(documents, "Pod", Pod)
    }
    workload = read_workload(documents)
    return ClusterDocuments(slices, classes, nodes, workload.pods, specs, workload.rules)


def _decoded(documents: Iterable[SourceDocument], kind: str, into: type[T]) -> tuple[T, ...]:
    values = []
    for source in documents:
        if source.kind == kind:
            try:
                values.append(decode(into, source.document))
            except DocumentError as error:
                raise DocumentError(f"{source.place}: {error}") from error
    return tuple(values)


def _nodes(
    documents: Iterable[SourceDocument], slices: Iterable[ResourceSlice], only_node: str | None
) -> tuple[Node, ...]:
    nodes = _decoded(documents, "Node", Node)
    if not nodes:
        names = [name for each in slices for name in (each.spec.node_name, *_device_nodes(each)) if name]
        nodes = tuple(_node(name) for name in dict.fromkeys(names))
    if only_node is not None:
        nodes = tuple(node for node in nodes if node.metadata.name == only_node) or (_node(only_node),)
    return nodes


def _device_nodes(slice_: ResourceSlice) -> Iterator[str | None]:
    return (device.node_name for device in slice_.spec.devices)


def _node(name: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))


def _allows(spec: PodSpec | None, fixed: Sequence[AllocationResult]) -> Callable[[Node], bool] | None:
    """Return which nodes the pod may go to; None if to all."""
    selectors = [allocation.node_selector for allocation in fixed if allocation.node_selector is not None]
    labels = dict(spec.node_selector) if spec is not None else {}
    if not selectors and not labels:
        return None

    def allows(node: Node) -> bool:
        return labels.items() <= dict(node.metadata.labels).items() and all(
            selects(selector, node) for selector in selectors
        )

    return allows


def passed_by(pod: str, node: str, claims: Iterable[str]) -> str:
    """Return what becomes of claims that are not allocated when their pod names its node, in one sentence."""
    return (
        f"pod {pod} names its node {node} itself, so kube-scheduler, which alone allocates claims, passes it by: "
        f"{', '.join(claims)} will never be allocated and kubelet will not start the pod; "
        "remove spec.nodeName, and choose the node with a nodeSelector"
    )


def _passed_by(pod: PodWithClaims, node: str, claims: Sequence[ResourceClaim]) -> PodPlacement:
    names = [f"{claim.metadata.namespace}/{claim.metadata.name}" for claim in claims]
    error = passed_by(pod.name, node, names)
    outcomes = (Outcome(claim, error=error, reason=Reason.INCOMPLETE_CLAIM, scope="fatal") for claim in claims)
    return PodPlacement(pod.name, None, tuple(outcomes))


def _lacking(pod: PodWithClaims) -> PodPlacement:
    lacking = ", ".join(pod.missing)
    error = f"pod {pod.name} lacks {lacking}, so none of its claims is allocated"
    named = [
        ResourceClaim(metadata=ObjectMeta(name=name, namespace=pod.name.partition("/")[0])) for name in pod.missing
    ]
    claims = (*named, *(claim for claim in pod.claims if claim.status.allocation is None))
    return PodPlacement(
        pod.name,
        None,
        tuple(Outcome(claim, error=error, reason=Reason.INCOMPLETE_CLAIM, scope="fatal") for claim in claims),
    )
