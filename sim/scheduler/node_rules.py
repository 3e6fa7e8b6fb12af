"""Rules that concern only the node itself: nodeSelector and node affinity, taints, and declared features.

Sources: `k8s.io/component-helpers/scheduling/corev1` and `k8s.io/component-helpers/nodedeclaredfeatures` (KEP-5328) of
1.36.4 and 1.37.1. Declared features that matter only for updates of pods are left out.
"""

from typing import Final

from dranode.api.resource import DeviceTaint, Node, NodeSelector, NodeSelectorTerm
from dranode.sim.allocator.pools import selects
from dranode.sim.allocator.taint_rules import tolerates
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod

NAME_FIELD: Final = "metadata.name"


def matches_required(pod: SchedulingPod, node: Node) -> bool:
    """Return whether the node matches the pod's nodeSelector and required node affinity."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = _required(pod)
    return required is None or selects(required, node)


def preference(pod: SchedulingPod, node: SchedulingNode) -> int:
    """Return the total weight of the preferred terms that match; a term without requirements matches no node."""
    terms = pod.spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    return sum(term.weight for term in terms if selects(NodeSelector(node_selector_terms=(term.preference,)), node))


def named_nodes(pod: SchedulingPod) -> frozenset[str] | None:
    """Return the nodes that the required terms name; None if a term does not name any, empty if they contradict."""
    required = _required(pod)
    if required is None or not required.node_selector_terms:
        return None
    names: set[str] = set()
    for term in required.node_selector_terms:
        term_names = _names(term)
        if term_names is None:
            return None
        names |= term_names
    return frozenset(names)


def _names(term: NodeSelectorTerm) -> set[str] | None:
    named: set[str] | None = None
    for field in term.match_fields:
        if field.key == NAME_FIELD and field.operator == "In":
            named = set(field.values) if named is None else named & set(field.values)
    return named


def _required(pod: SchedulingPod) -> NodeSelector | None:
    return pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution


_PREFERS: Final = "PreferNoSchedule"
UNSCHEDULABLE: Final = DeviceTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def tolerates_unschedulable(pod: SchedulingPod) -> bool:
    """Return whether the pod may run on a cordoned node."""
    return any(tolerates(toleration, UNSCHEDULABLE) for toleration in pod.spec.tolerations)


def disliked_taints(node: SchedulingNode, pod: SchedulingPod) -> int:
    """Return how many PreferNoSchedule taints of the node the pod does not tolerate."""
    tolerations = [toleration for toleration in pod.spec.tolerations if toleration.effect in ("", _PREFERS)]
    taints = [taint for taint in node.spec.taints if taint.effect == _PREFERS]
    return sum(not any(tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


FEATURES_MISSING: Final = "node(s) didn't match Pod's required features"
_RESTART_ALL: Final = "RestartAllContainers"
_BIND_OPTIONS_SINCE: Final = 37


def required_features(pod: SchedulingPod, minor: int) -> frozenset[str]:
    """Return the features that a node has to declare for the pod."""
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
