"""`nodeSelector` and node affinity (`k8s.io/component-helpers/scheduling/corev1/nodeaffinity`)."""

from __future__ import annotations

from typing import Final

from dranode.api.resource import Node, NodeSelector, NodeSelectorTerm
from dranode.sim.allocator.nodeselector import selects
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod

NAME_FIELD: Final = "metadata.name"


def matches_required(pod: SchedulingPod, node: Node) -> bool:
    """Return whether the node has what the pod's nodeSelector and required node affinity ask for."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = _required(pod)
    return required is None or selects(required, node)


def preference(pod: SchedulingPod, node: SchedulingNode) -> int:
    """The sum of the weights of the preferred terms that hold; a term without requirements holds for no node."""
    terms = pod.spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    return sum(term.weight for term in terms if selects(NodeSelector(node_selector_terms=(term.preference,)), node))


def named_nodes(pod: SchedulingPod) -> frozenset[str] | None:
    """The nodes that the required terms name; None where a term is open to all, empty where they contradict."""
    required = _required(pod)
    if required is None or not required.node_selector_terms:
        return None
    names: set[str] = set()
    for term in required.node_selector_terms:
        named = _names(term)
        if named is None:
            return None
        names |= named
    return frozenset(names)


def _names(term: NodeSelectorTerm) -> set[str] | None:
    named: set[str] | None = None
    for field in term.match_fields:
        if field.key == NAME_FIELD and field.operator == "In":
            named = set(field.values) if named is None else named & set(field.values)
    return named


def _required(pod: SchedulingPod) -> NodeSelector | None:
    return pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
