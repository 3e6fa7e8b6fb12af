"""Whether the nodes of a flavor are any a pod set could run on.

As kube-scheduler's taint and node affinity filters decide for a node that has the flavor's labels and taints, but
requirements about labels that the flavor does not state are left out: its nodes may meet them. An affinity term that
loses all its requirements that way holds for every node.
"""

from __future__ import annotations

from collections.abc import Mapping

from dranode.driver.core.resource import DeviceTaint, DeviceToleration, NodeSelectorRequirement
from dranode.driver.local.queues.values import PodSet, ResourceFlavor

_KEEPS_AWAY = ("NoSchedule", "NoExecute")


def why_not(flavor: ResourceFlavor, pod_set: PodSet) -> str:
    """What keeps the pod set off the flavor's nodes; empty if nothing does."""
    tolerations = (*pod_set.tolerations, *flavor.tolerations)
    for taint in flavor.node_taints:
        if taint.effect in _KEEPS_AWAY and not any(_tolerates(toleration, taint) for toleration in tolerations):
            return f'the taint {taint.key}={taint.value}:{taint.effect} of flavor "{flavor.name}" is not tolerated'
    for key, value in (pod_set.node_selector or {}).items():
        if flavor.node_labels.get(key, value) != value:
            return f'nodeSelector wants {key}={value}, flavor "{flavor.name}" has {key}={flavor.node_labels[key]}'
    if not _affine(pod_set, flavor.node_labels):
        return f'no term of the required node affinity holds for the labels of flavor "{flavor.name}"'
    return ""


def _affine(pod_set: PodSet, labels: Mapping[str, str]) -> bool:
    terms = [
        [requirement for requirement in term.match_expressions if requirement.key in labels]
        for term in pod_set.affinity
    ]
    return not all(terms) or not terms or any(all(_holds(r, labels[r.key]) for r in term) for term in terms)


def _holds(requirement: NodeSelectorRequirement, value: str) -> bool:
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists" | "DoesNotExist":
            return requirement.operator == "Exists"
        case "Gt" | "Lt":
            try:
                have, bound = int(value), int(requirement.values[0])
            except (ValueError, IndexError):
                return False
            return have > bound if requirement.operator == "Gt" else have < bound
        case _:
            return False


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    return (
        toleration.effect in ("", taint.effect)
        and toleration.key in (("", taint.key) if toleration.operator == "Exists" else (taint.key,))
        and (toleration.operator == "Exists" or toleration.value == taint.value)
    )
