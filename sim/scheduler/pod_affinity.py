"""Pod affinity and anti-affinity: which pods a pod has to, should, or must not run near.

Source: InterPodAffinity of kube-scheduler, 1.34.10, 1.35.8, 1.36.5 and 1.37.2.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from dranode.sim.scheduler.resources import MAX_SCORE
from dranode.sim.scheduler.snapshot import NodeInfo, PodInfo, Snapshot
from dranode.sim.scheduler.terms import AffinityTerm, Namespaces

NOT_NEAR: Final = "node(s) didn't match pod affinity rules"
NOT_FAR: Final = "node(s) didn't match pod anti-affinity rules"
OTHERS_FAR: Final = "node(s) didn't satisfy existing pods anti-affinity rules"
# The weight of a bound pod's required affinity when another pod is scored (`hardPodAffinityWeight`).
_REQUIRED_WEIGHT: Final = 1

_SELECTED_ONCE: Final = 37  # the minor release since which namespaces are selected by their labels alone

_Topologies = dict[tuple[str, str], int]


class AffinityFilter:
    """Filters nodes by the pod's required terms and by the anti-affinity of bound pods."""

    def __init__(self, info: PodInfo, snapshot: Snapshot, minor: int) -> None:
        """Count the pods that match the terms, by topology."""
        self._info = info
        self._again = minor < _SELECTED_ONCE
        self._namespaces = snapshot.namespaces
        terms = info.terms
        self._near: _Topologies = {}
        self._far: _Topologies = {}
        self._repelled: _Topologies = {}
        for node in snapshot.with_terms:
            for other in node.with_terms:
                matching = [term for term in other.terms.anti_affinity if term.matches(info.pod, self._namespaces)]
                _enter(self._repelled, matching, node.node)
        if terms.affinity or terms.anti_affinity:
            for node in snapshot.nodes.values():
                for other in node.pods.values():
                    # A pod counts for affinity only if it matches all terms, but for each anti-affinity term by itself.
                    if terms.affinity and self._matches_all(other.pod):
                        _enter(self._near, terms.affinity, node.node)
                    _enter(self._far, filter(partial(self._selects, other.pod), terms.anti_affinity), node.node)

    @property
    def idle(self) -> bool:
        """Return whether no term restricts the pod."""
        return not self._repelled and not self._info.terms.affinity and not self._info.terms.anti_affinity

    def refusal(self, node: SchedulingNode) -> tuple[str, str] | None:
        """Return the reason and the topology behind it; None if the node passes."""
        labels = node.metadata.labels
        missing = self._not_near(labels)
        if missing is not None:
            return NOT_NEAR, missing
        for term in self._info.terms.anti_affinity:
            value = labels.get(term.topology_key)
            if value is not None and (term.topology_key, value) in self._far:
                return NOT_FAR, f"{term.topology_key}={value}"
        repelled = next(((key, labels[key]) for key, value in self._repelled if labels.get(key) == value), None)
        return (OTHERS_FAR, "=".join(repelled)) if repelled is not None else None

    def _not_near(self, labels: Mapping[str, str]) -> str | None:
        terms = self._info.terms.affinity
        lacking = next((term.topology_key for term in terms if term.topology_key not in labels), None)
        if lacking is not None:
            return lacking
        for term in terms:
            pair = (term.topology_key, labels[term.topology_key])
            if pair not in self._near:
                # The first pod of a group with affinity to itself may run anywhere, else none could ever start.
                return None if not self._near and self._matches_all(self._info.pod) else "=".join(pair)
        return None

    def _matches_all(self, pod: SchedulingPod) -> bool:
        return all(self._selects(pod, term) for term in self._info.terms.affinity)

    def _selects(self, pod: SchedulingPod, own: AffinityTerm) -> bool:
        return own.matches(pod, self._namespaces, again=self._again)


class AffinityScore:
    """Scores nodes by the preferred terms of the pod and the terms of bound pods."""

    def __init__(self, info: PodInfo, snapshot: Snapshot, minor: int) -> None:
        """Add up the weights."""
        self._again = minor < _SELECTED_ONCE
        self._weights: dict[str, dict[str, int]] = {}
        preferring = bool(info.terms.preferred or info.terms.preferred_anti)
        for node in snapshot.nodes.values() if preferring else snapshot.with_terms:
            for other in node.pods.values() if preferring else node.with_terms:
                self._weigh(info, other, node.node, snapshot.namespaces)

    @property
    def idle(self) -> bool:
        """Return whether no term affects any node."""
        return not self._weights

    def raw(self, info: NodeInfo) -> int:
        """Return the sum of the weights for the node's topologies."""
        labels = info.node.metadata.labels
        return sum(values.get(labels[key], 0) for key, values in self._weights.items() if key in labels)

    def normalized(self, raws: Mapping[str, int]) -> dict[str, int]:
        """Scale the sums to 0 to 100, from the lowest to the highest."""
        least, most = min(raws.values(), default=0), max(raws.values(), default=0)
        if most == least:
            return dict.fromkeys(raws, 0)
        return {name: int(MAX_SCORE * ((raw - least) / (most - least))) for name, raw in raws.items()}

    def _weigh(self, info: PodInfo, other: PodInfo, node: SchedulingNode, namespaces: Namespaces) -> None:
        terms_of_pod, terms_of_other = info.terms, other.terms
        for terms, pod, sign, again in (
            (terms_of_pod.preferred, other.pod, 1, self._again),
            (terms_of_pod.preferred_anti, other.pod, -1, self._again),
            (terms_of_other.affinity, info.pod, 1, False),
            (terms_of_other.preferred, info.pod, 1, False),
            (terms_of_other.preferred_anti, info.pod, -1, False),
        ):
            for term in terms:
                value = node.metadata.labels.get(term.topology_key)
                if value is not None and term.matches(pod, namespaces, again=again):
                    values = self._weights.setdefault(term.topology_key, {})
                    values[value] = values.get(value, 0) + sign * (term.weight or _REQUIRED_WEIGHT)


def concerns(others: Iterable[PodInfo], pod: SchedulingPod, namespaces: Namespaces) -> bool:
    """Return whether any term of these pods selects the pod."""
    return any(
        term.matches(pod, namespaces)
        for other in others
        for terms in (
            other.terms.affinity,
            other.terms.anti_affinity,
            other.terms.preferred,
            other.terms.preferred_anti,
        )
        for term in terms
    )


def _enter(counts: _Topologies, terms: Iterable[AffinityTerm], node: SchedulingNode) -> None:
    for term in terms:
        value = node.metadata.labels.get(term.topology_key)
        if value is not None:
            pair = (term.topology_key, value)
            counts[pair] = counts.get(pair, 0) + 1
