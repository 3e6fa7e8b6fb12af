"""Asks the simulator about a pod's unallocated claims, node by node, and groups nodes with the same answer.

`scheduler_answer` considers claims, and what excludes nodes (name, labels, affinity, taints). CPU, memory, ports,
volumes and spreading appear in kube-scheduler's own message, and in the simulator's complete answer (`fit_answer`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import (
    AllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    Node,
    NodeSelector,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimSpec,
)
from dranode.driver.claims.grant import readable_results
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.explain import Miss, Stage
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import selects
from dranode.sim.allocator.requests import AllocationError, DeviceDemand, Reason
from dranode.sim.allocator.taint_rules import taint_rules, untolerated
from dranode.sim.cluster.controllers import daemon_tolerations
from dranode.sim.cluster.devices import DeviceAnswers
from dranode.sim.cluster.extended import classes_behind
from dranode.sim.cluster.holdings import ClaimKey, Holdings
from dranode.sim.fit.choice import group_line
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.questions import ClusterQuestions, cluster_notes
from dranode.sim.scheduler.node_rules import UNSCHEDULABLE
from dranode.sim.scheduler.requests import is_extended
from dranode.tools.diagnosis.live_objects import (
    ClusterObjects,
    DaemonPodSpec,
    FitAnswer,
    LiveNode,
    LivePod,
    LivePodSpec,
    NodeGroup,
    PodClaim,
    SchedulerAnswer,
)
from dranode.tools.diagnosis.steps import StopCause

# Why claims do not fit on a node; None if they do.
_Obstacle: TypeAlias = Miss | AllocationError | None

_MOST_HOLDERS: Final = 5
_REASONS: Final = {
    Reason.CLASS_NOT_FOUND: StopCause.CLASS_MISSING,
    Reason.CEL_COMPILE: StopCause.SELECTOR_FAILS,
    Reason.CEL_RUNTIME: StopCause.SELECTOR_FAILS,
    Reason.POOL_INCOMPLETE: StopCause.POOL_INCOMPLETE,
    Reason.POOL_INVALID: StopCause.POOL_INCOMPLETE,
    Reason.CONSTRAINT_ON_ALL: StopCause.CONSTRAINT_UNMET,
}


def scheduler_answer(
    pod: LivePod, claims: Sequence[PodClaim], objects: ClusterObjects, features: Features
) -> SchedulerAnswer:
    """Return why the pod's claims cannot be allocated, for every node of the cluster."""
    rules = [SourceDocument("the API server", index, dict(rule)) for index, rule in enumerate(objects.rules)]
    classes = objects.classes
    known = [claim.claim for claim in claims if claim.claim is not None]
    unallocated = [claim for claim in known if claim.status.allocation is None]
    extended: dict[str, str] = {}
    # Unless kube-scheduler has already created the claim for extended resources, which has no entry in the pod.
    if all(claim.entry for claim in claims):
        extended = extended_resources(pod, classes, features)
        unallocated += extended_claim(pod, extended)
        missing = _missing_resource(pod, extended, objects)
        if missing:
            return SchedulerAnswer(cause=StopCause.RESOURCE_MISSING, error=missing)
    fixed = [(claim.metadata.name, claim.status.allocation) for claim in known if claim.status.allocation is not None]
    groups: dict[tuple[StopCause, str], list[str]] = {}
    for node in objects.nodes:
        why = excluded_by(node, pod.spec)
        elsewhere = "" if why else allocated_elsewhere(node, fixed)
        if why or elsewhere:
            cause = StopCause.NODES_EXCLUDED if why else StopCause.CLAIM_ON_ANOTHER_NODE
            groups.setdefault((cause, why or elsewhere), []).append(node.metadata.name)
    excluded = {name for names in groups.values() for name in names}
    nodes = tuple(plain_node(node) for node in objects.nodes if node.metadata.name not in excluded)
    # A claim on another node is the more helpful reason, so these groups come first.
    first = sorted(groups.items(), key=lambda group: group[0][0] is not StopCause.CLAIM_ON_ANOTHER_NODE)
    excluded_groups = tuple(NodeGroup(tuple(names), cause, why) for (cause, why), names in first)
    try:
        allocator = Allocator(objects.slices, classes, features, new_share_id=lambda: "", rules=taint_rules(rules))
    except DocumentError as error:
        return SchedulerAnswer(cause=StopCause.CLAIM_REFUSED, error=str(error))
    answers = DeviceAnswers(allocator)
    allocations = ((ClaimKey.of(claim), claim.status.allocation) for claim in objects.claims)
    held = Holdings().with_claims((key, allocation) for key, allocation in allocations if allocation is not None)
    try:
        judged = _node_groups(nodes, answers, answers.demand(unallocated), held)
    except AllocationError as error:
        return SchedulerAnswer(
            cause=_REASONS.get(error.reason, StopCause.CLAIM_REFUSED),
            error=str(error),
            extended=tuple(extended.items()),
        )
    holders = ""
    # Only if the claims would fit with nothing allocated, other claims are the reason and worth naming.
    if judged and judged[0].cause is StopCause.DEVICES_IN_USE:
        closest = next(node for node in nodes if node.metadata.name == judged[0].nodes[0])
        usable = allocator.usable(unallocated, answers.view(closest).pools)
        holders = _holders(closest.metadata.name, usable, objects.claims)
    return SchedulerAnswer((*judged, *excluded_groups), (holders,) if holders else (), extended=tuple(extended.items()))


def extended_resources(pod: LivePod, classes: Iterable[DeviceClass], features: Features) -> dict[str, str]:
    """Return the DeviceClass of each extended resource of a pod that has one (KEP-5004)."""
    return classes_behind(_requested(pod), classes) if features.extended_resource else {}


def _requested(pod: LivePod) -> dict[str, int]:
    """Return the sum of all containers' requests."""
    amounts: dict[str, int] = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for resource, amount in container.resources.requests.items():
            amounts[resource] = amounts.get(resource, 0) + ceil(amount.value)
    return amounts


def _missing_resource(pod: LivePod, backed: Mapping[str, str], objects: ClusterObjects) -> str:
    """Return a sentence about an extended resource of the pod that neither a node nor a class has; empty if none."""
    for resource, amount in _requested(pod).items():
        if not amount or not is_extended(resource) or resource in backed:
            continue
        if all(node.status.allocatable.get(resource, "0") == "0" for node in objects.nodes):
            return (
                f"no node has the extended resource {resource}, which the pod requests, and no DeviceClass provides it"
            )
    return ""


def extended_claim(pod: LivePod, classes: Mapping[str, str]) -> list[ResourceClaim]:
    """Return the claim that kube-scheduler would create for extended resources with these classes, if there are any."""
    requests = tuple(
        DeviceRequest(
            name=f"container-{number}-request-{index}",
            exactly=ExactDeviceRequest(device_class_name=classes[resource], count=int(amount.value)),
        )
        for number, container in enumerate((*pod.spec.init_containers, *pod.spec.containers))
        for index, (resource, amount) in enumerate(sorted(container.resources.requests.items()))
        if resource in classes and amount.value
    )
    metadata = ObjectMeta(name="<extended-resources>", namespace=pod.metadata.namespace)
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=requests))
    return [ResourceClaim(metadata=metadata, spec=spec)] if requests else []


def _node_groups(
    nodes: Sequence[Node], devices: DeviceAnswers, demand: DeviceDemand, held: Holdings
) -> list[NodeGroup]:
    """Return groups of nodes on which the claims do not fit for the same reason, those that come closest first.

    Args:
        nodes: the nodes.
        devices: the allocator's answers for each node.
        demand: the claims to allocate.
        held: the allocations of other claims.
    """
    answers: dict[str, tuple[_Obstacle, list[str]]] = {}
    first: list[Node] = []
    for node in nodes:
        obstacle = _obstacle(devices, node, demand, held)
        sentence = "" if obstacle is None else obstacle.sentence if isinstance(obstacle, Miss) else str(obstacle)
        if sentence not in answers:
            first.append(node)
        answers.setdefault(sentence, (obstacle, []))[1].append(node.metadata.name)

    def closeness(answer: tuple[str, tuple[_Obstacle, list[str]]]) -> tuple[int, Any]:
        obstacle = answer[1][0]
        return (2, 0) if obstacle is None else (1, obstacle) if isinstance(obstacle, Miss) else (0, 0)

    # The first node of a group stands for all: would the claims fit there if nothing were allocated?
    fitting = {node.metadata.name for node in first if _obstacle(devices, node, demand, Holdings()) is None}
    ordered = sorted(answers.items(), key=closeness, reverse=True)
    return [
        NodeGroup(tuple(names), _cause(obstacle, taken=names[0] in fitting), sentence)
        for sentence, (obstacle, names) in ordered
    ]


def _obstacle(devices: DeviceAnswers, node: Node, demand: DeviceDemand, held: Holdings) -> _Obstacle:
    """Return why claims do not fit on a node; None if they do.

    Raises:
        AllocationError: an error that ends the attempt for all nodes.
    """
    solution = devices.solution(node, demand, held)
    if isinstance(solution, AllocationError):
        if solution.scope == "fatal":
            raise solution
        return solution
    return None if solution.picks is not None else devices.miss(node, demand, held)


def _cause(obstacle: _Obstacle, *, taken: bool) -> StopCause | None:
    """Return why claims do not fit; `taken` if they would fit with nothing allocated."""
    if obstacle is None or taken:
        return None if obstacle is None else StopCause.DEVICES_IN_USE
    if isinstance(obstacle, AllocationError):
        return _REASONS.get(obstacle.reason, StopCause.DEVICES_DO_NOT_FIT)
    match obstacle.stage:
        case Stage.SELECTOR if "is not complete" in obstacle.sentence:
            cause = StopCause.POOL_INCOMPLETE
        case Stage.NO_DEVICE:
            cause = StopCause.NOTHING_PUBLISHED
        case Stage.TAINT:
            cause = StopCause.DEVICES_TAINTED
        case Stage.CONSTRAINT:
            cause = StopCause.CONSTRAINT_UNMET
        case _:
            cause = StopCause.DEVICES_DO_NOT_FIT
    return cause


def _holders(node: str, usable: Collection[tuple[str, str, str]], claims: Iterable[ResourceClaim]) -> str:
    """Return which claims have these devices of a node, in one sentence; empty if none has."""
    lines = []
    for claim in claims:
        devices = [
            f"{result.device}{_consumed(result.consumed_capacity)}"
            for result in readable_results(claim.status.allocation)
            if (result.driver, result.pool, result.device) in usable
        ]
        if devices:
            pods = ", ".join(map(str, claim.status.reserved_for)) or "no pod"
            lines.append(f"{claim.metadata.namespace}/{claim.metadata.name} ({pods}) holds {', '.join(devices)}")
    more = f", and {len(lines) - _MOST_HOLDERS} more claims" if len(lines) > _MOST_HOLDERS else ""
    return f"on {node} {', '.join(lines[:_MOST_HOLDERS])}{more}" if lines else ""


def _consumed(capacity: Mapping[str, Any]) -> str:
    amounts = ", ".join(f"{amount} {name}" for name, amount in capacity.items())
    return f" ({amounts})" if amounts else ""


def plain_node(node: LiveNode) -> Node:
    """Return a node as the allocator needs it."""
    return Node(metadata=node.metadata, status=node.status)


def daemon_excluded_by(node: LiveNode, spec: DaemonPodSpec) -> str:
    """Return why a DaemonSet leaves a node out, in a sentence; empty if its controller creates a pod for it."""
    added = daemon_tolerations(host_network=spec.host_network)
    return excluded_by(node, replace(spec, tolerations=(*spec.tolerations, *added)))


def excluded_by(node: LiveNode, spec: LivePodSpec | DaemonPodSpec) -> str:
    """Return why a pod may not run on a node, in a sentence; empty if it may."""
    labels = node.metadata.labels
    for key, value in spec.node_selector.items():
        if labels.get(key) != value:
            return f"the pod's nodeSelector requires {key}={value}"
    required = spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if required is not None and not selects(required, plain_node(node)):
        return "the pod's node affinity excludes it"
    taints = (*node.spec.taints, UNSCHEDULABLE) if node.spec.unschedulable else node.spec.taints
    taint = untolerated(taints, spec.tolerations)
    return "" if taint is None else f"the pod does not tolerate its taint {taint.text}"


def allocated_elsewhere(node: LiveNode, allocations: Iterable[tuple[str, AllocationResult]]) -> str:
    """Return which allocated claim is not available on a node, in a sentence; empty if all are."""
    for claim, allocation in allocations:
        selector: NodeSelector | None = allocation.node_selector
        if selector is not None and not selects(selector, plain_node(node)):
            return f"the claim {claim} is allocated elsewhere"
    return ""


def fit_answer(documents: Sequence[SourceDocument], kinds: Iterable[str], pod: str, features: Features) -> FitAnswer:
    """Return the node that a pod would get now, or why it fits nowhere.

    Args:
        documents: the cluster's objects.
        kinds: the kinds whose objects are all among them.
        pod: `<namespace>/<name>`.
        features: the release and the feature gates.

    Raises:
        DocumentError: the pod does not exist, or a document does not decode.
    """
    dump = read_dump(documents, kinds)
    questions = ClusterQuestions.of(dump, features, lambda: "")
    (answer,) = questions.answers(questions.selected([pod]))
    choice = answer.choice
    return FitAnswer(
        node=choice.node or "",
        message=choice.message.rstrip("."),
        groups=tuple(map(group_line, choice.groups)),
        notes=(*cluster_notes(dump), *answer.notes),
    )
