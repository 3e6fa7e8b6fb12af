"""Documents that have been read, each with the place that an error has to name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceClass, ResourceClaimTemplate
from dranode.sim.queues.documents import PriorityClassDocument, read_document
from dranode.sim.queues.jobs import JOB, PREFIX, workload_of_job
from dranode.sim.queues.workload_document import WorkloadDocument

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
                raise DocumentError(f"{item.source.place} is there already, in {seen[item.key].place}; keep one")
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
