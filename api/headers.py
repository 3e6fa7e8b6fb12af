"""Checks the head of documents: kind, API version and name, and that no two documents are one object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dranode.api.errors import DocumentError
from dranode.api.kinds import check_kind, custom_group
from dranode.api.source_document import SourceDocument

_VERSION: Final = re.compile(r"v[1-9][0-9]*(?:(?:alpha|beta)[1-9][0-9]*)?", re.ASCII)
_V1_ALONE: Final = ("", "apps", "batch")
_NAMES: Final = ("name", "generateName", "namespace", "uid")


def check_header(document: Mapping[str, Any]) -> None:
    """Refuse a document whose kind or API version does not exist, or whose names are no text.

    Raises:
        DocumentError: it is one; the error says where in the document.
    """
    version = document.get("apiVersion")
    if version is not None and not isinstance(version, str):
        raise DocumentError(f"{version!r} is no text", "apiVersion")
    check_kind(document)
    if version is not None and not custom_group(version):  # theirs have any name
        _check_version(version)
    metadata = document.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise DocumentError("an object is expected", "metadata")
    for name in _NAMES:
        if not isinstance(metadata.get(name) or "", str):
            raise DocumentError(f"{metadata[name]!r} is no text; quote it", f"metadata.{name}")


def _check_version(version: str) -> None:
    group, _, short = version.rpartition("/")
    if _VERSION.fullmatch(short) is None:
        raise DocumentError(f'"{version}" is no API version such as v1 or resource.k8s.io/v1', "apiVersion")
    if group in _V1_ALONE and short != "v1":
        where = f"the API group {group}" if group else "the core API"
        raise DocumentError(f'{where} has v1, not "{short}"', "apiVersion")


def object_key(document: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Group, kind, namespace and name; None without a name."""
    metadata = document.get("metadata") or {}
    name = metadata.get("name")
    if not name:
        return None
    group = str(document.get("apiVersion") or "").rpartition("/")[0]
    return group, str(document["kind"]), str(metadata.get("namespace") or "default"), str(name)


def check_unique(documents: Iterable[SourceDocument]) -> None:
    """Refuse documents of which two are one object.

    Raises:
        DocumentError: two are; says where both stand.
    """
    seen: dict[tuple[str, ...], SourceDocument] = {}
    for source in documents:
        key = object_key(source.document)
        if key is not None and (first := seen.setdefault(key, source)) is not source:
            what = f"a {source.kind} of this name is there already, in {first.place}; keep one"
            raise DocumentError(f"{source.place}: metadata.name: {what}")
