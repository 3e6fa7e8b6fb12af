"""Finds the pods that belong together where a pod says nothing of its spread: by Services, and by their controllers.

Source: `DefaultSelector` of kube-scheduler. ReplicaSets, StatefulSets, ReplicationControllers and Services are read; a
pod whose owner is of another kind belongs with the pods of its Services alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument, ObjectMeta, OwnerReference
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.labels import LabelMatcher, LabelSelector


class LabelledSpec(APIDocument, frozen=True, kw_only=True):
    """`spec` of a Service or a ReplicationController."""

    selector: Mapping[str, str] | None = None


class LabelledObject(APIDocument, frozen=True, kw_only=True):
    """A Service or a ReplicationController."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelledSpec = LabelledSpec()


class SelectingSpec(APIDocument, frozen=True, kw_only=True):
    """`spec` of a ReplicaSet or a StatefulSet."""

    selector: LabelSelector = LabelSelector()


class SelectingObject(APIDocument, frozen=True, kw_only=True):
    """A ReplicaSet or a StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SelectingSpec = SelectingSpec()


_KINDS: Final[Mapping[str, str]] = {"ReplicationController": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}


class Owners:
    """The Services and owners of a dump.

    Attributes:
        kinds: the kinds that were among the documents.
    """

    def __init__(self, sources: Iterable[SourceDocument]) -> None:
        """Read them.

        Raises:
            DocumentError: one does not decode; says where.
        """
        self.kinds: set[str] = set()
        self._services: dict[str, list[Mapping[str, str]]] = defaultdict(list)
        self._owners: dict[tuple[str, str, str], LabelSelector] = {}
        for source in sources:
            if source.kind == "Service" or source.kind in _KINDS:
                self.kinds.add(source.kind)
                try:
                    self._enter(source)
                except DocumentError as error:
                    raise DocumentError(f"{source.place}: {error}") from error

    def selector(self, pod: SchedulingPod) -> LabelMatcher | None:
        """Return what finds the pods that belong together with the pod; None if nothing says so."""
        labels: dict[str, str] = {}
        for service in self._services.get(pod.metadata.namespace, ()):
            if service.items() <= pod.metadata.labels.items():
                labels.update(service)
        owner = _controller(pod)
        found = self._owners.get((pod.metadata.namespace, owner.kind, owner.name)) if owner is not None else None
        selector = found or LabelSelector()
        merged = {**selector.match_labels, **labels}
        matcher = LabelMatcher(LabelSelector(match_labels=merged, match_expressions=selector.match_expressions))
        return None if matcher.everything else matcher

    def _enter(self, source: SourceDocument) -> None:
        if source.kind in ("Service", "ReplicationController"):
            labelled = decode(LabelledObject, source.document)
            namespace = labelled.metadata.namespace or "default"
            selector = labelled.spec.selector
            if source.kind == "Service" and selector is not None:
                self._services[namespace].append(selector)
            elif source.kind == "ReplicationController":
                key = namespace, source.kind, labelled.metadata.name
                self._owners[key] = LabelSelector(match_labels=selector or {})
        else:
            owner = decode(SelectingObject, source.document)
            self._owners[owner.metadata.namespace or "default", source.kind, owner.metadata.name] = owner.spec.selector


def _controller(pod: SchedulingPod) -> OwnerReference | None:
    owner = next((each for each in pod.metadata.owner_references if each.controller), None)
    return owner if owner is not None and _KINDS.get(owner.kind) == owner.api_version else None
