"""Reads a cluster from files, as kubectl prints it, in the place of an API server.

A kind of which the files have nothing was not seen: whoever asks for it gets an error, as for lack of rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from dranode.api.documents import to_v1
from dranode.api.source_document import SourceDocument
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.objects import value_of

T = TypeVar("T")

_CLUSTER_WIDE = frozenset(("Node", "Namespace", "ResourceSlice", "DeviceClass", "DeviceTaintRule", "PriorityClass"))


@dataclass(frozen=True, slots=True)
class DumpObjects:
    """The objects in files; answers what `dranode.driver.kube.objects.ApiObjects` answers.

    Attributes:
        sources: the documents.
        place: the files.
    """

    sources: tuple[SourceDocument, ...]
    place: str

    def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, in its v1 form; None if there is none of that name.

        Raises:
            ApiError: no document is of the kind.
        """
        return next((each for each in self.documents(kind, namespace) if each["metadata"].get("name") == name), None)

    def documents(self, kind: str, namespace: str = "", **query: str) -> list[dict[str, Any]]:
        """Return all objects of a kind, those of one namespace or with these fields or labels.

        Raises:
            ApiError: no document is of the kind, or one has no metadata.
        """
        sources = [source for source in self.sources if source.kind == kind]
        if not sources:
            raise ApiError(f"no {kind} is in {self.place}", HTTPStatus.FORBIDDEN)
        for source in sources:
            if "metadata" not in source.document:
                raise ApiError(f"{source.place}: metadata is missing")
        listed = [to_v1(source.document) for source in sources]
        everywhere = not namespace or kind in _CLUSTER_WIDE
        return [each for each in listed if (everywhere or _namespace(each) == namespace) and _selected(each, query)]

    def values(self, into: type[T], kind: str, namespace: str = "", **query: str) -> tuple[T, ...]:
        """Return the same as values.

        Raises:
            ApiError: no document is of the kind, or one does not decode.
        """
        return tuple(value_of(into, kind, each) for each in self.documents(kind, namespace, **query))

    def server_version(self) -> str:
        """Return that the server's version is not known."""
        return ""


def _namespace(document: Mapping[str, Any]) -> str:
    return str(document["metadata"].get("namespace") or "default")


def _selected(document: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    labels: Mapping[str, Any] = document["metadata"].get("labels") or {}
    return all(_field(document, key) == value for key, value in _pairs(query.get("fieldSelector", ""))) and all(
        str(labels.get(key, "")) == value for key, value in _pairs(query.get("labelSelector", ""))
    )


def _field(document: Any, path: str) -> str:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return str(document or "")


def _pairs(selector: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, selector.split(",")):
        key, _, value = part.partition("=")
        yield key, value
