"""What a node alone decides: nodeSelector and node affinity, taints, and features of kubelet that a pod needs.

Sources: `k8s.io/component-helpers/scheduling/corev1`; `k8s.io/component-helpers/nodedeclaredfeatures` (KEP-5328), of
1.36.4 and 1.37.1; those for updates of pods do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dranode.api.resource import DeviceTaint, DeviceToleration, Node, NodeSelector, NodeSelectorTerm
from dranode.sim.allocator.pools import selects
from dranode.sim.allocator.taint_rules import tolerates
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


_REPELS: Final = ("NoSchedule", "NoExecute")
_PREFERS: Final = "PreferNoSchedule"
UNSCHEDULABLE: Final = DeviceTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def untolerated_taint(node: SchedulingNode, tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that keeps the pod off the node; None if there is none."""
    tolerations = tuple(tolerations)
    for taint in node.spec.taints:
        if taint.effect in _REPELS and not any(tolerates(each, taint) for each in tolerations):
            return taint
    return None


def tolerates_unschedulable(pod: SchedulingPod) -> bool:
    """Return whether the pod may go to a node that is cordoned."""
    return any(tolerates(each, UNSCHEDULABLE) for each in pod.spec.tolerations)


def disliked_taints(node: SchedulingNode, pod: SchedulingPod) -> int:
    """Return how many taints of the node the pod would rather avoid."""
    preferring = [each for each in pod.spec.tolerations if each.effect in ("", _PREFERS)]
    return sum(
        not any(tolerates(each, taint) for each in preferring) for taint in node.spec.taints if taint.effect == _PREFERS
    )


def written(taint: DeviceTaint) -> str:
    """The taint as kubectl writes it: `key=value:Effect`."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


FEATURES_MISSING: Final = "node(s) didn't match Pod's required features"
_RESTART_ALL: Final = "RestartAllContainers"
_BIND_OPTIONS_SINCE: Final = 37


def required_features(pod: SchedulingPod, minor: int) -> frozenset[str]:
    """The names that a node has to declare."""
    needed = set()
    spec = pod.spec
    containers = (*spec.init_containers, *spec.containers)
    if any(rule.action == _RESTART_ALL for container in containers for rule in container.restart_policy_rules):
        needed.add("RestartAllContainersOnContainerExits")
    if spec.host_network and spec.host_users is False:
        needed.add("UserNamespacesHostNetworkSupport")
    mounts = [mount for container in containers for mount in container.volume_mounts]
    if minor >= _BIND_OPTIONS_SINCE and any(mount.get("bindMountOptions") for mount in mounts):
        needed.add("VolumeBindMountOptions")
    return frozenset(needed)
