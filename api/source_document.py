"""Kubernetes documents with the place where they were read."""

from __future__ import annotations

from typing import Any

import msgspec

from dranode.api.kinds import custom_group


class SourceDocument(msgspec.Struct, frozen=True):
    """One Kubernetes document and its place.

    Attributes:
        file: the file as it was named; `-` is the standard input.
        index: its number among the documents of the file, from 0; every item of a `List` counts.
        document: the plain document; it has a `kind`, which is a string.
    """

    file: str
    index: int
    document: dict[str, Any]

    @property
    def kind(self) -> str:
        """Return the kind (`ResourceClaim`, `Pod`); of a custom resource with its group, `JobSet.jobset.x-k8s.io`.

        So no custom resource passes for the kind of Kubernetes that has the same name.
        """
        kind, group = str(self.document["kind"]), custom_group(self.document.get("apiVersion"))
        return f"{kind}.{group}" if group else kind

    @property
    def name(self) -> str:
        """Return `metadata.name`, else `metadata.generateName`, else an empty string."""
        metadata = self.document.get("metadata")
        if not isinstance(metadata, dict):
            return ""
        return str(metadata.get("name") or metadata.get("generateName") or "")

    @property
    def place(self) -> str:
        """Return the place for messages: `claims.yaml, document 2 (ResourceClaim a)`."""
        return f"{self.file}, document {self.index + 1} ({self.kind} {self.name})".replace(" )", ")")
