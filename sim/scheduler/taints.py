"""Taints of nodes and what pods tolerate (`k8s.io/component-helpers/scheduling/corev1`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dranode.sim.scheduler.documents import NodeTaint, PodToleration, SchedulingNode, SchedulingPod

_REPELS: Final = ("NoSchedule", "NoExecute")
_PREFERS: Final = "PreferNoSchedule"
UNSCHEDULABLE: Final = NodeTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def tolerates_taint(toleration: PodToleration, taint: NodeTaint) -> bool:
    """Return whether the toleration is for the taint.

    The alpha operators Lt and Gt, whose gate is off, are for none.
    """
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def untolerated_taint(node: SchedulingNode, tolerations: Iterable[PodToleration]) -> NodeTaint | None:
    """The first taint that keeps the pod off the node; None if there is none."""
    tolerations = tuple(tolerations)
    for taint in node.spec.taints:
        if taint.effect in _REPELS and not any(tolerates_taint(each, taint) for each in tolerations):
            return taint
    return None


def tolerates_unschedulable(pod: SchedulingPod) -> bool:
    """Return whether the pod may go to a node that is cordoned."""
    return any(tolerates_taint(each, UNSCHEDULABLE) for each in pod.spec.tolerations)


def disliked_taints(node: SchedulingNode, pod: SchedulingPod) -> int:
    """Return how many taints of the node the pod would rather avoid."""
    preferring = [each for each in pod.spec.tolerations if each.effect in ("", _PREFERS)]
    return sum(
        not any(tolerates_taint(each, taint) for each in preferring)
        for taint in node.spec.taints
        if taint.effect == _PREFERS
    )


def written(taint: NodeTaint) -> str:
    """The taint as kubectl writes it: `key=value:Effect`."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
