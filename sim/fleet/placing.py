"""Places pods, also those of admitted workloads, one after another on a fleet that a nodes.yaml describes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from dranode.api.documents import decode
from dranode.api.manifests import SourceDocument
from dranode.api.quantity import Quantity
from dranode.api.resource import ObjectMeta, Pod, PodSpec, ResourceClaim, ResourceSlice
from dranode.sim.allocator.allocate import unfit
from dranode.sim.allocator.explain import driver_of
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.requests import Outcome
from dranode.sim.cluster.extended import special_claims
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.workload import PodWithClaims, WorkloadDocuments, read_workload
from dranode.sim.fit.choice import PodChoice, group_line, shared_outcomes
from dranode.sim.fit.demand import PodDemand, demand_for_claim, demand_of
from dranode.sim.fit.dump import LIVE_KINDS, ClusterDump, read_dump
from dranode.sim.fit.questions import ClusterQuestions, PodAnswer, cluster_notes, pod_notes
from dranode.sim.fit.state import ClusterState
from dranode.sim.queues.setup import Setup
from dranode.sim.queues.values import Admitted
from dranode.sim.queues.workloads import pods_of
from dranode.sim.scheduler.documents import SchedulingNode
from dranode.sim.scheduler.requests import CPU, MEMORY, STORAGE
from dranode.sim.scheduler.resources import normalized

# If a nodes.yaml does not set these amounts, a node has more than any pods request, and so much that using it does not
# change any score.
_UNLIMITED: Final = {CPU: Quantity("1M"), MEMORY: Quantity("1Ei"), STORAGE: Quantity("1Ei")}


def imagined_dump(
    nodes: Iterable[SchedulingNode],
    slices: Iterable[ResourceSlice],
    sources: Iterable[SourceDocument],
    workload: WorkloadDocuments,
) -> ClusterDump:
    """Return a cluster of these nodes with the objects of the documents, which are complete.

    Args:
        nodes: the nodes of a nodes.yaml.
        slices: their ResourceSlices.
        sources: the documents; their Nodes and ResourceSlices belong to another cluster and are ignored.
        workload: the pods and claims of the same documents.

    Raises:
        DocumentError: a document does not decode; names the place.
    """
    dump = read_dump([source for source in sources if source.kind not in ("Node", "ResourceSlice")], LIVE_KINDS)
    return replace(dump, nodes=tuple(map(_unlimited, nodes)), slices=tuple(slices), classes=workload.classes)


def demands_in(pods: Iterable[PodWithClaims], dump: ClusterDump, features: Features) -> tuple[PodDemand, ...]:
    """Return the pods that have not ended, in the order of kube-scheduler's queue.

    An unallocated claim that no pod uses gets a generated pod.

    Raises:
        DocumentError: a selector of a pod is invalid.
    """
    pods = tuple(pods)
    scheduling_pods = {pod.key: pod for pod in dump.pods}
    pod_names = {pod.name for pod in pods if pod.pod is not None}
    demands = []
    for pod in pods:
        if pod.pod is None:
            if any(claim.status.allocation is None for claim in pod.claims):
                demands.append(demand_for_claim(pod, pod_names, features))
        elif not pod.pod.finished:
            demand = demand_of(scheduling_pods.get(pod.name, pod.pod), dump, features)
            demands.append(replace(demand, claims=pod.claims))
    return tuple(sorted(demands, key=_placing_order))


def imagined_notes(
    nodes: Sequence[SchedulingNode], dump: ClusterDump, demands: Sequence[PodDemand], features: Features
) -> Iterator[str]:
    """Yield a sentence for everything that the placement does not cover; `nodes` are those of the nodes.yaml."""
    yield from cluster_notes(dump)
    for resource in _UNLIMITED:
        node = next((node.metadata.name for node in nodes if resource not in node.status.allocatable), None)
        asking = next((demand.pod.key for demand in demands if demand.info.requests.get(resource)), None)
        if node is not None and asking is not None:
            yield (
                f"node {node} has no amount of {resource}, which pod {asking} requests, so it counts as enough; add it "
                "to nodes.yaml, as in allocatable: {cpu: 30, memory: 120Gi}"
            )
    yield from _absent_drivers(dump, demands)
    noted: dict[str, list[str]] = {}
    for demand in demands:
        for note in pod_notes(dump, demand, PodChoice(demand.pod.key, None), features):
            noted.setdefault(note, []).append(demand.pod.key)
    for note, pods in noted.items():
        more = f" and {len(pods) - 1} more" if pods[1:] else ""
        yield f"pod {pods[0]}{more}: {note}"


def _absent_drivers(dump: ClusterDump, demands: Sequence[PodDemand]) -> Iterator[str]:
    """Yield a note for each driver whose class claims name and whose devices no node has."""
    named = {name for demand in demands for claim in demand.claims for name in claim.spec.devices.classes}
    drivers = {driver_of(device_class) for device_class in dump.classes if device_class.metadata.name in named}
    for driver in sorted(filter(None, drivers - {slice_.spec.driver for slice_ in dump.slices})):
        yield f"no node has devices of {driver}; a machine's devices are found by the drivers that --drivers names"


def _unlimited(node: SchedulingNode) -> SchedulingNode:
    allocatable = {**_UNLIMITED, **node.status.allocatable}
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, allocatable=allocatable))


def _placing_order(demand: PodDemand) -> tuple[int, str]:
    return -demand.pod.priority, demand.pod.metadata.creation_timestamp or "~"


SCORING: Final = (
    "kube-scheduler's DynamicResources: 100 times raw over the greatest raw, rounded down; total: the weighted sum of "
    "all plug-ins"
)


@dataclass(frozen=True, slots=True)
class NodeScore:
    """The score of a node for a pod.

    Attributes:
        node: a node that fits the pod.
        raw: the raw score of DynamicResources: for each prioritized list, 8 minus the index of the alternative.
        score: `raw` scaled so that the highest of all feasible nodes is 100, rounded down; 0 without a list.
        total: the weighted sum of all plug-ins; None if only one node fits, which is not scored.
    """

    node: str
    raw: int
    score: int
    total: int | None


@dataclass(frozen=True, slots=True)
class PodResult:
    """The node of a pod, and the devices of its claims.

    Attributes:
        pod: `<namespace>/<name>`.
        node: the node, or None.
        outcomes: the results for the claims that were not allocated before, in the order of the pod.
        shared: the results for the claims that were; the pod has to go where their devices are.
        scores: the scores of the feasible nodes, if requested and if the pod requests devices.
        error: if the pod fits nowhere, kube-scheduler's message, or why it evaluates no node; else empty.
        details: if the pod fits nowhere, the cause for each group of nodes.
    """

    pod: str
    node: str | None
    outcomes: tuple[Outcome, ...] = ()
    shared: tuple[Outcome, ...] = ()
    scores: tuple[NodeScore, ...] = ()
    error: str = ""
    details: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Return why the pod fits nowhere, with the causes; empty if it fits."""
        return " ".join((self.error, *(f"{line}." for line in self.details)))


def place_pods(
    questions: ClusterQuestions,
    state: ClusterState,
    demands: Iterable[PodDemand],
    *,
    scores: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[PodResult, ...], ClusterState]:
    """Place the pods one after another, each on what the earlier ones left; also return the cluster at the end.

    A pod that shares a claim with an earlier pod goes where that claim was allocated. Bound pods with all their claims
    are skipped.
    """
    results = []
    for demand in demands:
        if demand.pod.spec.node_name and not demand.missing and not _unallocated(state, demand):
            continue
        answer = questions.answer(state, demand)
        results.append(_result(answer, _scores(answer) if scores else ()))
        state = questions.after(answer)
        progress(demand.pod.key)
    return tuple(results), state


def _result(answer: PodAnswer, scores: tuple[NodeScore, ...]) -> PodResult:
    demand, choice, before = answer.demand, answer.choice, answer.before
    allocated = [(claim, before.allocations.get(ClaimKey.of(claim))) for claim in demand.claims]
    if choice.node is not None:
        return PodResult(choice.pod, choice.node, choice.outcomes, shared_outcomes(choice, allocated, ""), scores)
    details = tuple(group_line(group) for group in choice.groups if group.detail)
    why = " ".join((choice.message, *(f"{line}." for line in details)))
    namespace = demand.pod.metadata.namespace
    lacking = [
        ResourceClaim(metadata=ObjectMeta(name=name.rpartition(" ")[2], namespace=namespace)) for name in demand.missing
    ]
    waiting = (*lacking, *_unallocated(before, demand), *special_claims(demand.pod, demand.extended))
    return PodResult(
        choice.pod,
        None,
        unfit(waiting, why, choice.oddities),
        shared_outcomes(choice, allocated, why),
        error=choice.message,
        details=details,
    )


def _unallocated(state: ClusterState, demand: PodDemand) -> Sequence[ResourceClaim]:
    return [claim for claim in demand.claims if ClaimKey.of(claim) not in state.allocations]


def _scores(answer: PodAnswer) -> tuple[NodeScore, ...]:
    placement = answer.placement
    scores = normalized(placement.devices)
    totals = {score.node: score.total for score in placement.scores}
    return tuple(NodeScore(node, raw, scores[node], totals.get(node)) for node, raw in placement.devices.items())


_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")


class FleetNodes:
    """The nodes that admitted workloads are placed on.

    Attributes:
        state: the current state of the cluster.
        results: the results of the pods, by workload.
    """

    def __init__(self, questions: ClusterQuestions, setup: Setup, sources: Iterable[SourceDocument]) -> None:
        """Start with the current cluster; `sources` contain the claims and templates of the workloads."""
        self._questions = questions
        self._setup = setup
        self._claims = tuple(source for source in sources if source.kind in _CLAIMS)
        self.state: ClusterState = questions.state
        self.results: dict[str, tuple[PodResult, ...]] = {}

    def place(self, admitted: Admitted) -> str:
        """Place all pods of a workload, or none.

        Returns:
            Why they cannot be placed, with the first pod that does not fit; empty if they were placed.

        Raises:
            DocumentError: a pod, claim or template of the workload does not decode, or names a missing object.
        """
        key = admitted.workload.key
        pods = pods_of(self._setup.documents[key], admitted, self._setup.queues.flavors)
        specs = {f"{pod.document['metadata']['namespace']}/{pod.name}": decode(Pod, pod.document).spec for pod in pods}
        for name, spec in specs.items():
            nodes = self._questions.dump.nodes
            if spec.node_name:
                return f"pod {name}: nodeName {spec.node_name} bypasses kube-scheduler, which is not simulated here"
            if not any(spec.node_selector.items() <= node.metadata.labels.items() for node in nodes):
                return f"pod {name}: no node has the labels {_labels(spec)}"
        names = {
            entry.resource_claim_name or entry.resource_claim_template_name
            for spec in specs.values()
            for entry in spec.resource_claims
        }
        claims = (source for source in self._claims if source.name in names)
        features = self._questions.features
        workload = [pod for pod in read_workload((*claims, *pods), features).pods if pod.name in specs]
        results, state = place_pods(self._questions, self.state, demands_in(workload, self._questions.dump, features))
        unplaced = next((result for result in results if result.node is None), None)
        if unplaced is not None:
            return f"pod {unplaced.pod}: {unplaced.sentence}"
        self.state, self.results[key] = state, results
        return ""

    def release(self, admitted: Admitted) -> None:
        """Remove the pods of a workload; a claim that workloads share stays until the last of them has left."""
        results = self.results.pop(admitted.workload.key, ())
        self.state = self.state.without_pods(frozenset(result.pod for result in results))


def _labels(spec: PodSpec) -> str:
    return ", ".join(f"{key}={value}" for key, value in spec.node_selector.items())
