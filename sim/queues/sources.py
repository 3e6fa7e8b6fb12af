"""Documents that have been read, each with the place that an error has to name; Jobs become Workloads.

Source: reconciler of `batch/v1` Jobs in Kueue: one pod set `main` of as many pods as may run at once, and the priority
of the class that a label or the pod template names.
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
    pod = job.spec.template.spec
    check_pod_amounts(SchedulingPod(spec=pod), "spec.template.")
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
    """A document and its value; `prefix` is what the value is called beside the document: a Job's workload."""

    source: SourceDocument
    value: T
    prefix: str = ""

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.source.name

    @property
    def key(self) -> str:
        """`<namespace>/<name>`."""
        namespace = (self.source.document.get("metadata") or {}).get("namespace")
        return f"{namespace or 'default'}/{self.prefix}{self.source.name}"

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with `arguments`, as `located` does for the document."""
        return located(self.source, function, *arguments)


def located(source: SourceDocument, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with `arguments` and return its answer.

    Raises:
        DocumentError: the function raised it; the document's place (file and object) is put in front.
    """
    try:
        return function(*arguments)
    except DocumentError as error:
        placed = DocumentError(f"{source.place}: {error}")
        placed.path = error.path
        raise placed from error


def find(sources: Iterable[SourceDocument]) -> tuple[SourceValue[Any], ...]:
    """Kueue's documents, Jobs that ask for a queue, ResourceClaimTemplates and classes; others are left alone.

    A Job whose Workload is among the documents is left alone too.

    Raises:
        DocumentError: one does not fit.
    """
    sources = tuple(sources)
    values = [(source, located(source, _value, source)) for source in sources]
    known = [SourceValue(source, value) for source, value in values if value is not None]
    owned = {
        (item.key.partition("/")[0], owner.name)
        for item in known
        if isinstance(item.value, WorkloadDocument)
        for owner in item.value.metadata.owner_references
        if owner.kind == JOB[1]
    }
    for source in sources:
        if (source.document.get("apiVersion"), source.kind) == JOB:
            job = SourceValue(source, located(source, workload_of_job, source.document), PREFIX)
            if job.value is not None and (job.key.partition("/")[0], source.name) not in owned:
                known.append(job)
    return tuple(known)


def of_kind(values: Iterable[SourceValue[Any]], kind: type[T]) -> Iterator[SourceValue[T]]:
    """Those of one kind.

    Raises:
        DocumentError: one is there twice.
    """
    seen: dict[str, SourceDocument] = {}
    for item in values:
        if isinstance(item.value, kind):
            if item.key in seen:
                raise DocumentError(f"{item.source.place} is also in {seen[item.key].place}; keep one")
            seen[item.key] = item.source
            yield item


def _value(source: SourceDocument) -> object | None:
    if source.kind == "ResourceClaimTemplate":
        return decode(ResourceClaimTemplate, source.document)
    if source.kind == "DeviceClass":
        return decode(DeviceClass, source.document)
    if source.kind == "PriorityClass":
        return decode(PriorityClassDocument, source.document)
    return read_document(source.document)
