"""Reads whole kinds of a cluster at once: slices, claims, pods, nodes and the taints of rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.resource import ResourceClaim, ResourceSlice
from dranode.driver.core.diagnosis.live_objects import LiveNode, LivePod
from dranode.driver.kube.errors import ApiError
from dranode.kubectl.readers.api_objects import ApiObjects

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterLists:
    """The objects of a cluster. Each method raises ApiError if the server does not answer, or not so."""

    objects: ApiObjects

    def slices(self, selector: str = "", node: str = "") -> tuple[ResourceSlice, ...]:
        """Return the slices with these labels, or of one node."""
        return self._all(
            ResourceSlice, "ResourceSlice", "", selector, fieldSelector=f"spec.nodeName={node}" if node else ""
        )

    def claims(self, namespace: str = "", selector: str = "") -> tuple[ResourceClaim, ...]:
        """Return the claims with these labels, of all namespaces for an empty one."""
        return self._all(ResourceClaim, "ResourceClaim", namespace, selector)

    def pods(self, namespace: str = "") -> tuple[LivePod, ...]:
        """Return the pods, of all namespaces for an empty one."""
        return self._all(LivePod, "Pod", namespace)

    def nodes(self, selector: str = "") -> tuple[LiveNode, ...]:
        """Return the nodes with these labels."""
        return self._all(LiveNode, "Node", "", selector)

    def rules(self) -> list[dict[str, Any]]:
        """Return the DeviceTaintRules, which servers before 1.37 do not have."""
        try:
            return list(self.objects.all("DeviceTaintRule"))
        except ApiError as error:
            if error.status == 404:  # noqa: PLR2004 - no such API
                return []
            raise

    def _all(self, into: type[T], kind: str, namespace: str, selector: str = "", **query: str) -> tuple[T, ...]:
        asked = {"labelSelector": selector, **query}
        return tuple(self._decoded(into, kind, namespace, {key: value for key, value in asked.items() if value}))

    def _decoded(self, into: type[T], kind: str, namespace: str, query: dict[str, str]) -> Iterator[T]:
        for document in self.objects.all(kind, namespace, **query):
            try:
                yield decode(into, document)
            except DocumentError as error:
                name = document.get("metadata", {}).get("name", "")
                raise ApiError(f"the {kind} {name} cannot be read: {error}") from error
