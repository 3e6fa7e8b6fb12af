"""Filters the nodes for a pod with kube-scheduler's plug-ins, except DynamicResources and those for volumes.

The plug-ins run in the order of the default profile, and the first that refuses a node gives the reason in its words.
"""

from dataclasses import dataclass
from typing import Final

from dranode.sim.allocator.taint_rules import untolerated
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from dranode.sim.scheduler.node_rules import (
    FEATURES_MISSING,
    matches_required,
    named_nodes,
    required_features,
    tolerates_unschedulable,
)
from dranode.sim.scheduler.pod_affinity import AffinityFilter
from dranode.sim.scheduler.requests import Amounts, Counting, amounts_of, pod_requests
from dranode.sim.scheduler.resources import ResourceShortage, shortages
from dranode.sim.scheduler.snapshot import NodeInfo, PodInfo, Snapshot, host_ports
from dranode.sim.scheduler.spread import SpreadFilter

CORDONED: Final = "node(s) were unschedulable"
TAINTED: Final = "node(s) had untolerated taint(s)"
NOT_SELECTED: Final = "node(s) didn't match Pod's node affinity/selector"
NOT_NAMED: Final = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
CONTRADICTION: Final = "pod affinity terms conflict"
PORT_TAKEN: Final = "node(s) didn't have free ports for the requested pod ports"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a node does not fit a pod.

    Attributes:
        plugin: the kube-scheduler plug-in that refuses it.
        reasons: kube-scheduler's words, as in the pod's FailedScheduling event.
        detail: the taint, topology or the like on this node; equal for nodes with the same cause.
        shortages: the resources that are short.
        hopeless: whether no eviction would help.
    """

    plugin: str
    reasons: tuple[str, ...]
    detail: str = ""
    shortages: tuple[ResourceShortage, ...] = ()
    hopeless: bool = True


class OwnFilters:
    """The plug-ins that depend only on the pod and one node.

    Attributes:
        requests: the resources that the pod requests.
    """

    def __init__(self, pod: SchedulingPod, minor: int, elsewhere: frozenset[str] = frozenset()) -> None:
        """Read the pod; `elsewhere` are extended resources that devices can back."""
        self._pod = pod
        self.requests: Amounts = amounts_of(pod_requests(pod, Counting(minor)))
        self._elsewhere = elsewhere
        self._named = named_nodes(pod)
        self._tolerates_cordon = tolerates_unschedulable(pod)
        self._ports = host_ports(pod)
        self._features = required_features(pod, minor)

    def lasting_refusal(self, node: SchedulingNode) -> Refusal | None:
        """Return the refusal of the first plug-ins, which ignore the pods on the node; None if they accept it."""
        # NodeAffinity comes first if the pod names nodes: its PreFilter then limits which nodes are filtered at all.
        if self._named is not None and node.metadata.name not in self._named:
            return Refusal("NodeAffinity", (NOT_NAMED,))
        if node.spec.unschedulable and not self._tolerates_cordon:
            return Refusal("NodeUnschedulable", (CORDONED,))
        taint = untolerated(node.spec.taints, self._pod.spec.tolerations)
        if taint is not None:
            return Refusal("TaintToleration", (TAINTED,), taint.text)
        return None if matches_required(self._pod, node) else Refusal("NodeAffinity", (NOT_SELECTED,))

    def passing_refusal(self, info: NodeInfo) -> Refusal | None:
        """Return the refusal of NodePorts and NodeResourcesFit, which depend on the pods of the node."""
        conflicts = [port for port in self._ports if any(port.conflicts(used) for used in info.ports)]
        if conflicts:
            detail = ", ".join(f"{port.protocol} {port.port}" for port in sorted(conflicts))
            return Refusal("NodePorts", (PORT_TAKEN,), detail, hopeless=False)
        return lacking("NodeResourcesFit", shortages(self.requests, info, self._elsewhere))

    def late_refusal(self, node: SchedulingNode) -> Refusal | None:
        """Return the refusal of the plug-ins that run after DynamicResources."""
        missing = self._features - set(node.status.declared_features)
        return Refusal("NodeDeclaredFeatures", (FEATURES_MISSING,), ", ".join(sorted(missing))) if missing else None


class Filters:
    """All plug-ins, prepared for a pod and a cluster (the PreFilter phase).

    Attributes:
        own: the plug-ins that depend only on the pod and one node.
        far_reaching: whether pods on other nodes matter.
    """

    def __init__(self, info: PodInfo, snapshot: Snapshot, minor: int, elsewhere: frozenset[str] = frozenset()) -> None:
        """Read the pod and the cluster; `elsewhere` are extended resources that devices can back.

        Raises:
            DocumentError: a selector of the pod is invalid.
        """
        self.own = OwnFilters(info.pod, minor, elsewhere)
        self._spread = SpreadFilter(info.pod, snapshot, minor)
        self._affinity = AffinityFilter(info, snapshot, minor)
        self.far_reaching = not self._spread.idle or not self._affinity.idle

    def refusal(self, info: NodeInfo) -> Refusal | None:
        """Return why a plug-in before DynamicResources refuses the node; None if it passes."""
        refusal = self.own.lasting_refusal(info.node) or self.own.passing_refusal(info)
        if refusal is not None:
            return refusal
        for plugin, refused in (
            ("PodTopologySpread", self._spread.refusal),
            ("InterPodAffinity", self._affinity.refusal),
        ):
            reason = refused(info.node)
            if reason is not None:
                return Refusal(plugin, reason[:1], reason[1], hopeless=False)
        return None


def lacking(plugin: str, short: tuple[ResourceShortage, ...]) -> Refusal | None:
    """Return the refusal for short resources; None if nothing is short."""
    if not short:
        return None
    reasons = tuple(shortage.reason for shortage in short)
    return Refusal(plugin, reasons, shortages=short, hopeless=any(shortage.hopeless for shortage in short))
