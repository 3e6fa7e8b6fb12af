"""Nodes with the pods bound to them, like kube-scheduler's snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from dranode.sim.scheduler.documents import LabelMatcher, NodeAllocatableClaimStatus, SchedulingNode, SchedulingPod
from dranode.sim.scheduler.requests import (
    CPU,
    MEMORY,
    NON_ZERO,
    PODS,
    Amounts,
    Counting,
    amounts_of,
    has_pod_level_requests,
    pod_requests,
)
from dranode.sim.scheduler.terms import Namespaces, PodTerms
from dranode.sim.scheduler.versions import VersionedMap

_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - this is what Kubernetes writes for all addresses
_ALWAYS: Final = "Always"


class HostPort(NamedTuple):
    """A host port that a container uses."""

    address: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Return whether both cannot be used on one node."""
        same = self.protocol == other.protocol and self.port == other.port
        return same and (self.address == other.address or _ANY_ADDRESS in (self.address, other.address))


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod with values that are computed once.

    Attributes:
        pod: the pod.
        requests: the resources that it uses on its node.
        non_zero: its `cpu` and `memory` for scoring.
        terms: its pod affinity.
        ports: the host ports that it uses.
    """

    pod: SchedulingPod
    requests: Amounts
    non_zero: tuple[int, int]
    terms: PodTerms
    ports: frozenset[HostPort]

    @classmethod
    def of(cls, pod: SchedulingPod, minor: int, claims: Iterable[NodeAllocatableClaimStatus] = ()) -> PodInfo:
        """Compute the values for a minor release; `claims` are the node resources that its devices map (KEP-5517).

        Raises:
            DocumentError: a selector of the pod is invalid.
        """
        counting = Counting(minor, status=True)
        claims = tuple(claims)
        exact = pod_requests(pod, counting, claims)
        names = (CPU, MEMORY)
        # A pod-level request covers all containers, so containers without a request add no default amount.
        missing = {name: NON_ZERO[name] for name in names if not has_pod_level_requests(pod) or name not in exact}
        non_zero = (
            amounts_of(pod_requests(pod, replace(counting, missing=missing), claims)) if missing else amounts_of(exact)
        )
        # A pod without containers requests nothing. The API server would reject it.
        cpu, memory = (non_zero.get(name, 0) for name in names)
        return cls(pod, amounts_of(exact), (cpu, memory), PodTerms.of(pod), host_ports(pod))


@dataclass(frozen=True)
class NodeInfo:
    """A node and its pods.

    Attributes:
        node: the node.
        pods: the bound pods that have not ended, by `<namespace>/<name>`.
        requested: the resources that they use.
        non_zero: their `cpu` and `memory` for scoring.
    """

    node: SchedulingNode
    pods: Mapping[str, PodInfo]
    requested: Amounts
    non_zero: tuple[int, int]

    @classmethod
    def of(cls, node: SchedulingNode, pods: Iterable[PodInfo] = ()) -> NodeInfo:
        """Add up the pods."""
        requested: dict[str, int] = {}
        cpu = memory = 0
        infos = {info.pod.key: info for info in pods}
        for info in infos.values():
            for name, amount in info.requests.items():
                requested[name] = requested.get(name, 0) + amount
            cpu, memory = cpu + info.non_zero[0], memory + info.non_zero[1]
        return cls(node, infos, requested, (cpu, memory))

    @property
    def name(self) -> str:
        """Return the node's name."""
        return self.node.metadata.name

    @cached_property
    def allocatable(self) -> Amounts:
        """Return the allocatable amounts."""
        exact = {name: quantity.value for name, quantity in self.node.status.allocatable.items()}
        pods = exact.get(PODS, 0)
        return {**amounts_of(exact), PODS: int(pods)}

    @cached_property
    def ports(self) -> frozenset[HostPort]:
        """Return the host ports in use."""
        return frozenset(port for info in self.pods.values() for port in info.ports)

    @cached_property
    def with_terms(self) -> tuple[PodInfo, ...]:
        """Return the pods with pod affinity or anti-affinity."""
        return tuple(info for info in self.pods.values() if not info.terms.none)

    def with_pod(self, info: PodInfo) -> NodeInfo:
        """Return the node with one more pod."""
        if info.pod.key in self.pods:
            return self.without(frozenset([info.pod.key])).with_pod(info)
        requested = dict(self.requested)
        for name, amount in info.requests.items():
            requested[name] = requested.get(name, 0) + amount
        non_zero = (self.non_zero[0] + info.non_zero[0], self.non_zero[1] + info.non_zero[1])
        after = NodeInfo(self.node, {**self.pods, info.pod.key: info}, requested, non_zero)
        # Fill the cached properties from the old values, which are the same or grow by this pod.
        after.__dict__["allocatable"] = self.allocatable
        after.__dict__["ports"] = self.ports | info.ports if info.ports else self.ports
        after.__dict__["with_terms"] = self.with_terms if info.terms.none else (*self.with_terms, info)
        return after

    def without(self, keys: frozenset[str]) -> NodeInfo:
        """Return the node without these pods."""
        return NodeInfo.of(self.node, (info for key, info in self.pods.items() if key not in keys))


@dataclass(frozen=True)
class Snapshot:
    """All nodes in order, and the namespaces, Services and controllers of the cluster.

    Attributes:
        nodes: by name.
        namespaces: the labels of namespaces.
        default_selector: returns a selector of the pods with the same Services and controller; None without any.
    """

    nodes: VersionedMap[str, NodeInfo]
    namespaces: Namespaces
    default_selector: Callable[[SchedulingPod], LabelMatcher | None]

    @cached_property
    def with_terms(self) -> tuple[NodeInfo, ...]:
        """Return the nodes with pods that have pod affinity or anti-affinity."""
        return tuple(info for info in self.nodes.values() if info.with_terms)

    def replaced(self, changed: Mapping[str, NodeInfo]) -> Snapshot:
        """Return the snapshot with some nodes replaced."""
        after = replace(self, nodes=self.nodes.replaced(changed))
        # Update the cached property instead of recomputing it: what-if questions make thousands of snapshots.
        same = (info for info in self.with_terms if info.name not in changed)
        after.__dict__["with_terms"] = (*same, *(info for info in changed.values() if info.with_terms))
        return after


def host_ports(pod: SchedulingPod) -> frozenset[HostPort]:
    """Return the host ports of the pod's containers and sidecars; other init containers do not reserve any."""
    staying = (container for container in pod.spec.init_containers if container.restart_policy == _ALWAYS)
    return frozenset(
        HostPort(port.host_ip or _ANY_ADDRESS, port.protocol or "TCP", port.host_port)
        for container in (*staying, *pod.spec.containers)
        for port in container.ports
        if port.host_port > 0
    )
