"""Reads whole kinds of a cluster at once: slices, claims, pods, nodes and the taints of rules.

Kinds are read beside each other. One that the account may not list is None with a sentence; whoever needs it for any
answer at all asks for it without `unless_refused`, and gets the error.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from dranode.api.errors import DocumentError
from dranode.api.resource import ResourceClaim, ResourceSlice
from dranode.api.source_document import SourceDocument
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.objects import ApiObjects
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules
from dranode.tools.diagnosis.live_objects import LiveNode, LivePod

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

    def pending_pods(self, namespace: str = "") -> tuple[LivePod, ...]:
        """Return the pods that have not started, of all namespaces for an empty one."""
        return self._all(LivePod, "Pod", namespace, fieldSelector="status.phase=Pending")

    def nodes(self, selector: str = "") -> tuple[LiveNode, ...]:
        """Return the nodes with these labels."""
        return self._all(LiveNode, "Node", "", selector)

    def rules(self) -> tuple[DeviceTaintRule, ...]:
        """Return the DeviceTaintRules; none of a server that does not have them."""
        documents = self.objects.documents("DeviceTaintRule")
        try:
            return taint_rules(SourceDocument("the API server", *each) for each in enumerate(documents))
        except DocumentError as error:
            raise ApiError(str(error)) from error

    def _all(self, into: type[T], kind: str, namespace: str, selector: str = "", **query: str) -> tuple[T, ...]:
        asked = {"labelSelector": selector, **query}
        return self.objects.values(into, kind, namespace, **{key: value for key, value in asked.items() if value})


@dataclass(frozen=True, slots=True)
class Unseen:
    """The lists that could not be read.

    Attributes:
        sentences: one for each kind.
    """

    sentences: list[str] = field(default_factory=list)

    def unless_refused(self, without: str, listing: Future[T]) -> T | None:
        """Return what was listed; None if it could not be, with the sentence that `without` begins."""
        try:
            return listing.result()
        except ApiError as error:
            self.sentences.append(f"{without}: {error}")
            return None
