"""Documents with their places for error messages, and Jobs as Workloads.

Source: Kueue's reconciler of `batch/v1` Jobs: one pod set `main` with as many pods as may run at the same time, and the
priority of the class that a label or the pod template names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from msgspec import field

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument, DeviceClass, ObjectMeta, ResourceClaimTemplate
from dranode.sim.queues.documents import (
    PodSetSpec,
    PodTemplate,
    PriorityClassDocument,
    WorkloadCondition,
    WorkloadDocument,
    WorkloadSpec,
    WorkloadStatus,
    read_document,
)
from dranode.sim.scheduler.amounts import check_pod
from dranode.sim.scheduler.documents import SchedulingPod

JOB: Final = "batch/v1", "Job"
# Kueue calls a Job's workload `job-<name>-<hash>`.
PREFIX: Final = "job-"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
_LEAST_ANNOTATION: Final = "kueue.x-k8s.io/job-min-parallelism"
_DIGITS: Final = 10
_ENDS: Final = frozenset({"Complete", "Failed"})


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
    """Return the Workload of a Job; None if the Job has no queue.

    Raises:
        DocumentError: the Job does not decode, its minimum parallelism is not a number, or the API server would reject
            its pods.
    """
    job = decode(_Job, document)
    queue = job.metadata.labels.get(QUEUE_LABEL)
    if not queue:
        return None
    count = job.spec.parallelism if job.spec.completions is None else min(job.spec.parallelism, job.spec.completions)
    pods = PodSetSpec(count=count, min_count=_least(job.metadata), template=job.spec.template)
    finished = tuple(
        WorkloadCondition(type="Finished", status=condition.status, last_transition_time=condition.last_transition_time)
        for condition in job.status.conditions
        if condition.type in _ENDS
    )
    pod = job.spec.template.spec
    check_pod(SchedulingPod(spec=pod), "spec.template.")
    label = job.metadata.labels.get(_PRIORITY_LABEL, "")
    priority = (
        {"kind": "WorkloadPriorityClass", "name": label}
        if label
        else {"kind": "PriorityClass", "name": pod.priority_class_name}
    )
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


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceValue(Generic[T]):
    """A document with its decoded value; a value derived from a Job has the `prefix` in its name."""

    source: SourceDocument
    value: T
    prefix: str = ""

    @property
    def name(self) -> str:
        """Return `metadata.name`."""
        return self.source.name

    @property
    def key(self) -> str:
        """Return `<namespace>/<name>`."""
        namespace = (self.source.document.get("metadata") or {}).get("namespace")
        return f"{namespace or 'default'}/{self.prefix}{self.source.name}"

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with `arguments`; an error gets the place of the document."""
        return located(self.source, function, *arguments)


def located(source: SourceDocument, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with `arguments` and return its answer.

    Raises:
        DocumentError: the function raised it; the document's place (file and object) is prepended.
    """
    try:
        return function(*arguments)
    except DocumentError as error:
        placed = DocumentError(f"{source.place}: {error}")
        placed.path = error.path
        raise placed from error


def find(sources: Iterable[SourceDocument]) -> tuple[SourceValue[Any], ...]:
    """Return Kueue's documents, Jobs with a queue, ResourceClaimTemplates and classes; others are ignored.

    A Job is also ignored if its Workload is among the documents.

    Raises:
        DocumentError: a document does not decode.
    """
    sources = tuple(sources)
    values = [(source, located(source, _value, source)) for source in sources]
    decoded = [SourceValue(source, value) for source, value in values if value is not None]
    owned = {
        (item.key.partition("/")[0], owner.name)
        for item in decoded
        if isinstance(item.value, WorkloadDocument)
        for owner in item.value.metadata.owner_references
        if owner.kind == JOB[1]
    }
    for source in sources:
        if (source.document.get("apiVersion"), source.kind) == JOB:
            job = SourceValue(source, located(source, workload_of_job, source.document), PREFIX)
            if job.value is not None and (job.key.partition("/")[0], source.name) not in owned:
                decoded.append(job)
    return tuple(decoded)


def of_kind(values: Iterable[SourceValue[Any]], kind: type[T]) -> Iterator[SourceValue[T]]:
    """Yield the values of one kind.

    Raises:
        DocumentError: an object occurs twice.
    """
    places: dict[str, SourceDocument] = {}
    for item in values:
        if isinstance(item.value, kind):
            if item.key in places:
                raise DocumentError(f"{item.source.place} is also in {places[item.key].place}; keep one")
            places[item.key] = item.source
            yield item


def _value(source: SourceDocument) -> object | None:
    if source.kind == "ResourceClaimTemplate":
        return decode(ResourceClaimTemplate, source.document)
    if source.kind == "DeviceClass":
        return decode(DeviceClass, source.document)
    if source.kind == "PriorityClass":
        return decode(PriorityClassDocument, source.document)
    return read_document(source.document)
