"""Reads waiting and admitted workloads from their documents, and generates the pods of admitted ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dranode.api.documents import encode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.sim.queues.checks import check_reclaimable, check_workload
from dranode.sim.queues.counts import Devices, UncountableError, pod_counts, refusal_of_claims
from dranode.sim.queues.documents import Admission, PodSetSpec, WorkloadDocument, WorkloadSpec
from dranode.sim.queues.sources import SourceValue
from dranode.sim.queues.values import Admitted, FlavorResource, PodSet, Queues, ResourceFlavor, Workload, amount
from dranode.sim.scheduler.documents import LabelMatcher, LabelSelector

_NAME_LABEL: Final = "kubernetes.io/metadata.name"


def refusal(
    queue: str, selector: LabelSelector | None, namespace: str, namespaces: Mapping[str, Mapping[str, str]]
) -> str:
    """Return why the queue admits no workloads from the namespace, in one sentence; empty if it does.

    Args:
        queue: the ClusterQueue's name.
        selector: its `spec.namespaceSelector`; None selects no namespace, an empty selector all.
        namespace: the workload's namespace; it always has the label `kubernetes.io/metadata.name`.
        namespaces: the labels of the known namespaces, by name.
    """
    if selector is None:
        return f"ClusterQueue {queue} has no namespaceSelector, so it admits no workloads; set it to {{}} to admit all"
    labels = {**namespaces.get(namespace, {}), _NAME_LABEL: namespace}
    if LabelMatcher(selector).matches(labels):
        return ""
    unknown = "" if namespace in namespaces else ", whose labels are unknown"
    return f"the namespaceSelector of ClusterQueue {queue} does not match the namespace {namespace}{unknown}"


_GATED_BY: Final = "kueue.x-k8s.io/admission-gated-by"
_BOOST: Final = "kueue.x-k8s.io/priority-boost"
_LATE: Final = ("PodsReadyTimeout", "AdmissionCheck")


@dataclass(frozen=True, slots=True)
class WorkloadContext:
    """Everything besides its document that a workload depends on.

    Attributes:
        cluster_queue_names: the ClusterQueue of each LocalQueue.
        stopped: why each stopped ClusterQueue and LocalQueue admits nothing: its stop policy, or its deletion.
        selectors: the namespaceSelector of each ClusterQueue; None selects no namespace.
        namespaces: the labels of each namespace.
        priorities: the value of each priority class, by kind and name.
    """

    queues: Queues
    devices: Devices
    cluster_queue_names: Mapping[str, str]
    stopped: Mapping[str, str]
    selectors: Mapping[str, LabelSelector | None]
    namespaces: Mapping[str, Mapping[str, str]]
    priorities: Mapping[tuple[str, str], int]


def ages(documents: tuple[SourceValue[WorkloadDocument], ...]) -> list[float]:
    """Return the time by which each workload is in its queue, in seconds since the epoch.

    That is its creation, or its last eviction by an admission check or because its pods were not ready in time.
    Workloads without a time come last, in the order of the documents.
    """
    times = [
        seconds(item.value.status.since("Evicted", _LATE) or item.value.metadata.creation_timestamp)
        for item in documents
    ]
    latest = max((time for time in times if time is not None), default=0.0)
    return [latest + number if time is None else time for number, time in enumerate(times, start=1)]


def seconds(timestamp: str | None) -> float | None:
    """Return an API time (RFC 3339) in seconds since the epoch; None if it is missing or invalid."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except ValueError:
        return None


def workload_of(document: WorkloadDocument, key: str, created: float, around: WorkloadContext) -> Workload:
    """Return the workload of a document.

    Args:
        document: the Workload.
        key: `<namespace>/<name>`.
        created: its creation time, from `ages`.
        around: queues, namespaces and priorities.

    Raises:
        DocumentError: it holds quota of a queue that does not exist, or a number is invalid.
    """
    spec = document.spec
    check_workload(spec)
    check_reclaimable(document)
    namespace = key.partition("/")[0]
    local_queue = f"{namespace}/{spec.queue_name}"
    if document.status.quota is not None:
        queue = document.status.quota.cluster_queue
    else:
        queue = around.cluster_queue_names.get(local_queue, "")
    why = ""
    if queue not in around.queues.cluster_queues:
        missing = f'ClusterQueue "{queue}"' if queue else f'LocalQueue "{local_queue}"'
        why = f"no document defines {missing}; add it"
        if document.status.quota is not None:
            raise DocumentError(why, "status.admission.clusterQueue")
    # HoldAndDrain of one of the queues goes before Hold of the other.
    stopped = max(around.stopped.get(queue, ""), around.stopped.get(local_queue, ""))
    why = why or (f"the queue {stopped}" if stopped else "")
    why = why or document.status.holds_back
    why = why or refusal(queue, around.selectors.get(queue), namespace, around.namespaces)
    gates, annotations = around.queues.gates, document.metadata.annotations
    gated = annotations.get(_GATED_BY) if gates.admission_gated_by else None
    why = why or (f"the annotation {_GATED_BY} keeps it waiting for {gated}" if gated else "")
    ended = {item.name: item.count for item in document.status.reclaimable_pods} if gates.reclaimable_pods else {}
    pod_sets = []
    for pod_set in spec.pod_sets:
        try:
            counts = pod_counts(pod_set.template.spec, namespace, around.devices)
        except UncountableError as error:
            counts, why = {}, why or f"pod set {pod_set.name}: {error}"
        refused = refusal_of_claims(pod_set.template.spec, namespace, around.devices)
        for container in (*pod_set.template.spec.init_containers, *pod_set.template.spec.containers):
            for name, limit in container.resources.limits.items():
                if (request := container.resources.requests.get(name, limit)) > limit:
                    refused = refused or f"a container requests {name}: {request}, more than its limit of {limit}"
        why = why or (f"pod set {pod_set.name}: {refused}" if refused else "")
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
    """Return the workload's priority, or that of its priority class."""
    name = spec.priority_class_ref.get("name")
    if spec.priority is not None or not name:
        return spec.priority or 0
    kinds = [kind] if (kind := spec.priority_class_ref.get("kind")) else ["WorkloadPriorityClass", "PriorityClass"]
    number = [priorities[kind_of_class, name] for kind_of_class in kinds if (kind_of_class, name) in priorities]
    if not number:
        raise DocumentError(
            f'no document defines the {" or ".join(kinds)} "{name}"; add it, or set the number here', "spec.priority"
        )
    return number[0]


def _pod_set(spec: PodSetSpec, counts: dict[str, int], queues: Queues, queue: str, ended: int) -> PodSet:
    pod = spec.template.spec
    required = pod.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if queue in queues.cluster_queues and queues.cluster_queues[queue].group_of("pods") is not None:
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
    """Return a workload that holds quota, according to its status.

    Raises:
        DocumentError: its status has an unknown flavor or pod set, or negative usage.
    """
    pod_sets = {pod_set.name: pod_set for pod_set in workload.pod_sets}
    quotas = queues.cluster_queues[workload.queue].quotas
    flavors: dict[str, Mapping[str, str]] = {}
    counts: dict[str, int] = {}
    usage: dict[FlavorResource, int] = {}
    for number, item in enumerate(admission.pod_set_assignments):
        path = f"status.admission.podSetAssignments[{number}]"
        pod_set = pod_sets.get(item.name)
        if pod_set is None:
            raise DocumentError(f'the workload has no pod set "{item.name}"', f"{path}.name")
        flavors[item.name] = item.flavors
        admitted_pods = pod_set.count + pod_set.ended if item.count is None else item.count
        counts[item.name] = min(admitted_pods, pod_set.count)
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
                if counts[item.name] < admitted_pods:
                    used = used // admitted_pods * counts[item.name]
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
    """Return a Pod document for each pod: `<workload>-<pod set>-<number>`, with labels and tolerations of its flavors.

    In the documents, `index` is the number of the pod, and `file` the workload's key.
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
