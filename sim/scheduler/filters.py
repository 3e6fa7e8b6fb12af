"""Filters the nodes for a pod by kube-scheduler's plug-ins, but for devices; the first that refuses a node says why.

The plug-ins run in the order of the default profile, and the reasons are their words. Volumes are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from dranode.sim.scheduler.node_rules import (
    FEATURES_MISSING,
    matches_required,
    named_nodes,
    required_features,
    tolerates_unschedulable,
    untolerated_taint,
    written,
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
    """The reason why a node is not for a pod.

    Attributes:
        plugin: kube-scheduler's plug-in that refuses it.
        reasons: in kube-scheduler's words, as they are in the pod's FailedScheduling event.
        detail: what is behind it on this node: a taint, a topology; equal for nodes that are refused alike.
        shortages: of which resources the node has too little.
        hopeless: whether nothing that could be evicted would help.
    """

    plugin: str
    reasons: tuple[str, ...]
    detail: str = ""
    shortages: tuple[ResourceShortage, ...] = ()
    hopeless: bool = True


class OwnFilters:
    """The plug-ins that ask the pod and one node alone.

    Attributes:
        requests: what the pod asks.
    """

    def __init__(self, pod: SchedulingPod, minor: int, elsewhere: frozenset[str] = frozenset()) -> None:
        """Look at the pod; `elsewhere` are extended resources that devices stand for."""
        self._pod = pod
        self.requests: Amounts = amounts_of(pod_requests(pod, Counting(minor)))
        self._elsewhere = elsewhere
        self._named = named_nodes(pod)
        self._cordoned_too = tolerates_unschedulable(pod)
        self._ports = host_ports(pod)
        self._features = required_features(pod, minor)

    def lasting_refusal(self, node: SchedulingNode) -> Refusal | None:
        """Return what the first plug-ins say, whichever pods run on the node; None if they accept it."""
        # NodeAffinity first: its PreFilter names the nodes that are looked at, when the pod names nodes.
        if self._named is not None and node.metadata.name not in self._named:
            return Refusal("NodeAffinity", (NOT_NAMED,))
        if node.spec.unschedulable and not self._cordoned_too:
            return Refusal("NodeUnschedulable", (CORDONED,))
        taint = untolerated_taint(node, self._pod.spec.tolerations)
        if taint is not None:
            return Refusal("TaintToleration", (TAINTED,), written(taint))
        return None if matches_required(self._pod, node) else Refusal("NodeAffinity", (NOT_SELECTED,))

    def passing_refusal(self, info: NodeInfo) -> Refusal | None:
        """Return what the next ones say, which depends on the pods of the node; None if it is left."""
        return self._free_ports(info) or lacking("NodeResourcesFit", shortages(self.requests, info, self._elsewhere))

    def late_refusal(self, node: SchedulingNode) -> Refusal | None:
        """Return what the plug-ins say that come after the one for devices."""
        missing = self._features - set(node.status.declared_features)
        return Refusal("NodeDeclaredFeatures", (FEATURES_MISSING,), ", ".join(sorted(missing))) if missing else None

    def _free_ports(self, info: NodeInfo) -> Refusal | None:
        taken = [port for port in self._ports if any(port.conflicts(other) for other in info.ports)]
        if not taken:
            return None
        detail = ", ".join(f"{port.protocol} {port.port}" for port in sorted(taken))
        return Refusal("NodePorts", (PORT_TAKEN,), detail, hopeless=False)


class Filters:
    """All plug-ins, with what they prepare from the pod and the cluster before they look at nodes.

    Attributes:
        own: those that ask one node alone.
        far_reaching: whether pods on other nodes matter.
    """

    def __init__(self, info: PodInfo, snapshot: Snapshot, minor: int, elsewhere: frozenset[str] = frozenset()) -> None:
        """Look at the pod and the cluster; `elsewhere` are extended resources that devices stand for.

        Raises:
            DocumentError: a selector of the pod is none.
        """
        self.own = OwnFilters(info.pod, minor, elsewhere)
        self._spread = SpreadFilter(info.pod, snapshot)
        self._affinity = AffinityFilter(info, snapshot)
        self.far_reaching = not self._spread.idle or not self._affinity.idle

    def refusal(self, info: NodeInfo) -> Refusal | None:
        """Return why the node is not for the pod, before its devices are looked at; None if it is left."""
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
    """The refusal for want of resources; None if nothing is short."""
    if not short:
        return None
    reasons = tuple(shortage.reason for shortage in short)
    return Refusal(plugin, reasons, shortages=short, hopeless=any(shortage.hopeless for shortage in short))
