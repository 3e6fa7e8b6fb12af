"""Counts pods by topology for constraints that only weigh, and keeps the counts while pods come and go.

`SpreadScore` counts all pods of a cluster for one pod; where thousands of pods are placed one after another, only the
node changes that got one. Nodes with the same `SpreadPart` have the same score, so it is worked out once for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.snapshot import NodeInfo
from dranode.sim.scheduler.spread import HOSTNAME, SpreadConstraint, rounded, spread_shares, topology_weight

K = TypeVar("K")


class SpreadPart(NamedTuple):
    """All that a node's score depends on, but for what is counted in whole topologies.

    Attributes:
        ignored: whether the node lacks a label of the pod's own constraints, which no default asks for.
        places: for each constraint, the number of pods on the node where it is spread over nodes, else the value of the
            label, None if it has none.
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
        """Start without nodes; `own` says whether the pod has written the constraints itself."""
        self._pod = pod
        self._constraints = tuple(constraints)
        self._own = own
        self._keys = tuple(constraint.topology_key for constraint in self._constraints)
        self._nodes: dict[str, _NodeCount] = {}
        self._sums: list[dict[str, int]] = [defaultdict(int) for _ in self._constraints]

    def part(self, info: NodeInfo) -> SpreadPart:
        """Count the node as it is now, in place of what was counted of it before, and return its part."""
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
        """Return the scores of groups of nodes that a pod fits on, each with its part and how many nodes it has."""
        scored = [(part, size) for part, size in parts.values() if not part.ignored]
        weights = []
        for number, key in enumerate(self._keys):
            values = {part.places[number] or "" for part, _ in scored} if key != HOSTNAME else ()
            weights.append(topology_weight(len(values) if key != HOSTNAME else sum(size for _, size in scored)))
        raws = {group: self._raw(part, weights) for group, (part, _) in parts.items()}
        return spread_shares(raws, {group for group, (part, _) in parts.items() if part.ignored})

    def _raw(self, part: SpreadPart, weights: Sequence[float]) -> int:
        if part.ignored:
            return 0
        score = 0.0
        for number, (constraint, place) in enumerate(zip(self._constraints, part.places, strict=True)):
            if place is not None:
                count = place if isinstance(place, int) else self._sums[number].get(place, 0)
                score += constraint.weighed(count, weights[number])
        return rounded(score)

    def _counted(self, info: NodeInfo) -> tuple[bool, ...]:
        """Return for each constraint whether the node's pods count in its topology."""
        if self._own and not all(key in info.node.metadata.labels for key in self._keys):
            return (False,) * len(self._keys)
        return tuple(constraint.counts_on(self._pod, info.node) for constraint in self._constraints)

    def _counts(self, known: _NodeCount | None, info: NodeInfo) -> tuple[int, ...]:
        """Return how many pods of the node count for each constraint."""
        if known is None:
            return tuple([constraint.matching(self._pod, info) for constraint in self._constraints])
        before, after = known.info.pods, info.pods
        came = [each.pod for key, each in after.items() if before.get(key) is not each]
        # Most often pods only come, which their numbers say.
        only_came = len(before) + len(came) == len(after)
        went = [] if only_came else [each.pod for key, each in before.items() if after.get(key) is not each]
        counts = list(known.counts)
        for number, constraint in enumerate(self._constraints):
            for pod in came:
                counts[number] += constraint.counts(self._pod, pod)
            for pod in went:
                counts[number] -= constraint.counts(self._pod, pod)
        return tuple(counts)
