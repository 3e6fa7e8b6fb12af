"""Finds the nodes that a pod may go to by everything but its claims: name, labels, affinity, taints.

Room for CPU and memory, ports, volumes and spreading are not looked at: kube-scheduler's own message has those.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from dranode.api.resource import AllocationResult, DeviceToleration, Node, NodeSelector
from dranode.sim.allocator.nodeselector import selects
from dranode.tools.diagnosis.live_objects import DaemonPodSpec, LiveNode, LiveNodeTaint, LivePodSpec

_EXCLUDING: Final = frozenset(("NoSchedule", "NoExecute"))
_DAEMON_TOLERATIONS: Final = tuple(
    DeviceToleration(key=f"node.kubernetes.io/{key}", operator="Exists", effect=effect)
    for effect, keys in (
        ("NoExecute", ("not-ready", "unreachable")),
        ("NoSchedule", ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
    )
    for key in keys
)
_NO_NETWORK: Final = DeviceToleration(
    key="node.kubernetes.io/network-unavailable", operator="Exists", effect="NoSchedule"
)
_CORDON: Final = LiveNodeTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def plain_node(node: LiveNode) -> Node:
    """Return a node as the allocator knows it."""
    return Node(metadata=node.metadata, status=node.status)


def daemon_excluded_by(node: LiveNode, spec: DaemonPodSpec) -> str:
    """Return why a DaemonSet leaves a node out, in a sentence; empty if its controller makes a pod for it.

    The controller has its pods tolerate the taints of a node's conditions (pkg/controller/daemon/util).
    """
    added = (*_DAEMON_TOLERATIONS, *((_NO_NETWORK,) if spec.host_network else ()))
    return excluded_by(node, replace(spec, tolerations=(*spec.tolerations, *added)))


def excluded_by(node: LiveNode, spec: LivePodSpec | DaemonPodSpec) -> str:
    """Return why a pod may not go to a node, in a sentence; empty if it may."""
    labels = node.metadata.labels
    for key, value in spec.node_selector.items():
        if labels.get(key) != value:
            return f"the pod's nodeSelector wants {key}={value}"
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is not None and not selects(required, plain_node(node)):
        return "the pod's node affinity excludes it"
    cordon = (_CORDON,) if node.spec.unschedulable else ()
    for taint in (*node.spec.taints, *cordon):
        if taint.effect in _EXCLUDING and not any(_tolerates(one, taint) for one in spec.tolerations):
            value = f"={taint.value}" if taint.value else ""
            return f"the pod does not tolerate its taint {taint.key}{value}:{taint.effect}"
    return ""


def away_from(node: LiveNode, allocations: Iterable[tuple[str, AllocationResult]]) -> str:
    """Return which allocated claim is not available on a node, in a sentence; empty if all are."""
    for claim, allocation in allocations:
        selector: NodeSelector | None = allocation.node_selector
        if selector is not None and not selects(selector, plain_node(node)):
            return f"the claim {claim} is allocated elsewhere"
    return ""


def _tolerates(toleration: DeviceToleration, taint: LiveNodeTaint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value
