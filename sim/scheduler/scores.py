"""Scores nodes like the plug-ins of kube-scheduler's default profile.

ImageLocality is left out, because it depends on the images that nodes already have. The caller provides the scores of
DynamicResources. kube-scheduler draws among the nodes with the highest total.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dranode.sim.scheduler.node_rules import disliked_taints, preference
from dranode.sim.scheduler.pod_affinity import AffinityScore
from dranode.sim.scheduler.resources import ResourceScore, normalized
from dranode.sim.scheduler.snapshot import NodeInfo, PodInfo, Snapshot
from dranode.sim.scheduler.spread import spread_scores

DEVICES: Final = "DynamicResources"
# The weights of the default profile.
WEIGHTS: Final[Mapping[str, int]] = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodeResourcesFit": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    DEVICES: 2,
    "NodeResourcesBalancedAllocation": 1,
}


@dataclass(frozen=True, slots=True)
class NodeTotal:
    """The score of one node.

    Attributes:
        node: its name.
        total: the weighted sum.
        plugins: the unweighted score of each plug-in, 0 to 100; plug-ins that skip the pod are left out.
    """

    node: str
    total: int
    plugins: Mapping[str, int]


def totals(
    info: PodInfo, snapshot: Snapshot, feasible: Sequence[NodeInfo], devices: Mapping[str, int], minor: int
) -> tuple[NodeTotal, ...]:
    """Return the scores of the feasible nodes in their order; `devices` is the raw KEP-4816 score by node.

    Raises:
        DocumentError: a selector of the pod is invalid.
    """
    tables = _tables(info, snapshot, feasible, minor)
    if devices:
        tables[DEVICES] = normalized({node.name: devices.get(node.name, 0) for node in feasible})
    return tuple(
        NodeTotal(
            node.name,
            sum(WEIGHTS[plugin] * table[node.name] for plugin, table in tables.items()),
            {plugin: table[node.name] for plugin, table in tables.items()},
        )
        for node in feasible
    )


def best(scores: Sequence[NodeTotal]) -> tuple[str, ...]:
    """Return the nodes with the highest total, in their order."""
    most = max((score.total for score in scores), default=0)
    return tuple(score.node for score in scores if score.total == most)


def _tables(
    info: PodInfo, snapshot: Snapshot, feasible: Sequence[NodeInfo], minor: int
) -> dict[str, Mapping[str, int]]:
    pod = info.pod
    resources = ResourceScore.of(pod, minor)
    spread = spread_scores(pod, snapshot, feasible, minor)
    affinity = AffinityScore(info, snapshot, minor)

    def raws(score: Callable[[NodeInfo], int]) -> dict[str, int]:
        return {node.name: score(node) for node in feasible}

    tables: dict[str, Mapping[str, int]] = {
        "TaintToleration": normalized(raws(lambda node: disliked_taints(node.node, pod)), reverse=True),
        "NodeResourcesFit": raws(resources.least_allocated),
    }
    if pod.spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution:
        tables["NodeAffinity"] = normalized(raws(lambda node: preference(pod, node.node)))
    if spread:
        tables["PodTopologySpread"] = spread
    if not affinity.idle:
        tables["InterPodAffinity"] = affinity.normalized(raws(affinity.raw))
    if not resources.asks_nothing:
        tables["NodeResourcesBalancedAllocation"] = raws(resources.balanced)
    return tables
