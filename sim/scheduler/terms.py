"""Terms of pod affinity: which pods each means (`AffinityTerm` of kube-scheduler's framework)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dranode.api.errors import DocumentError
from dranode.api.resource import NodeSelectorRequirement
from dranode.sim.scheduler.documents import PodAffinity, PodAffinityTerm, SchedulingPod, WeightedPodAffinityTerm
from dranode.sim.scheduler.labels import LabelMatcher

Namespaces: TypeAlias = Mapping[str, Mapping[str, str]]
"""The labels of namespaces by name."""

_NAME_LABEL: Final = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """One term, ready to match.

    Attributes:
        topology_key: the label of nodes in whose value it counts.
        weight: of a preferred term; 0 of a required one.
    """

    topology_key: str
    weight: int
    _pods: LabelMatcher
    _namespaces: frozenset[str]
    _of_namespaces: LabelMatcher | None

    def matches(self, pod: SchedulingPod, namespaces: Namespaces) -> bool:
        """Return whether the term means the pod."""
        namespace = pod.metadata.namespace
        if namespace not in self._namespaces:
            if self._of_namespaces is None:
                return False
            if not self._of_namespaces.matches({_NAME_LABEL: namespace, **namespaces.get(namespace, {})}):
                return False
        return self._pods.matches(pod.metadata.labels)


@dataclass(frozen=True, slots=True)
class PodTerms:
    """The terms of one pod.

    Attributes:
        affinity: what it requires to be near.
        anti_affinity: what it requires to be far.
        preferred: what it prefers to be near.
        preferred_anti: what it prefers to be far.
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
            DocumentError: a selector has an operator that there is not, or a wrong number of values; says where.
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


def _required(pod: SchedulingPod, affinity: PodAffinity, what: str) -> tuple[AffinityTerm, ...]:
    path = f"spec.affinity.{what}.requiredDuringSchedulingIgnoredDuringExecution"
    terms = affinity.required_during_scheduling_ignored_during_execution
    return tuple(_term(pod, term, 0, f"{path}[{index}]") for index, term in enumerate(terms))


def _preferred(pod: SchedulingPod, affinity: PodAffinity, what: str) -> tuple[AffinityTerm, ...]:
    path = f"spec.affinity.{what}.preferredDuringSchedulingIgnoredDuringExecution"
    terms: Iterable[WeightedPodAffinityTerm] = affinity.preferred_during_scheduling_ignored_during_execution
    return tuple(
        _term(pod, term.pod_affinity_term, term.weight, f"{path}[{index}].podAffinityTerm")
        for index, term in enumerate(terms)
    )


def _term(pod: SchedulingPod, term: PodAffinityTerm, weight: int, path: str) -> AffinityTerm:
    # A pod's own namespace counts only where neither names nor a selector are given; an empty selector means all.
    own = not term.namespaces and term.namespace_selector is None
    names = frozenset([pod.metadata.namespace] if own else term.namespaces)
    try:
        pods = LabelMatcher(term.label_selector, _label_keys(pod, term))
        namespaces = LabelMatcher(term.namespace_selector) if term.namespace_selector is not None else None
    except DocumentError as error:
        raise DocumentError(str(error), path) from error
    return AffinityTerm(term.topology_key, weight, pods, names, namespaces)


def _label_keys(pod: SchedulingPod, term: PodAffinityTerm) -> tuple[NodeSelectorRequirement, ...]:
    """Return what the API server adds to the selector for matchLabelKeys and mismatchLabelKeys of a new pod."""
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
