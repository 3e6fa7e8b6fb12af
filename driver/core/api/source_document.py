"""Kubernetes documents with the place that they were read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """One Kubernetes document and where it stands.

    Attributes:
        file: the file as it was named; `-` is the standard input.
        index: its number among the file's documents, from 0, where the items of a `List` count one by one.
        document: the plain document; `kind` is there and a string.
    """

    file: str
    index: int
    document: dict[str, Any]

    @property
    def kind(self) -> str:
        """`ResourceClaim`, `Pod` ..."""
        return str(self.document["kind"])

    @property
    def name(self) -> str:
        """`metadata.name`, or `metadata.generateName`, or nothing."""
        metadata = self.document.get("metadata")
        if not isinstance(metadata, dict):
            return ""
        return str(metadata.get("name") or metadata.get("generateName") or "")

    @property
    def place(self) -> str:
        """For messages: `claims.yaml, document 2 (ResourceClaim a)`."""
        return f"{self.file}, document {self.index + 1} ({self.kind} {self.name})".replace(" )", ")")
