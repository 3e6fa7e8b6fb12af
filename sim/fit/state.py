"""The pods and allocations of a cluster as a frozen value; a what-if question makes another value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from dranode.api.resource import AllocationResult, PoolID, ResourceClaim
from dranode.driver.claims.grant import readable_results
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.holdings import ClaimKey, Holdings
from dranode.sim.fit.demand import PodDemand, demand_of, replace_pod
from dranode.sim.fit.dump import ClusterDump
from dranode.sim.scheduler.snapshot import NodeInfo, PodInfo, Snapshot
from dranode.sim.scheduler.versions import VersionedMap


@dataclass(frozen=True)
class ClusterState:
    """The pods of every node, and the devices of every claim.

    Attributes:
        snapshot: the nodes with their pods.
        holdings: the devices that claims hold.
        allocations: the allocated claims.
        demands: the bound pods with their claims, by `<namespace>/<name>`.
        reserved: claims that are also reserved for unknown consumers; their devices are never released.
        _users: the bound pods that use each claim.
    """

    snapshot: Snapshot
    holdings: Holdings
    allocations: VersionedMap[ClaimKey, AllocationResult]
    demands: VersionedMap[str, PodDemand]
    reserved: frozenset[ClaimKey]
    _users: VersionedMap[ClaimKey, frozenset[str]]

    @classmethod
    def of(cls, dump: ClusterDump, features: Features) -> ClusterState:
        """Read the state from a dump; pods on nodes without a document use no resources of a node.

        Raises:
            DocumentError: a selector of a pod is invalid.
        """
        demands = {pod.key: demand_of(pod, dump, features) for pod in dump.pods if pod.spec.node_name}
        on_nodes: dict[str, list[PodInfo]] = defaultdict(list)
        for demand in demands.values():
            on_nodes[demand.pod.spec.node_name].append(demand.info)
        nodes = {node.metadata.name: NodeInfo.of(node, on_nodes[node.metadata.name]) for node in dump.nodes}
        snapshot = Snapshot(VersionedMap(nodes), dump.namespaces, dump.owners.selector)
        allocations = {
            key: claim.status.allocation for key, claim in dump.claims.items() if claim.status.allocation is not None
        }
        reserved = frozenset(key for key, claim in dump.claims.items() if _has_strangers(claim, demands))
        holdings = Holdings().with_claims(allocations.items())
        return cls(
            snapshot,
            holdings,
            VersionedMap(allocations),
            VersionedMap(demands),
            reserved,
            VersionedMap(_users(demands)),
        )

    @property
    def nodes(self) -> VersionedMap[str, NodeInfo]:
        """Return the nodes by name."""
        return self.snapshot.nodes

    def users(self, claim: ClaimKey) -> frozenset[str]:
        """Return the bound pods that use a claim."""
        return self._users.get(claim, frozenset())

    def held(self, demand: PodDemand) -> Iterator[str]:
        """Yield the devices of each claim of a pod: `default/a: gpu-0, gpu-1`."""
        for claim in demand.claims:
            allocation = self.allocations.get(ClaimKey.of(claim))
            if allocation is not None:
                devices = ", ".join(result.device for result in readable_results(allocation))
                yield f"{ClaimKey.of(claim)}: {devices}"

    def with_pod(
        self, demand: PodDemand, node: str, allocated: Iterable[tuple[ResourceClaim, AllocationResult]]
    ) -> ClusterState:
        """Return the state with one more pod on a node, and the devices that its claims got there."""
        made = {ClaimKey.of(claim): allocation for claim, allocation in allocated}
        pod = demand.pod
        bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
        demand = replace(demand, info=replace_pod(demand.info, bound))
        return replace(
            self,
            snapshot=self.snapshot.replaced({node: self.nodes[node].with_pod(demand.info)}),
            holdings=self.holdings.with_claims(made.items()) if made else self.holdings,
            allocations=self.allocations.replaced(made) if made else self.allocations,
            demands=self.demands.replaced({pod.key: demand}),
            _users=self._users.replaced({claim: self.users(claim) | {pod.key} for claim in demand.entries.values()}),
        )

    def without_pods(self, keys: frozenset[str], *, keep_claims: bool = False) -> ClusterState:
        """Return the state without some pods; the devices of claims that no other pod uses are released, or kept."""
        gone = [self.demands[key] for key in keys]
        used = {claim for demand in gone for claim in demand.entries.values()}
        freed = {
            claim: self.allocations[claim]
            for claim in used - self.reserved
            if claim in self.allocations and self.users(claim) <= keys and not keep_claims
        }
        names = {demand.pod.spec.node_name for demand in gone}
        changed = {name: self.nodes[name].without(keys) for name in names if name in self.nodes}
        return replace(
            self,
            snapshot=self.snapshot.replaced(changed),
            holdings=self.holdings.without(freed) if freed else self.holdings,
            allocations=self.allocations.replaced(without=freed),
            demands=self.demands.replaced(without=keys),
            _users=self._users.replaced({claim: self.users(claim) - keys for claim in used}),
        )

    def alone(self, node: str, pools: Iterable[PoolID], claims: Iterable[ClaimKey]) -> ClusterState:
        """Return the state of one node, for questions that do not depend on the others.

        Args:
            node: the node.
            pools: the pools that it can use.
            claims: the claims that the question is about.
        """
        info = self.nodes[node]
        demands = {key: self.demands[key] for key in info.pods}
        used = {claim for demand in demands.values() for claim in demand.entries.values()}
        elsewhere = {claim for claim in used if not self.users(claim) <= demands.keys()}
        return ClusterState(
            replace(self.snapshot, nodes=VersionedMap({node: info})),
            self.holdings.only(pools),
            VersionedMap((claim, self.allocations[claim]) for claim in (*used, *claims) if claim in self.allocations),
            VersionedMap(demands),
            self.reserved | elsewhere,
            VersionedMap(_users(demands)),
        )

    def with_nodes(self, nodes: Iterable[NodeInfo]) -> ClusterState:
        """Return the state with more nodes."""
        return replace(self, snapshot=self.snapshot.replaced({node.name: node for node in nodes}))


def _has_strangers(claim: ResourceClaim, pods: Mapping[str, PodDemand]) -> bool:
    return any(
        not user.is_pod or f"{claim.metadata.namespace}/{user.name}" not in pods for user in claim.status.reserved_for
    )


def _users(demands: Mapping[str, PodDemand]) -> dict[ClaimKey, frozenset[str]]:
    """Return the pods that use each claim."""
    users: dict[ClaimKey, set[str]] = defaultdict(set)
    for key, demand in demands.items():
        for claim in demand.entries.values():
            users[claim].add(key)
    return {claim: frozenset(pods) for claim, pods in users.items()}
