"""Selects related pods: by terms of pod affinity and, for default spread, by Services and controllers.

Sources: `AffinityTerm` of kube-scheduler's framework and its `DefaultSelector`, which reads Services, ReplicaSets,
StatefulSets and ReplicationControllers. With a controller of another kind, only the Services of a pod count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument, APIObject, NodeSelectorRequirement, OwnerReference
from dranode.sim.scheduler.documents import (
    LabelMatcher,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    SchedulingPod,
    WeightedPodAffinityTerm,
)

Namespaces: TypeAlias = Mapping[str, Mapping[str, str]]
"""The labels of namespaces by name."""

_NAME_LABEL: Final = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """A validated term.

    Attributes:
        topology_key: the node label whose values are the topologies.
        weight: the weight of a preferred term; 0 for a required one.
    """

    topology_key: str
    weight: int
    _pods: LabelMatcher
    _namespaces: frozenset[str]
    _of_namespaces: LabelMatcher | None

    def matches(self, pod: SchedulingPod, namespaces: Namespaces, *, again: bool = False) -> bool:
        """Return whether the term selects the pod.

        With `again`, namespaces without labels count too: before 1.37, kube-scheduler evaluated the selectors of
        namespaces of the pod that it schedules a second time, without the labels, so `NotIn` selected all of them.
        """
        namespace, selector = pod.metadata.namespace, self._of_namespaces
        if namespace not in self._namespaces:
            labels = {_NAME_LABEL: namespace, **namespaces.get(namespace, {})}
            if selector is None or not (selector.matches(labels) or (again and selector.matches({}))):
                return False
        return self._pods.matches(pod.metadata.labels)


@dataclass(frozen=True, slots=True)
class PodTerms:
    """The affinity terms of one pod.

    Attributes:
        affinity: required affinity.
        anti_affinity: required anti-affinity.
        preferred: preferred affinity.
        preferred_anti: preferred anti-affinity.
        none: whether the pod has no term at all.
    """

    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred: tuple[AffinityTerm, ...] = ()
    preferred_anti: tuple[AffinityTerm, ...] = ()
    none: bool = field(default=True, compare=False)

    @classmethod
    def of(cls, pod: SchedulingPod) -> PodTerms:
        """Read the terms of a pod.

        Raises:
            DocumentError: a selector has an unknown operator or a wrong number of values; names the place.
        """
        near, far = pod.spec.affinity.pod_affinity, pod.spec.affinity.pod_anti_affinity
        if near == PodAffinity() and far == PodAffinity():
            return _NO_TERMS
        return cls(
            _required(pod, near, "podAffinity"),
            _required(pod, far, "podAntiAffinity"),
            _preferred(pod, near, "podAffinity"),
            _preferred(pod, far, "podAntiAffinity"),
            none=False,
        )


def _required(pod: SchedulingPod, affinity: PodAffinity, field: str) -> tuple[AffinityTerm, ...]:
    path = f"spec.affinity.{field}.requiredDuringSchedulingIgnoredDuringExecution"
    terms = affinity.required_during_scheduling_ignored_during_execution
    return tuple(_term(pod, term, 0, f"{path}[{index}]") for index, term in enumerate(terms))


def _preferred(pod: SchedulingPod, affinity: PodAffinity, field: str) -> tuple[AffinityTerm, ...]:
    path = f"spec.affinity.{field}.preferredDuringSchedulingIgnoredDuringExecution"
    terms: Iterable[WeightedPodAffinityTerm] = affinity.preferred_during_scheduling_ignored_during_execution
    return tuple(
        _term(pod, term.pod_affinity_term, term.weight, f"{path}[{index}].podAffinityTerm")
        for index, term in enumerate(terms)
    )


def _term(pod: SchedulingPod, term: PodAffinityTerm, weight: int, path: str) -> AffinityTerm:
    # Without names and selector, a term applies to the pod's own namespace. An empty selector means all namespaces.
    by_default = not term.namespaces and term.namespace_selector is None
    names = frozenset([pod.metadata.namespace] if by_default else term.namespaces)
    try:
        pods = LabelMatcher(term.label_selector, _label_keys(pod, term))
        namespaces = LabelMatcher(term.namespace_selector) if term.namespace_selector is not None else None
    except DocumentError as error:
        raise DocumentError(str(error), path) from error
    return AffinityTerm(term.topology_key, weight, pods, names, namespaces)


def _label_keys(pod: SchedulingPod, term: PodAffinityTerm) -> tuple[NodeSelectorRequirement, ...]:
    """Return what the API server adds to the selector of a new pod for matchLabelKeys and mismatchLabelKeys."""
    if term.label_selector is None:
        return ()
    labels = pod.metadata.labels
    return tuple(
        NodeSelectorRequirement(key=key, operator=operator, values=(labels[key],))
        for operator, keys in (("In", term.match_label_keys), ("NotIn", term.mismatch_label_keys))
        for key in keys
        if key in labels
    )


_NO_TERMS: Final = PodTerms()


class LabeledSpec(APIDocument, frozen=True, kw_only=True):
    """`spec` of a Service or a ReplicationController."""

    selector: Mapping[str, str] | None = None


class LabeledObject(APIObject, frozen=True, kw_only=True):
    """A Service or a ReplicationController."""

    spec: LabeledSpec = LabeledSpec()


class SelectingSpec(APIDocument, frozen=True, kw_only=True):
    """`spec` of a ReplicaSet or a StatefulSet."""

    selector: LabelSelector = LabelSelector()


class SelectingObject(APIObject, frozen=True, kw_only=True):
    """A ReplicaSet or a StatefulSet."""

    spec: SelectingSpec = SelectingSpec()


_KINDS: Final[Mapping[str, str]] = {"ReplicationController": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}


class Owners:
    """The Services and controllers of a dump.

    Attributes:
        kinds: the kinds that were among the documents.
    """

    def __init__(self, sources: Iterable[SourceDocument]) -> None:
        """Read the documents; other kinds are ignored.

        Raises:
            DocumentError: a document does not decode; names the place.
        """
        self.kinds: set[str] = set()
        self._services: dict[str, list[Mapping[str, str]]] = defaultdict(list)
        self._owners: dict[tuple[str, str, str], LabelSelector] = {}
        for source in sources:
            if source.kind == "Service" or source.kind in _KINDS:
                self.kinds.add(source.kind)
                with source.names_errors():
                    self._enter(source)

    def selector(self, pod: SchedulingPod) -> LabelMatcher | None:
        """Return a selector of the pods to spread the pod with; None without a Service or controller."""
        labels: dict[str, str] = {}
        for service in self._services.get(pod.metadata.namespace, ()):
            if service.items() <= pod.metadata.labels.items():
                labels.update(service)
        owner = _controller(pod)
        of_owner = self._owners.get((pod.metadata.namespace, owner.kind, owner.name)) if owner is not None else None
        selector = of_owner or LabelSelector()
        merged = {**selector.match_labels, **labels}
        matcher = LabelMatcher(LabelSelector(match_labels=merged, match_expressions=selector.match_expressions))
        return None if matcher.everything else matcher

    def _enter(self, source: SourceDocument) -> None:
        if source.kind in ("Service", "ReplicationController"):
            labeled = decode(LabeledObject, source.document)
            namespace = labeled.metadata.namespace or "default"
            selector = labeled.spec.selector
            if source.kind == "Service" and selector is not None:
                self._services[namespace].append(selector)
            elif source.kind == "ReplicationController":
                key = namespace, source.kind, labeled.metadata.name
                self._owners[key] = LabelSelector(match_labels=selector or {})
        else:
            owner = decode(SelectingObject, source.document)
            self._owners[owner.metadata.namespace or "default", source.kind, owner.metadata.name] = owner.spec.selector


def _controller(pod: SchedulingPod) -> OwnerReference | None:
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    return owner if owner is not None and _KINDS.get(owner.kind) == owner.api_version else None
