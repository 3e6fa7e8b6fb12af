"""Workloads from their documents: those that wait, and those that hold quota."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dranode.api.errors import DocumentError
from dranode.sim.queues.amounts import amount
from dranode.sim.queues.checks import check_reclaimable, check_workload
from dranode.sim.queues.counts import Devices, UncountableError, pod_counts, refusal_of_claims
from dranode.sim.queues.namespaces import refusal
from dranode.sim.queues.sources import SourceValue
from dranode.sim.queues.values import Admitted, FlavorResource, PodSet, Queues, Workload
from dranode.sim.queues.workload_document import (
    Admission,
    PodSetSpec,
    WorkloadDocument,
    WorkloadSpec,
)
from dranode.sim.scheduler.labels import LabelSelector

_GATED_BY: Final = "kueue.x-k8s.io/admission-gated-by"
_BOOST: Final = "kueue.x-k8s.io/priority-boost"


@dataclass(frozen=True, slots=True)
class WorkloadContext:
    """The surroundings that a workload is read against.

    Attributes:
        doors: by LocalQueue, the ClusterQueue behind it.
        stopped: by ClusterQueue or LocalQueue, why it takes no workloads.
        selectors: by ClusterQueue, which namespaces it takes workloads from; None is no namespace.
        namespaces: by namespace, its labels.
        priorities: by kind and name of a priority class, its number.
    """

    queues: Queues
    devices: Devices
    doors: Mapping[str, str]
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
        queue, path = around.doors.get(door, ""), "spec.queueName"
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
    required = pod.affinity.node_affinity.required
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
