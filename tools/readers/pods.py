"""Reads the facts about a pod from a cluster: the pod, its claims, templates, Events and node.

Only read rights are needed, those of deploy/reader/. What the account may not read is reported as not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from dranode.api.documents import to_v1
from dranode.api.manifests import SourceDocument
from dranode.api.resource import (
    Device,
    DeviceClass,
    PodResourceClaim,
    PoolID,
    ResourceClaim,
    ResourceSlice,
    newest_slices,
)
from dranode.driver.claims.users import pods_among
from dranode.driver.kube.errors import ApiError
from dranode.show.cluster_objects import ApiObjects, side_by_side, value_of
from dranode.tools.diagnosis.live_objects import (
    ClusterObjects,
    LiveEvent,
    LiveNode,
    LivePod,
    Lookup,
    PodClaim,
    PodFacts,
)

T = TypeVar("T")

_RIGHTS: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED)


@dataclass(frozen=True, slots=True)
class PodReader:
    """Reads the facts about pods from an API server.

    Attributes:
        objects: the server's objects, or those of files.
        unasked: a sentence for everything that could not be read so far.
    """

    objects: ApiObjects | DumpObjects
    unasked: list[str] = field(default_factory=list)

    def read(self, namespace: str, name: str) -> PodFacts:
        """Read the facts about a pod.

        Raises:
            ApiError: the server cannot be asked at all.
        """
        lookup, pod = self._object(LivePod, "Pod", namespace, name)
        facts = PodFacts(f"{namespace}/{name}", lookup, pod, unasked=tuple(self.unasked))
        if pod is None:
            return facts
        node_name = pod.spec.node_name
        node_lookup, node = self._object(LiveNode, "Node", "", node_name) if node_name else (Lookup.UNASKED, None)
        return replace(
            facts,
            claims=tuple(self._claims(namespace, pod)),
            events=self._events(namespace, pod),
            node=node,
            node_lookup=node_lookup,
            published=self._published(pod),
            unasked=tuple(self.unasked),
        )

    def claim(self, namespace: str, name: str) -> tuple[Lookup, ResourceClaim | None]:
        """Read a claim.

        Raises:
            ApiError: the server cannot be asked at all.
        """
        return self._object(ResourceClaim, "ResourceClaim", namespace, name)

    def users(self, namespace: str, name: str, claim: ResourceClaim | None) -> tuple[str, ...]:
        """Return the names of the pods that use a claim or will: it is reserved for them, or they name it."""
        consumers = claim.status.reserved_for if claim else ()
        reserved = [pod.name for pod in pods_among(consumers)]
        owners = [owner.name for owner in claim.metadata.owner_references if owner.kind == "Pod"] if claim else []
        known = dict.fromkeys((*reserved, *owners))
        if known and len(reserved) == len(consumers):
            return tuple(known)
        # The claim does not say which pods are in a PodGroup, but these pods name the claim.
        naming = (pod.metadata.name for pod in self._pods(namespace) or () if name in _named(pod))
        return tuple(dict.fromkeys((*known, *naming)))

    def objects_to_schedule(self) -> ClusterObjects | None:
        """Read the objects on which allocation depends; None if some of them could not be read."""
        read = self.objects.values
        with side_by_side() as pool:
            slices_future = pool.submit(read, ResourceSlice, "ResourceSlice")
            claims_future = pool.submit(read, ResourceClaim, "ResourceClaim")
            nodes_future = pool.submit(read, LiveNode, "Node")
            classes_future = pool.submit(read, DeviceClass, "DeviceClass")
            rules_future = pool.submit(self.objects.documents, "DeviceTaintRule")
        slices = self._ask("the ResourceSlices", slices_future.result)
        classes = self._ask("the DeviceClasses", classes_future.result)
        claims = self._ask("the ResourceClaims", claims_future.result)
        rules = self._ask("the DeviceTaintRules", rules_future.result)
        nodes = self._ask("the Nodes", nodes_future.result)
        if slices is None or classes is None or claims is None or nodes is None:
            return None
        return ClusterObjects(slices, classes, claims, tuple(rules or ()), nodes)

    def published(self, driver: str, node: str) -> tuple[Device, ...] | None:
        """Read a driver's devices in the pool with the node's name; None if not all of them can be read."""
        pool = newest_slices(self._slices_on(node) or ()).get(PoolID(driver, node))
        if not pool or len(pool) < pool[0].spec.pool.resource_slice_count:
            return None
        return tuple(device for slice_ in pool for device in slice_.spec.devices)

    def _slices_on(self, node: str) -> tuple[ResourceSlice, ...] | None:
        return self._ask(
            "the ResourceSlices",
            lambda: self.objects.values(ResourceSlice, "ResourceSlice", fieldSelector=f"spec.nodeName={node}"),
        )

    def pods_on(self, node: str, namespace: str, labels: str) -> tuple[LivePod, ...] | None:
        """Read the pods of a node with these labels; None if they could not be read."""
        return self._pods(namespace, fieldSelector=f"spec.nodeName={node}", labelSelector=labels)

    def _pods(self, namespace: str, **query: str) -> tuple[LivePod, ...] | None:
        return self._ask(
            f"the pods of namespace {namespace}", lambda: self.objects.values(LivePod, "Pod", namespace, **query)
        )

    def _object(self, into: type[T], kind: str, namespace: str, name: str) -> tuple[Lookup, T | None]:
        try:
            document = self.objects.find(kind, namespace, name)
        except ApiError as error:
            if error.status not in _RIGHTS:
                raise
            self.unasked.append(f"the {kind} {namespace}/{name}: {error}")
            return Lookup.UNASKED, None
        return (Lookup.MISSING, None) if document is None else (Lookup.FOUND, value_of(into, kind, document))

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except ApiError as error:
            self.unasked.append(f"{what}: {error}")
            return None

    # --- the parts of a pod ---

    def _claims(self, namespace: str, pod: LivePod) -> Iterator[PodClaim]:
        generated = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        for entry in pod.spec.resource_claims:
            yield self._pod_claim(namespace, entry, generated)
        extended = pod.status.extended_resource_claim_status
        if extended is not None and extended.resource_claim_name:
            yield self._existing(namespace, PodClaim("", extended.resource_claim_name))

    def _pod_claim(self, namespace: str, entry: PodResourceClaim, generated: Mapping[str, str | None]) -> PodClaim:
        if entry.resource_claim_name is not None:
            return self._existing(namespace, PodClaim(entry.name, entry.resource_claim_name))
        template = entry.resource_claim_template_name or ""
        if entry.name not in generated:
            lookup, _ = self._object(dict, "ResourceClaimTemplate", namespace, template)
            return PodClaim(entry.name, template=template, template_lookup=lookup)
        name = generated[entry.name]
        # The status has an entry without a name if no claim is needed.
        if not name:
            return PodClaim(entry.name, template=template, needed=False)
        return self._existing(namespace, PodClaim(entry.name, name, template))

    def _existing(self, namespace: str, claim: PodClaim) -> PodClaim:
        lookup, document = self.claim(namespace, claim.name)
        return replace(claim, lookup=lookup, claim=document)

    def _events(self, namespace: str, pod: LivePod) -> tuple[LiveEvent, ...] | None:
        # By UID, so that Events of an earlier pod of the same name are left out.
        selector = f"involvedObject.uid={pod.metadata.uid}"
        return self._ask(
            f"the Events of namespace {namespace}",
            lambda: self.objects.values(LiveEvent, "Event", namespace, fieldSelector=selector),
        )

    def _published(self, pod: LivePod) -> frozenset[str] | None:
        """Return the drivers that publish on the pod's node; None if unknown, or if the pod is not being deleted."""
        if pod.metadata.deletion_timestamp is None or not pod.spec.node_name:
            return None
        slices = self._slices_on(pod.spec.node_name)
        return None if slices is None else frozenset(slice_.spec.driver for slice_ in slices)


def _named(pod: LivePod) -> frozenset[str]:
    """Return the claims that a pod names, or that were created for it or its PodGroup from templates."""
    named = (entry.resource_claim_name for entry in pod.spec.resource_claims)
    generated = (entry.resource_claim_name for entry in pod.status.resource_claim_statuses)
    return frozenset(filter(None, (*named, *generated)))


_CLUSTER_WIDE = frozenset(("Node", "Namespace", "ResourceSlice", "DeviceClass", "DeviceTaintRule", "PriorityClass"))


@dataclass(frozen=True, slots=True)
class DumpObjects:
    """A cluster's objects in files, with the methods of `dranode.show.cluster_objects.ApiObjects`.

    Attributes:
        sources: the documents.
        place: the names of the files.
    """

    sources: tuple[SourceDocument, ...]
    place: str

    def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, in its v1 form; None if it does not exist.

        Raises:
            ApiError: the files have no object of the kind.
        """
        return next(
            (document for document in self.documents(kind, namespace) if document["metadata"].get("name") == name), None
        )

    def documents(self, kind: str, namespace: str = "", **query: str) -> list[dict[str, Any]]:
        """Return the objects of a kind, of one namespace or with these fields or labels if given.

        Raises:
            ApiError: the files have no object of the kind, or one without metadata.
        """
        sources = [source for source in self.sources if source.kind == kind]
        if not sources:
            # As if the account may not list them: whoever wrote the files may have left the kind out.
            raise ApiError(f"no {kind} is in {self.place}", HTTPStatus.FORBIDDEN)
        for source in sources:
            if "metadata" not in source.document:
                raise ApiError(f"{source.place}: metadata is missing")
        everywhere = not namespace or kind in _CLUSTER_WIDE
        return [
            document
            for document in (to_v1(source.document) for source in sources)
            if (everywhere or _namespace(document) == namespace) and _selected(document, query)
        ]

    def values(self, into: type[T], kind: str, namespace: str = "", **query: str) -> tuple[T, ...]:
        """Return the same objects, decoded.

        Raises:
            ApiError: the files have no object of the kind, or one that does not decode.
        """
        return tuple(value_of(into, kind, document) for document in self.documents(kind, namespace, **query))

    def server_version(self) -> str:
        """Return the empty string: files do not show the server's version."""
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
