"""Documents that have been read, each with the place that an error has to name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dranode.driver.core.documents import decode
from dranode.driver.core.errors import DocumentError
from dranode.driver.core.resource import DeviceClass, ResourceClaimTemplate
from dranode.driver.local.files import SourceDocument
from dranode.driver.local.queues.documents import read

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A document and its value."""

    source: SourceDocument
    value: T

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.source.name

    @property
    def key(self) -> str:
        """`<namespace>/<name>`."""
        namespace = (self.source.document.get("metadata") or {}).get("namespace")
        return f"{namespace or 'default'}/{self.source.name}"

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function; a DocumentError comes out with the document's place in front."""
        return located(self.source, function, *arguments)


def located(source: SourceDocument, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; a DocumentError comes out with the document's place in front."""
    try:
        return function(*arguments)
    except DocumentError as error:
        placed = DocumentError(f"{source.place}: {error}")
        placed.path = error.path
        raise placed from error


def find(sources: Iterable[SourceDocument]) -> tuple[Found[Any], ...]:
    """Kueue's documents, ResourceClaimTemplates and DeviceClasses; others are left alone.

    Raises:
        DocumentError: one does not fit.
    """
    values = ((source, located(source, _value, source)) for source in sources)
    return tuple(Found(source, value) for source, value in values if value is not None)


def of_kind(found: Iterable[Found[Any]], kind: type[T]) -> Iterator[Found[T]]:
    """Those of one kind.

    Raises:
        DocumentError: one is there twice.
    """
    seen: dict[str, SourceDocument] = {}
    for item in found:
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
    return read(source.document)
