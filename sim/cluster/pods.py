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
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.place import Fleet, NodeAsk, NodeChoice, NodeScore
from dranode.sim.cluster.solutions import score_before
from dranode.sim.cluster.workload import PodWithClaims, asked_by, read_workload
from dranode.sim.scheduler.amounts import check_node_amounts
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from dranode.sim.scheduler.node_affinity import chooses_nodes, matches_required

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
        rules: the DeviceTaintRules.
    """

    slices: tuple[ResourceSlice, ...]
    classes: tuple[DeviceClass, ...]
    nodes: tuple[Node, ...]
    pods: tuple[PodWithClaims, ...]
    rules: tuple[DeviceTaintRule, ...] = ()

    def place(self, features: Features, new_share_id: Callable[[], str]) -> Iterator[PodPlacement]:
        """Place pod by pod, each with what the ones before it have left."""
        allocator = Allocator(
            self.slices,
            self.classes,
            features,
            new_share_id=new_share_id,
            rules=self.rules,
            claims=asked_by(self.pods),
        )
        allocated = Allocated.of(claim for pod in self.pods for claim in pod.claims)
        fleet = Fleet(allocator, self.nodes, allocated)
        return place_pods(fleet, self.pods)


def place_pods(fleet: Fleet, pods: Iterable[PodWithClaims], *, scores: bool = False) -> Iterator[PodPlacement]:
    """Place pod by pod; a claim that an earlier pod shares is where that pod put it, and the later one follows."""
    settled: dict[ClaimKey, AllocationResult] = {}
    for pod in pods:
        if pod.pod is not None and pod.pod.finished:
            continue
        if pod.missing:
            yield _lacking(pod)
            continue
        unplaced = [claim for claim in pod.claims if _allocation(claim, settled) is None]
        fixed = {
            ClaimKey.of(claim): (claim, allocation)
            for claim in pod.claims
            if (allocation := _allocation(claim, settled)) is not None
        }
        extended = fleet.extended(pod.pod) if pod.pod is not None else {}
        waits = bool(unplaced or extended or fixed.keys() & settled.keys())
        if pod.node and not unplaced:
            continue  # a running pod has all it wants
        if not waits and (not fixed or pod.pod is None):
            continue  # a claim that is allocated: there is nothing to answer
        if pod.node:
            yield _passed_by(pod, unplaced)
            continue
        if pod.problem:
            yield _refused(pod, pod.claims, pod.problem)
            continue
        placed = _placed(fleet, pod, unplaced, list(fixed.values()), extended, scores=scores)
        for outcome in placed.outcomes:
            if outcome.allocation is not None:
                settled[ClaimKey.of(outcome.claim)] = outcome.allocation
        yield placed


def _allocation(claim: ResourceClaim, settled: Mapping[ClaimKey, AllocationResult]) -> AllocationResult | None:
    return settled.get(ClaimKey.of(claim)) or claim.status.allocation


def _placed(
    fleet: Fleet,
    pod: PodWithClaims,
    unplaced: Sequence[ResourceClaim],
    fixed: Sequence[tuple[ResourceClaim, AllocationResult]],
    extended: Mapping[str, str],
    *,
    scores: bool,
) -> PodPlacement:
    allows = _allows(pod.pod, [allocation for _, allocation in fixed])
    before = sum(score_before(claim, allocation) for claim, allocation in fixed)
    asks: Sequence[NodeAsk] = [NodeAsk(tuple(unplaced), allows)]
    if pod.pod is not None and extended:
        asks = fleet.asks(pod.pod, extended, asks[0], claims=bool(pod.claims))
    placed = fleet.place_one_of(asks, scores=scores, before=before)
    shared = tuple(_shared(pod.name, claim, allocation, placed) for claim, allocation in fixed)
    return PodPlacement(pod.name, placed.node, placed.outcomes, shared, placed.scores, placed.misses)


def _shared(pod: str, claim: ResourceClaim, allocation: AllocationResult, placed: NodeChoice) -> Outcome:
    if placed.node is not None:
        return Outcome(claim, placed.node, allocation, notes=(f"it was allocated before; pod {pod} shares it",))
    why = next((outcome.error for outcome in placed.outcomes if outcome.error), "no node where it is suits the pod")
    error = f"it is allocated already, and pod {pod}, which shares it, can go nowhere: {why}"
    return Outcome(claim, error=error, reason=Reason.DOES_NOT_FIT)


def read_cluster_documents(
    documents: Sequence[SourceDocument], features: Features, only_node: str | None = None
) -> ClusterDocuments:
    """Sort out the documents of a dump; kinds that do not matter are passed over.

    Raises:
        DocumentError: a document does not decode, or two of a kind have one name; says where.
    """
    workload = read_workload(documents, features)
    slices = _decoded(documents, "ResourceSlice", ResourceSlice)
    nodes = _nodes(documents, slices, only_node)
    return ClusterDocuments(slices, workload.classes, nodes, workload.pods, workload.rules)


def nodes_among(documents: Sequence[SourceDocument], only_node: str | None = None) -> tuple[Node, ...]:
    """Return the nodes of the documents: their Nodes, else those that their slices name; or the one that is named.

    Raises:
        DocumentError: a Node or a slice does not decode; says where.
    """
    return _nodes(documents, _decoded(documents, "ResourceSlice", ResourceSlice), only_node)


def _decoded(
    documents: Iterable[SourceDocument], kind: str, into: type[T], check: Callable[[T], None] = lambda _: None
) -> tuple[T, ...]:
    values = []
    for source in documents:
        if source.kind == kind:
            try:
                value = decode(into, source.document)
                check(value)
                values.append(value)
            except DocumentError as error:
                raise DocumentError(f"{source.place}: {error}") from error
    return tuple(values)


def _nodes(
    documents: Iterable[SourceDocument], slices: Iterable[ResourceSlice], only_node: str | None
) -> tuple[Node, ...]:
    known = _decoded(documents, "Node", SchedulingNode, check_node_amounts)
    nodes: tuple[Node, ...] = known
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


def _allows(pod: SchedulingPod | None, fixed: Sequence[AllocationResult]) -> Callable[[Node], bool] | None:
    """Return which nodes the pod may go to by its claims, its nodeSelector and its required node affinity.

    None if to all.
    """
    selectors = [allocation.node_selector for allocation in fixed if allocation.node_selector is not None]
    bound = pod is not None and chooses_nodes(pod)
    if not selectors and not bound:
        return None

    def allows(node: Node) -> bool:
        return (pod is None or matches_required(pod, node)) and all(selects(each, node) for each in selectors)

    return allows


def passed_by(pod: str, node: str, claims: Iterable[str]) -> str:
    """Return what becomes of claims that are not allocated when their pod names its node, in one sentence."""
    return (
        f"pod {pod} names its node {node} itself, so kube-scheduler, which alone allocates claims, passes it by: "
        f"{', '.join(claims)} will never be allocated and kubelet will not start the pod; "
        "remove spec.nodeName, and choose the node with a nodeSelector"
    )


def _passed_by(pod: PodWithClaims, claims: Sequence[ResourceClaim]) -> PodPlacement:
    names = [f"{claim.metadata.namespace}/{claim.metadata.name}" for claim in claims]
    return _refused(pod, claims, passed_by(pod.name, pod.node, names))


def _refused(pod: PodWithClaims, claims: Sequence[ResourceClaim], error: str) -> PodPlacement:
    outcomes = (Outcome(claim, error=error, reason=Reason.INCOMPLETE_CLAIM, scope="fatal") for claim in claims)
    return PodPlacement(pod.name, None, tuple(outcomes))


def _lacking(pod: PodWithClaims) -> PodPlacement:
    """A pod whose claims no document has; one that is bound holds what is not known."""
    lacking = ", ".join(map(str, pod.missing))
    error = (
        f"pod {pod.name} is on node {pod.node} and uses {lacking}, which no document is: what it holds is not known"
        if pod.node
        else f"pod {pod.name} lacks {lacking}, so none of its claims is allocated"
    )
    namespace = pod.name.partition("/")[0]
    named = [ResourceClaim(metadata=ObjectMeta(name=missing.name, namespace=namespace)) for missing in pod.missing]
    return _refused(pod, [*named, *(claim for claim in pod.claims if claim.status.allocation is None)], error)
