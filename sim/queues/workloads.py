"""Workloads from their documents: those that wait, those that hold quota, and the pods of those that are admitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dranode.api.documents import decode, encode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument, ObjectMeta
from dranode.sim.allocator.pools import requirement_holds
from dranode.sim.queues.checks import check_reclaimable, check_workload
from dranode.sim.queues.counts import Devices, UncountableError, pod_counts, refusal_of_claims
from dranode.sim.queues.documents import Admission, PodSetSpec, WorkloadDocument, WorkloadSpec
from dranode.sim.queues.sources import SourceValue
from dranode.sim.queues.values import Admitted, FlavorResource, PodSet, Queues, ResourceFlavor, Workload, amount
from dranode.sim.scheduler.documents import LabelSelector

_NAME_LABEL: Final = "kubernetes.io/metadata.name"


class _Namespace(APIDocument, frozen=True, kw_only=True):
    metadata: ObjectMeta


def namespaces_of(sources: Iterable[SourceDocument]) -> Mapping[str, Mapping[str, str]]:
    """The labels of the Namespaces among the documents, by name.

    Raises:
        DocumentError: a Namespace does not decode.
    """
    found = (decode(_Namespace, source.document).metadata for source in sources if source.kind == "Namespace")
    return {metadata.name: metadata.labels for metadata in found}


def refusal(
    queue: str, selector: LabelSelector | None, namespace: str, namespaces: Mapping[str, Mapping[str, str]]
) -> str:
    """Return why the queue takes no workloads from the namespace, in one sentence; empty if it does.

    Args:
        queue: the ClusterQueue's name.
        selector: its `spec.namespaceSelector`; None selects no namespace, an empty selector all.
        namespace: the workload's namespace, which has the label `kubernetes.io/metadata.name` in any case.
        namespaces: the labels of the known namespaces, by name.
    """
    if selector is None:
        return f"ClusterQueue {queue} has no namespaceSelector, so it admits no workloads; {{}} admits all"
    labels = {**namespaces.get(namespace, {}), _NAME_LABEL: namespace}
    if selector.match_labels.items() <= labels.items() and all(
        requirement_holds(each, labels) for each in selector.match_expressions
    ):
        return ""
    unknown = "" if namespace in namespaces else ", whose labels are unknown"
    return f"the namespaceSelector of ClusterQueue {queue} does not match the namespace {namespace}{unknown}"


_GATED_BY: Final = "kueue.x-k8s.io/admission-gated-by"
_BOOST: Final = "kueue.x-k8s.io/priority-boost"


@dataclass(frozen=True, slots=True)
class WorkloadContext:
    """The surroundings that a workload is read against.

    Attributes:
        cluster_queue_names: by LocalQueue, the ClusterQueue behind it.
        stopped: by ClusterQueue or LocalQueue, why it takes no workloads.
        selectors: by ClusterQueue, which namespaces it takes workloads from; None is no namespace.
        namespaces: by namespace, its labels.
        priorities: by kind and name of a priority class, its number.
    """

    queues: Queues
    devices: Devices
    cluster_queue_names: Mapping[str, str]
    stopped: Mapping[str, str]
    selectors: Mapping[str, LabelSelector | None]
    namespaces: Mapping[str, Mapping[str, str]]
    priorities: Mapping[tuple[str, str], int]


def ages(documents: tuple[SourceValue[WorkloadDocument], ...]) -> list[float]:
    """Return when each workload was created, in seconds since the epoch.

    Those without a time come last, in file order.
    """
    times = [seconds(item.value.metadata.creation_timestamp) for item in documents]
    latest = max((time for time in times if time is not None), default=0.0)
    return [latest + number if time is None else time for number, time in enumerate(times, start=1)]


def seconds(timestamp: str | None) -> float | None:
    """A time of the API (RFC 3339) in seconds since the epoch; None where there is none, or none that can be read."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except ValueError:
        return None


def workload_of(document: WorkloadDocument, key: str, created: float, around: WorkloadContext) -> Workload:
    """The workload of a document.

    Args:
        document: the Workload.
        key: `<namespace>/<name>`.
        created: when it was made, as `ages` gives it.
        around: what it is read against.

    Raises:
        DocumentError: it goes to a queue that does not exist, or has numbers that make no sense.
    """
    spec = document.spec
    check_workload(spec)
    check_reclaimable(document)
    namespace = key.partition("/")[0]
    door = f"{namespace}/{spec.queue_name}"
    if document.status.admission is not None:
        queue, path = document.status.admission.cluster_queue, "status.admission.clusterQueue"
    else:
        queue, path = around.cluster_queue_names.get(door, ""), "spec.queueName"
    if queue not in around.queues.cluster_queues:
        missing = f'ClusterQueue "{queue}"' if queue else f'LocalQueue "{door}"'
        raise DocumentError(f"no document defines {missing}; add it", path)
    held = around.stopped.get(queue) or around.stopped.get(door)
    why = f"the queue is stopped ({held})" if held else ""
    why = why or refusal(queue, around.selectors.get(queue), namespace, around.namespaces)
    gates, annotations = around.queues.gates, document.metadata.annotations
    gated = annotations.get(_GATED_BY) if gates.admission_gated_by else None
    why = why or (f"the annotation {_GATED_BY} keeps it waiting for {gated}" if gated else "")
    ended = {each.name: each.count for each in document.status.reclaimable_pods} if gates.reclaimable_pods else {}
    pod_sets = []
    for pod_set in spec.pod_sets:
        try:
            counts = pod_counts(pod_set.template.spec, namespace, around.devices)
        except UncountableError as error:
            counts, why = {}, why or f"pod set {pod_set.name}: {error}"
        refusal_by_claims = refusal_of_claims(pod_set.template.spec, namespace, around.devices)
        why = why or (f"pod set {pod_set.name}: {refusal_by_claims}" if refusal_by_claims else "")
        pod_sets.append(_pod_set(pod_set, counts, around.queues, queue, ended.get(pod_set.name, 0)))
    priority = _priority(spec, around.priorities) + (_boost(annotations) if gates.priority_boost else 0)
    return Workload(key, queue, priority, created, tuple(pod_sets), why)


def _boost(annotations: Mapping[str, str]) -> int:
    text = annotations.get(_BOOST, "")
    try:
        return int(text or "0")
    except ValueError as error:
        raise DocumentError(f'"{text}" is not a whole number', f"metadata.annotations[{_BOOST}]") from error


def _priority(spec: WorkloadSpec, priorities: Mapping[tuple[str, str], int]) -> int:
    """The number that is written, else that of the class that is named."""
    name = spec.priority_class_ref.get("name") or spec.priority_class_name
    if spec.priority is not None or not name:
        return spec.priority or 0
    kinds = [kind] if (kind := spec.priority_class_ref.get("kind")) else ["WorkloadPriorityClass", "PriorityClass"]
    number = [priorities[each, name] for each in kinds if (each, name) in priorities]
    if not number:
        raise DocumentError(
            f'no document defines the {" or ".join(kinds)} "{name}"; add it, or write the number here', "spec.priority"
        )
    return number[0]


def _pod_set(spec: PodSetSpec, counts: dict[str, int], queues: Queues, queue: str, ended: int) -> PodSet:
    pod = spec.template.spec
    required = pod.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if queues.cluster_queues[queue].group_of("pods") is not None:
        counts = {**counts, "pods": 1}
    return PodSet(
        spec.name,
        spec.count - min(ended, spec.count),
        counts,
        spec.min_count,
        pod.node_selector,
        required.node_selector_terms if required is not None else (),
        pod.tolerations,
        min(ended, spec.count),
        spec.topology_request.pod_set_group_name or "",
    )


def admitted_of(document: WorkloadDocument, admission: Admission, workload: Workload, queues: Queues) -> Admitted:
    """A workload that holds quota, by what its status says.

    Raises:
        DocumentError: a flavor or pod set that its queue or it does not have, or negative usage.
    """
    known = {pod_set.name: pod_set for pod_set in workload.pod_sets}
    quotas = queues.cluster_queues[workload.queue].quotas
    flavors: dict[str, Mapping[str, str]] = {}
    counts: dict[str, int] = {}
    usage: dict[FlavorResource, int] = {}
    for number, item in enumerate(admission.pod_set_assignments):
        path = f"status.admission.podSetAssignments[{number}]"
        pod_set = known.get(item.name)
        if pod_set is None:
            raise DocumentError(f'the workload has no pod set "{item.name}"', f"{path}.name")
        flavors[item.name] = item.flavors
        given = pod_set.count + pod_set.ended if item.count is None else item.count
        counts[item.name] = min(given, pod_set.count)
        for resource, flavor in item.flavors.items():
            of = FlavorResource(flavor, resource)
            if of not in quotas:
                raise DocumentError(
                    f'ClusterQueue "{workload.queue}" has no quota of {of}; add it or name another',
                    f"{path}.flavors.{resource}",
                )
            used = pod_set.requests.get(resource, 0) * counts[item.name]
            if resource in item.resource_usage:
                used = amount(resource, item.resource_usage[resource])
                if counts[item.name] < given:
                    used = used // given * counts[item.name]
            if used < 0:
                raise DocumentError(f"{item.resource_usage[resource]} is below 0", f"{path}.resourceUsage.{resource}")
            usage[of] = usage.get(of, 0) + used
    reserved = seconds(document.status.since("QuotaReserved"))
    return Admitted(
        workload,
        flavors,
        counts,
        usage,
        workload.created if reserved is None else reserved,
        evicted=document.status.since("Evicted") is not None,
    )


def pods_of(
    document: WorkloadDocument, admitted: Admitted, flavors: Mapping[str, ResourceFlavor]
) -> tuple[SourceDocument, ...]:
    """One Pod document for each pod: `<workload>-<pod set>-<number>`, with the labels and tolerations of its flavors.

    `index` counts the pods; `file` is the workload's key.
    """
    pods = [
        _pod(
            document, pod_set, number, [flavors[name] for name in sorted(set(admitted.flavors[pod_set.name].values()))]
        )
        for pod_set in document.spec.pod_sets
        if pod_set.name in admitted.flavors
        for number in range(admitted.counts[pod_set.name])
    ]
    return tuple(SourceDocument(admitted.workload.key, index, pod) for index, pod in enumerate(pods))


def _pod(document: WorkloadDocument, pod_set: PodSetSpec, number: int, flavors: list[ResourceFlavor]) -> dict[str, Any]:
    template = pod_set.template
    spec: dict[str, Any] = encode(template.spec)
    labels = {key: value for flavor in flavors for key, value in flavor.node_labels.items()}
    tolerations = [*template.spec.tolerations, *(item for flavor in flavors for item in flavor.tolerations)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{document.metadata.name}-{pod_set.name}-{number}",
            "namespace": document.metadata.namespace or "default",
            "labels": dict(template.metadata.labels),
        },
        "spec": {
            **spec,
            "nodeSelector": {**template.spec.node_selector, **labels},
            "tolerations": [encode(item) for item in tolerations],
        },
    }
