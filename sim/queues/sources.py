"""Documents with their places for error messages, and Jobs as Workloads.

Source: Kueue's reconciler of `batch/v1` Jobs: one pod set `main` with as many pods as may run at the same time, and the
priority of the class that a label or the pod template names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceClass, ObjectMeta, ResourceClaimTemplate
from dranode.sim.cluster.controllers import Controller, checked_template, job_indexes
from dranode.sim.cluster.manifests import key_of
from dranode.sim.queues.documents import (
    ConfigurationDocument,
    LocalQueueDocument,
    PodSetSpec,
    PodTemplate,
    PriorityClassDocument,
    ReclaimablePod,
    WorkloadCondition,
    WorkloadDocument,
    WorkloadSpec,
    WorkloadStatus,
    read_document,
)

JOB: Final = "batch/v1", "Job"
# Kueue calls a Job's workload `job-<name>-<hash>`.
PREFIX: Final = "job-"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
_PREBUILT_LABEL: Final = "kueue.x-k8s.io/prebuilt-workload-name"
_LEAST_ANNOTATION: Final = "kueue.x-k8s.io/job-min-parallelism"
_DIGITS: Final = 10
_ENDS: Final = frozenset({"Complete", "Failed"})


def workload_of_job(document: Mapping[str, Any], default: str = "") -> WorkloadDocument | None:
    """Return the Workload that Kueue creates for a Job; None if the Job has no queue, or names its Workload itself.

    A Job without a queue that no API server has stored gets the queue `default`.

    Raises:
        DocumentError: the Job does not decode, its minimum parallelism is invalid, or the API server would reject it.
    """
    job = decode(Controller, document)
    queue = job.metadata.labels.get(QUEUE_LABEL) or ("" if job.metadata.uid else default)
    if not queue or _PREBUILT_LABEL in job.metadata.labels:
        return None
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    completions = parallelism if job.spec.completions is None else job.spec.completions
    count = min(parallelism, completions)
    pod = checked_template(job.spec.template or {}, "spec.template", stored=bool(job.metadata.uid))
    template = PodTemplate(metadata=pod.metadata, spec=pod.spec)
    pods = PodSetSpec(count=count, min_count=_least(job.metadata, count), template=template)
    left = max(0, completions - _ended(job, completions))
    finished = tuple(
        WorkloadCondition(type="Finished", status=condition.status)
        for condition in job.status.conditions
        if condition.type in _ENDS
    )
    label = job.metadata.labels.get(_PRIORITY_LABEL, "")
    priority = (
        {"kind": "WorkloadPriorityClass", "name": label}
        if label
        else {"kind": "PriorityClass", "name": pod.spec.priority_class_name}
    )
    return WorkloadDocument(
        metadata=ObjectMeta(
            name=f"{PREFIX}{job.metadata.name}",
            namespace=job.metadata.namespace,
            creation_timestamp=job.metadata.creation_timestamp,
        ),
        spec=WorkloadSpec(pod_sets=(pods,), queue_name=queue, priority_class_ref=priority if priority["name"] else {}),
        status=WorkloadStatus(
            conditions=finished, reclaimable_pods=(ReclaimablePod(name=pods.name, count=max(0, count - left)),)
        ),
    )


def _least(metadata: ObjectMeta, count: int) -> int | None:
    text = metadata.annotations.get(_LEAST_ANNOTATION)
    if text is None:
        return None
    number = int(text) if text.isdecimal() and len(text) <= _DIGITS else 0
    # A Job that was admitted with fewer pods has only those.
    if not (0 < number < count or (number and metadata.uid)):
        raise DocumentError(
            f'"{text}" is not a number from 1 to {count - 1}, below the {count} pods of the Job',
            f"metadata.annotations[{_LEAST_ANNOTATION}]",
        )
    return min(number, count) or None


def _ended(job: Controller, completions: int) -> int:
    """Return how many of a Job's pods will not run again."""
    status = job.status
    if job.spec.completion_mode != "Indexed":
        return status.succeeded
    return len(set(job_indexes(f"{status.completed_indexes},{status.failed_indexes or ''}", completions)))


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
    with source.names_errors():
        return function(*arguments)


def find(sources: Iterable[SourceDocument]) -> tuple[SourceValue[Any], ...]:
    """Return Kueue's documents, Jobs with a queue, ResourceClaimTemplates and classes; others are ignored.

    A Job is also ignored if its Workload is among the documents.

    Raises:
        DocumentError: a document does not decode, or has no name.
    """
    sources = tuple(sources)
    values = [(source, located(source, _value, source)) for source in sources]
    decoded = [SourceValue(source, value) for source, value in values if value is not None]
    owned = {
        (key_of(item.source).namespace, owner.name)
        for item in decoded
        if isinstance(item.value, WorkloadDocument)
        for owner in item.value.metadata.owner_references
        if (owner.api_version, owner.kind) == JOB
    }
    queues = {item.key for item in decoded if isinstance(item.value, LocalQueueDocument)}
    for source in sources:
        if (source.document.get("apiVersion"), source.kind) == JOB:
            namespace = key_of(source).namespace
            default = "default" if f"{namespace}/default" in queues else ""
            job = SourceValue(source, located(source, workload_of_job, source.document, default), PREFIX)
            if job.value is not None and (namespace, source.name) not in owned:
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
    value = read_document(source.document)
    if not (value is None or source.name or isinstance(value, ConfigurationDocument)):
        raise DocumentError("a name is required", "metadata.name")
    return value
