"""Decides whether a pod set could run on any node of a flavor.

As kube-scheduler's taint and node affinity filters decide for a node that has the flavor's labels and taints, but
requirements about labels that the flavor does not state are left out: its nodes may meet them. An affinity term that
loses all its requirements that way holds for every node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dranode.api.resource import Node, NodeSelector, NodeSelectorTerm, ObjectMeta
from dranode.sim.allocator.nodeselector import selects
from dranode.sim.allocator.taints import tolerates
from dranode.sim.queues.values import PodSet, ResourceFlavor

_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")


def why_not(flavor: ResourceFlavor, pod_set: PodSet) -> str:
    """Return what keeps the pod set off the flavor's nodes, as the beginning of a sentence; empty if nothing does."""
    tolerations = (*pod_set.tolerations, *flavor.tolerations)
    for taint in flavor.node_taints:
        if taint.effect in _KEEPS_AWAY and not any(tolerates(toleration, taint) for toleration in tolerations):
            return f'the taint {taint.key}={taint.value}:{taint.effect} of flavor "{flavor.name}" is not tolerated'
    for key, value in pod_set.node_selector.items():
        if flavor.node_labels.get(key, value) != value:
            return f'nodeSelector wants {key}={value}, flavor "{flavor.name}" has {key}={flavor.node_labels[key]}'
    if not _affine(pod_set, flavor.node_labels):
        return f'no term of the required node affinity holds for the labels of flavor "{flavor.name}"'
    return ""


def _affine(pod_set: PodSet, labels: Mapping[str, str]) -> bool:
    terms = [
        tuple(requirement for requirement in term.match_expressions if requirement.key in labels)
        for term in pod_set.affinity
    ]
    if not all(terms) or not terms:
        return True
    selector = NodeSelector(node_selector_terms=tuple(NodeSelectorTerm(match_expressions=term) for term in terms))
    return selects(selector, Node(metadata=ObjectMeta(labels=labels)))
