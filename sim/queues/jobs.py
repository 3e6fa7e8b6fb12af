"""Jobs that ask for a queue, as the Workloads that Kueue makes of them.

Source: reconciler of `batch/v1` Jobs in Kueue: one pod set `main` of as many pods as may run at once, and the priority
of the class that a label or the pod template names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import field

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.resource import APIDocument, ObjectMeta
from dranode.sim.queues.workload_document import (
    PodSetSpec,
    PodTemplate,
    WorkloadCondition,
    WorkloadDocument,
    WorkloadSpec,
    WorkloadStatus,
)
from dranode.sim.scheduler.amounts import check_pod_amounts
from dranode.sim.scheduler.documents import SchedulingPod

JOB: Final = "batch/v1", "Job"
# Kueue calls a Job's workload `job-<name>-<hash>`.
PREFIX: Final = "job-"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
_LEAST_ANNOTATION: Final = "kueue.x-k8s.io/job-min-parallelism"
_DIGITS: Final = 10
_ENDS: Final = frozenset({"Complete", "Failed"})


class _WholeSpec(APIDocument, frozen=True, kw_only=True):
    template: SchedulingPod = SchedulingPod()


class _Whole(APIDocument, frozen=True, kw_only=True):
    """The Job with all of its pods that kube-scheduler sees."""

    spec: _WholeSpec = _WholeSpec()


class _JobSpec(APIDocument, frozen=True, kw_only=True):
    template: PodTemplate
    parallelism: int = 1
    completions: int | None = None


class _JobStatus(APIDocument, frozen=True, kw_only=True):
    conditions: tuple[WorkloadCondition, ...] = ()


class _Job(APIDocument, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: _JobSpec
    status: _JobStatus = field(default_factory=_JobStatus)


def workload_of_job(document: Mapping[str, Any]) -> WorkloadDocument | None:
    """The Workload of a Job; None if no queue is asked for.

    Raises:
        DocumentError: the Job does not decode, the least number of pods is none, or the pods ask for amounts that the
            API server refuses.
    """
    job = decode(_Job, document)
    queue = job.metadata.labels.get(QUEUE_LABEL)
    if not queue:
        return None
    count = job.spec.parallelism if job.spec.completions is None else min(job.spec.parallelism, job.spec.completions)
    pods = PodSetSpec(count=count, min_count=_least(job.metadata), template=job.spec.template)
    finished = tuple(
        WorkloadCondition(type="Finished", status=each.status, last_transition_time=each.last_transition_time)
        for each in job.status.conditions
        if each.type in _ENDS
    )
    pod = decode(_Whole, document).spec.template
    check_pod_amounts(pod, "spec.template.")
    named = pod.spec.priority_class_name
    label = job.metadata.labels.get(_PRIORITY_LABEL, "")
    priority = {"kind": "WorkloadPriorityClass", "name": label} if label else {"kind": "PriorityClass", "name": named}
    return WorkloadDocument(
        metadata=ObjectMeta(
            name=f"{PREFIX}{job.metadata.name}",
            namespace=job.metadata.namespace,
            creation_timestamp=job.metadata.creation_timestamp,
        ),
        spec=WorkloadSpec(pod_sets=(pods,), queue_name=queue, priority_class_ref=priority if priority["name"] else {}),
        status=WorkloadStatus(conditions=finished),
    )


def _least(metadata: ObjectMeta) -> int | None:
    text = metadata.annotations.get(_LEAST_ANNOTATION)
    if text is not None and not (text.isdecimal() and len(text) <= _DIGITS):
        raise DocumentError(f'"{text}" is not a number of pods', f"metadata.annotations[{_LEAST_ANNOTATION}]")
    return None if text is None else int(text)
