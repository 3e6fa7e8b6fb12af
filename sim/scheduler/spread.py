"""Topology spread: how evenly related pods are distributed over zones, nodes or other topologies.

Source: PodTopologySpread of kube-scheduler, 1.36.4 and 1.37.1 (pkg/scheduler/framework/plugins/podtopologyspread).
`SpreadTally` keeps its counts, because while thousands of pods are placed, only the node of the last one changes. Nodes
with the same `SpreadPart` have the same score, which is computed once for all of them.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from dranode.api.errors import DocumentError
from dranode.api.resource import NodeSelectorRequirement
from dranode.sim.allocator.taint_rules import untolerated
from dranode.sim.scheduler.documents import LabelMatcher, SchedulingNode, SchedulingPod, TopologySpreadConstraint
from dranode.sim.scheduler.node_rules import matches_required
from dranode.sim.scheduler.resources import MAX_SCORE
from dranode.sim.scheduler.snapshot import NodeInfo, Snapshot

K = TypeVar("K")

NOT_SPREAD: Final = "node(s) didn't match pod topology spread constraints"
NO_LABEL: Final = f"{NOT_SPREAD} (missing required label)"
HOSTNAME: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"
_HARD: Final = "DoNotSchedule"
_SOFT: Final = "ScheduleAnyway"
_HONOR: Final = "Honor"
# The minor release since which an empty selector counts all pods (kubernetes#141340).
_EMPTY_COUNTS: Final = 38
# The topology key and maxSkew of kube-scheduler's default constraints, for pods without constraints.
_DEFAULTS: Final = ((HOSTNAME, 3), (_ZONE, 5))


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A validated constraint.

    Attributes:
        topology_key: the node label whose values are the domains.
        max_skew: how many more pods a domain may have than the domain with the fewest.
        min_domains: with fewer domains, the fewest count as 0.
        pods: the selector of the pods that count.
        honors_affinity: whether nodes that the pod's node affinity excludes are left out.
        honors_taints: whether nodes with taints that the pod does not tolerate are left out.
        idle: whether no pod counts, whatever the selector.
    """

    topology_key: str
    max_skew: int
    pods: LabelMatcher
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False
    idle: bool = False

    @property
    def key(self) -> Hashable:
        """Return a value that is equal for constraints that count the same way."""
        return self.topology_key, self.max_skew, self.pods.key, self.honors_affinity, self.honors_taints

    def counts_on(self, pod: SchedulingPod, node: SchedulingNode) -> bool:
        """Return whether the node's pods count."""
        if self.honors_affinity and not matches_required(pod, node):
            return False
        return not self.honors_taints or untolerated(node.spec.taints, pod.spec.tolerations) is None

    def matching(self, pod: SchedulingPod, info: NodeInfo) -> int:
        """Return how many pods of a node count; terminating pods do not."""
        if self.idle:
            return 0
        return sum(self.counts(pod, other.pod) for other in info.pods.values())

    def counts(self, pod: SchedulingPod, other: SchedulingPod) -> bool:
        """Return whether another pod counts for the pod, on whichever node."""
        return (
            other.metadata.namespace == pod.metadata.namespace
            and other.metadata.deletion_timestamp is None
            and not self.idle
            and self.pods.matches(other.metadata.labels)
        )


class SpreadFilter:
    """Filters nodes by the required constraints of a pod."""

    def __init__(self, pod: SchedulingPod, snapshot: Snapshot, minor: int) -> None:
        """Count the pods.

        Raises:
            DocumentError: a selector of the pod is invalid.
        """
        self._pod = pod
        self._constraints = _constraints(pod, _HARD, minor)
        keys = [constraint.topology_key for constraint in self._constraints]
        self._matching: list[dict[str, int]] = [{} for _ in keys]
        if not keys:
            return
        for info in snapshot.nodes.values():
            labels = info.node.metadata.labels
            if not all(key in labels for key in keys):
                continue
            for constraint, matching in zip(self._constraints, self._matching, strict=True):
                if constraint.counts_on(pod, info.node):
                    value = labels[constraint.topology_key]
                    matching[value] = matching.get(value, 0) + constraint.matching(pod, info)

    @property
    def idle(self) -> bool:
        """Return whether the pod has no required constraint."""
        return not self._constraints

    def refusal(self, node: SchedulingNode) -> tuple[str, str] | None:
        """Return the reason and the topology behind it; None if the node passes."""
        for constraint, matching in zip(self._constraints, self._matching, strict=True):
            key = constraint.topology_key
            value = node.metadata.labels.get(key)
            if value is None:
                return NO_LABEL, key
            least = min(matching.values()) if len(matching) >= constraint.min_domains else 0
            itself = constraint.pods.matches(self._pod.metadata.labels)
            if matching.get(value, 0) + itself - least > constraint.max_skew:
                return NOT_SPREAD, f"{key}={value}"
        return None


def spread_scores(pod: SchedulingPod, snapshot: Snapshot, feasible: Iterable[NodeInfo], minor: int) -> dict[str, int]:
    """Return the score of each node that fits, by name; empty if the pod is not spread.

    Raises:
        DocumentError: a selector of the pod is invalid.
    """
    constraints, sets_constraints = preferred_spread(pod, snapshot, minor)
    if not constraints:
        return {}
    tally = SpreadTally(pod, constraints, own=sets_constraints)
    # Pods count wherever they run, also on nodes that the new pod does not fit on.
    parts = {info.name: tally.part(info) for info in snapshot.nodes.values()}
    return tally.scores({info.name: (parts[info.name], 1) for info in feasible})


def requires_spread(pod: SchedulingPod) -> bool:
    """Return whether the pod has a required constraint."""
    return any(item.when_unsatisfiable == _HARD for item in pod.spec.topology_spread_constraints)


def preferred_spread(pod: SchedulingPod, snapshot: Snapshot, minor: int) -> tuple[tuple[SpreadConstraint, ...], bool]:
    """Return the constraints that only affect the score, and whether the pod sets them itself.

    Raises:
        DocumentError: a selector of the pod is invalid.
    """
    sets_constraints = bool(pod.spec.topology_spread_constraints)
    return (_constraints(pod, _SOFT, minor) if sets_constraints else _defaults(pod, snapshot)), sets_constraints


def _constraints(pod: SchedulingPod, action: str, minor: int) -> tuple[SpreadConstraint, ...]:
    return tuple(
        _constraint(pod, constraint, minor, f"spec.topologySpreadConstraints[{index}]")
        for index, constraint in enumerate(pod.spec.topology_spread_constraints)
        if constraint.when_unsatisfiable == action
    )


def _constraint(pod: SchedulingPod, constraint: TopologySpreadConstraint, minor: int, path: str) -> SpreadConstraint:
    labels = pod.metadata.labels
    # Without a selector, no pod matches, and matchLabelKeys do not change that.
    requirements = tuple(
        NodeSelectorRequirement(key=key, operator="In", values=(labels[key],))
        for key in constraint.match_label_keys
        if key in labels and constraint.label_selector is not None
    )
    try:
        pods = LabelMatcher(constraint.label_selector, requirements)
    except DocumentError as error:
        raise DocumentError(str(error), f"{path}.labelSelector") from error
    return SpreadConstraint(
        constraint.topology_key,
        constraint.max_skew,
        pods,
        constraint.min_domains or 1,
        constraint.node_affinity_policy == _HONOR,
        constraint.node_taints_policy == _HONOR,
        pods.everything and minor < _EMPTY_COUNTS,
    )


def _defaults(pod: SchedulingPod, snapshot: Snapshot) -> tuple[SpreadConstraint, ...]:
    pods = snapshot.default_selector(pod)
    return () if pods is None else tuple(SpreadConstraint(key, skew, pods) for key, skew in _DEFAULTS)


class SpreadPart(NamedTuple):
    """Everything in a node that its score depends on, apart from the sums of whole topologies.

    Attributes:
        ignored: whether the node lacks a label of the pod's own constraints; default constraints do not require any.
        places: for each constraint, the number of pods on the node if the topology is the hostname, else the value of
            the label, or None without one.
    """

    ignored: bool
    places: tuple[int | str | None, ...]


class _NodeCount(NamedTuple):
    info: NodeInfo
    counts: tuple[int, ...]
    counted: tuple[bool, ...]
    part: SpreadPart


class SpreadTally:
    """The counts for one kind of pod."""

    def __init__(self, pod: SchedulingPod, constraints: Sequence[SpreadConstraint], *, own: bool) -> None:
        """Start without nodes; `own` says whether the pod sets the constraints itself."""
        self._pod = pod
        self._constraints = tuple(constraints)
        self._own = own
        self._keys = tuple(constraint.topology_key for constraint in self._constraints)
        self._nodes: dict[str, _NodeCount] = {}
        self._sums: list[dict[str, int]] = [defaultdict(int) for _ in self._constraints]

    def part(self, info: NodeInfo) -> SpreadPart:
        """Replace the node's earlier counts with its current ones and return its part."""
        known = self._nodes.get(info.name)
        if known is not None and known.info is info:
            return known.part
        counted = known.counted if known is not None else self._counted(info)
        counts = self._counts(known, info)
        if known is not None and counts == known.counts:
            self._nodes[info.name] = _NodeCount(info, counts, counted, known.part)
            return known.part
        labels = info.node.metadata.labels
        for number, key in enumerate(self._keys):
            if counted[number] and key != HOSTNAME:
                before = known.counts[number] if known is not None else 0
                self._sums[number][labels.get(key, "")] += counts[number] - before
        part = SpreadPart(
            self._own and not all(key in labels for key in self._keys),
            tuple(
                labels.get(key) if key != HOSTNAME or key not in labels else count
                for key, count in zip(self._keys, counts, strict=True)
            ),
        )
        self._nodes[info.name] = _NodeCount(info, counts, counted, part)
        return part

    def scores(self, parts: Mapping[K, tuple[SpreadPart, int]]) -> dict[K, int]:
        """Return the score from 0 to 100 of each group of nodes that fits a pod.

        Args:
            parts: for each group, the part that its nodes have in common and the number of nodes.
        """
        scored = [(part, size) for part, size in parts.values() if not part.ignored]
        weights = []
        for number, key in enumerate(self._keys):
            values = {part.places[number] or "" for part, _ in scored}
            count = sum(size for _, size in scored) if key == HOSTNAME else len(values)
            # The weight keeps topologies with many values, such as nodes, from drowning those with few, such as zones
            # (topologyNormalizingWeight in podtopologyspread/scoring.go).
            weights.append(math.log(count + 2))
        raws = {group: self._raw(part, weights) for group, (part, _) in parts.items() if not part.ignored}
        least, most = min(raws.values(), default=0), max(raws.values(), default=0)
        # NormalizeScore: fewer pods nearby are better; a node without the labels scores 0.
        shares = {group: MAX_SCORE * (most + least - raw) // most if most else MAX_SCORE for group, raw in raws.items()}
        return {group: shares.get(group, 0) for group in parts}

    def _raw(self, part: SpreadPart, weights: Sequence[float]) -> int:
        """Return the weighted number of pods nearby; more is worse."""
        score = 0.0
        for constraint, place, weight, sums in zip(self._constraints, part.places, weights, self._sums, strict=True):
            if place is not None:
                count = place if isinstance(place, int) else sums.get(place, 0)
                score += count * weight + (constraint.max_skew - 1)
        return math.floor(score + 0.5)  # Go's math.Round; a score is never negative

    def _counted(self, info: NodeInfo) -> tuple[bool, ...]:
        """Return for each constraint whether the node's pods count."""
        if self._own and not all(key in info.node.metadata.labels for key in self._keys):
            return (False,) * len(self._keys)
        return tuple(constraint.counts_on(self._pod, info.node) for constraint in self._constraints)

    def _counts(self, known: _NodeCount | None, info: NodeInfo) -> tuple[int, ...]:
        """Return how many pods of the node count for each constraint."""
        if known is None:
            return tuple([constraint.matching(self._pod, info) for constraint in self._constraints])
        before, after = known.info.pods, info.pods
        came = [other.pod for key, other in after.items() if before.get(key) is not other]
        # Usually pods are only added. The lengths show that without a search for removed ones.
        only_came = len(before) + len(came) == len(after)
        went = [] if only_came else [other.pod for key, other in before.items() if after.get(key) is not other]
        counts = list(known.counts)
        for number, constraint in enumerate(self._constraints):
            for pod in came:
                counts[number] += constraint.counts(self._pod, pod)
            for pod in went:
                counts[number] -= constraint.counts(self._pod, pod)
        return tuple(counts)
