"""Asks the model of kube-scheduler about a pod's unallocated claims, node by node, and groups nodes of one answer.

`scheduler_answer` looks at claims and at what excludes nodes (name, labels, affinity, taints); room for CPU and memory,
ports, volumes and spreading are in kube-scheduler's own message, and in the answer of the whole model (`fit_answer`).
"""

from __future__ import annotations

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
    DeviceToleration,
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
from dranode.sim.allocator.requests import AllocationError, Reason
from dranode.sim.allocator.taint_rules import taint_rules
from dranode.sim.cluster.devices import DeviceAnswers, DeviceDemand
from dranode.sim.cluster.extended import classes_behind
from dranode.sim.cluster.holdings import ClaimKey, Holdings
from dranode.sim.fit.choice import group_line
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.questions import ClusterQuestions, cluster_notes
from dranode.sim.scheduler.requests import is_extended
from dranode.tools.diagnosis.live_objects import (
    ClusterObjects,
    DaemonPodSpec,
    FitAnswer,
    LiveNode,
    LiveNodeTaint,
    LivePod,
    LivePodSpec,
    NodeGroup,
    PodClaim,
    SchedulerAnswer,
)
from dranode.tools.diagnosis.steps import StopCause

_Kept: TypeAlias = Miss | AllocationError | None

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
    """Return what keeps the pod's claims from being allocated, for every node of the cluster."""
    rules = [SourceDocument("the API server", index, dict(rule)) for index, rule in enumerate(objects.rules)]
    classes, everything = objects.classes, objects.claims
    known = [claim.claim for claim in claims if claim.claim is not None]
    unallocated = [claim for claim in known if claim.status.allocation is None]
    made = any(not claim.entry for claim in claims)
    extended = {} if made else extended_resources(pod, classes, features)
    unallocated += extended_claim(pod, extended)
    unknown = _nobodys(pod, extended, objects) if not made else ""
    if unknown:
        return SchedulerAnswer(cause=StopCause.RESOURCE_MISSING, error=unknown)
    fixed = [(claim.metadata.name, claim.status.allocation) for claim in known if claim.status.allocation is not None]
    groups: dict[tuple[StopCause, str], list[str]] = {}
    for node in objects.nodes:
        why = excluded_by(node, pod.spec)
        away = "" if why else away_from(node, fixed)
        if why or away:
            cause = StopCause.NODES_EXCLUDED if why else StopCause.CLAIM_ON_ANOTHER_NODE
            groups.setdefault((cause, why or away), []).append(node.metadata.name)
    excluded = {name for names in groups.values() for name in names}
    nodes = tuple(plain_node(node) for node in objects.nodes if node.metadata.name not in excluded)
    # That its claim is elsewhere says more of the pod than that it may not go to some node.
    first = sorted(groups.items(), key=lambda group: group[0][0] is not StopCause.CLAIM_ON_ANOTHER_NODE)
    kept_away = tuple(NodeGroup(tuple(names), cause, why) for (cause, why), names in first)
    try:
        allocator = Allocator(objects.slices, classes, features, new_share_id=lambda: "", rules=taint_rules(rules))
    except DocumentError as error:
        return SchedulerAnswer(cause=StopCause.CLAIM_REFUSED, error=str(error))
    answers = DeviceAnswers(allocator)
    allocations = ((ClaimKey.of(claim), claim.status.allocation) for claim in everything)
    held = Holdings().with_claims((key, allocation) for key, allocation in allocations if allocation is not None)
    try:
        judged = _judged(nodes, answers, answers.demand(unallocated), held)
    except AllocationError as error:
        return SchedulerAnswer(
            cause=_REASONS.get(error.reason, StopCause.CLAIM_REFUSED),
            error=str(error),
            extended=tuple(extended.items()),
        )
    # Of devices that do not fit even where nothing is allocated, nobody is in the path.
    taken = bool(judged) and judged[0].cause is StopCause.DEVICES_IN_USE
    first_node = next((node for node in nodes if taken and node.metadata.name == judged[0].nodes[0]), None)
    usable = allocator.usable(unallocated, answers.view(first_node).pools) if first_node is not None else frozenset()
    holders = _holders(judged[0].nodes[0], usable, everything) if taken else ""
    return SchedulerAnswer((*judged, *kept_away), (holders,) if holders else (), extended=tuple(extended.items()))


def extended_resources(pod: LivePod, classes: Iterable[DeviceClass], features: Features) -> dict[str, str]:
    """Return the DeviceClass of each extended resource of a pod that has one (KEP-5004)."""
    return classes_behind(_requested(pod), classes) if features.extended_resource else {}


def _requested(pod: LivePod) -> dict[str, int]:
    """Return what the containers of a pod ask for, all together."""
    amounts: dict[str, int] = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for resource, amount in container.resources.requests.items():
            amounts[resource] = amounts.get(resource, 0) + ceil(amount.value)
    return amounts


def _nobodys(pod: LivePod, backed: Mapping[str, str], objects: ClusterObjects) -> str:
    """Return which extended resource of a pod nobody has, in a sentence; empty if there is none."""
    for resource, amount in _requested(pod).items():
        if not amount or not is_extended(resource) or resource in backed:
            continue
        if not any(_has(node, resource) for node in objects.nodes):
            return (
                f"no node has the extended resource {resource}, which the pod requests, and no DeviceClass provides it"
            )
    return ""


def _has(node: LiveNode, resource: str) -> bool:
    return node.status.allocatable.get(resource, "0") != "0"


def extended_claim(pod: LivePod, classes: Mapping[str, str]) -> list[ResourceClaim]:
    """Return the claim that kube-scheduler would make for extended resources with these classes; none for none."""
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


def _judged(nodes: Sequence[Node], devices: DeviceAnswers, demand: DeviceDemand, held: Holdings) -> list[NodeGroup]:
    """Return the nodes that nothing but claims keeps, those that come nearest first.

    Args:
        nodes: the nodes.
        devices: what their devices can do for claims.
        demand: what is to be allocated.
        held: what is allocated already.
    """
    answers: dict[str, tuple[_Kept, list[str]]] = {}
    first: list[Node] = []
    for node in nodes:
        miss = _kept(devices, node, demand, held)
        sentence = "" if miss is None else miss.sentence if isinstance(miss, Miss) else str(miss)
        if sentence not in answers:
            first.append(node)
        answers.setdefault(sentence, (miss, []))[1].append(node.metadata.name)

    def nearness(answer: tuple[str, tuple[_Kept, list[str]]]) -> tuple[int, Any]:
        miss = answer[1][0]
        return (2, 0) if miss is None else (1, miss) if isinstance(miss, Miss) else (0, 0)

    # Of several nodes with the same answer, only the first is shown.
    fitting = {node.metadata.name for node in first if _kept(devices, node, demand, Holdings()) is None}
    ordered = sorted(answers.items(), key=nearness, reverse=True)
    return [
        NodeGroup(tuple(names), _cause(miss, taken=names[0] in fitting), sentence)
        for sentence, (miss, names) in ordered
    ]


def _kept(devices: DeviceAnswers, node: Node, demand: DeviceDemand, held: Holdings) -> _Kept:
    """Return what keeps claims from a node; None if they fit there.

    Raises:
        AllocationError: an error that ends the attempt for all nodes.
    """
    solution = devices.solution(node, demand, held)
    if isinstance(solution, AllocationError):
        if solution.scope == "fatal":
            raise solution
        return solution
    return None if solution.picks is not None else devices.miss(node, demand, held)


def _cause(miss: _Kept, *, taken: bool) -> StopCause | None:
    """Return why claims do not fit; `taken` if they would where nothing is allocated."""
    if miss is None or taken:
        return None if miss is None else StopCause.DEVICES_IN_USE
    if isinstance(miss, AllocationError):
        return _REASONS.get(miss.reason, StopCause.DEVICES_DO_NOT_FIT)
    match miss.stage:
        case Stage.SELECTOR if "is not complete" in miss.sentence:
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


def _holders(node: str, usable: Collection[tuple[str, str, str]], everything: Iterable[ResourceClaim]) -> str:
    """Return which claims have usable devices of a node, in one sentence; empty if none has."""
    lines = []
    for claim in everything:
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


_EXCLUDING: Final = frozenset(("NoSchedule", "NoExecute"))
_DAEMON_TOLERATIONS: Final = tuple(
    DeviceToleration(key=f"node.kubernetes.io/{key}", operator="Exists", effect=effect)
    for effect, keys in (
        ("NoExecute", ("not-ready", "unreachable")),
        ("NoSchedule", ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
    )
    for key in keys
)
_NO_NETWORK: Final = DeviceToleration(
    key="node.kubernetes.io/network-unavailable", operator="Exists", effect="NoSchedule"
)
_CORDON: Final = LiveNodeTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def plain_node(node: LiveNode) -> Node:
    """Return a node as the allocator knows it."""
    return Node(metadata=node.metadata, status=node.status)


def daemon_excluded_by(node: LiveNode, spec: DaemonPodSpec) -> str:
    """Return why a DaemonSet leaves a node out, in a sentence; empty if its controller makes a pod for it.

    The controller has its pods tolerate the taints of a node's conditions (pkg/controller/daemon/util).
    """
    added = (*_DAEMON_TOLERATIONS, *((_NO_NETWORK,) if spec.host_network else ()))
    return excluded_by(node, replace(spec, tolerations=(*spec.tolerations, *added)))


def excluded_by(node: LiveNode, spec: LivePodSpec | DaemonPodSpec) -> str:
    """Return why a pod may not go to a node, in a sentence; empty if it may."""
    labels = node.metadata.labels
    for key, value in spec.node_selector.items():
        if labels.get(key) != value:
            return f"the pod's nodeSelector requires {key}={value}"
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is not None and not selects(required, plain_node(node)):
        return "the pod's node affinity excludes it"
    cordon = (_CORDON,) if node.spec.unschedulable else ()
    for taint in (*node.spec.taints, *cordon):
        if taint.effect in _EXCLUDING and not any(_tolerates(toleration, taint) for toleration in spec.tolerations):
            value = f"={taint.value}" if taint.value else ""
            return f"the pod does not tolerate its taint {taint.key}{value}:{taint.effect}"
    return ""


def away_from(node: LiveNode, allocations: Iterable[tuple[str, AllocationResult]]) -> str:
    """Return which allocated claim is not available on a node, in a sentence; empty if all are."""
    for claim, allocation in allocations:
        selector: NodeSelector | None = allocation.node_selector
        if selector is not None and not selects(selector, plain_node(node)):
            return f"the claim {claim} is allocated elsewhere"
    return ""


def _tolerates(toleration: DeviceToleration, taint: LiveNodeTaint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def fit_answer(documents: Sequence[SourceDocument], kinds: Iterable[str], pod: str, features: Features) -> FitAnswer:
    """Return where a pod would go now, or what keeps it from every node.

    Args:
        documents: the cluster.
        kinds: the kinds whose objects are complete.
        pod: `<namespace>/<name>`.
        features: the release and the gates.

    Raises:
        DocumentError: there is no such pod, or a document does not decode.
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
