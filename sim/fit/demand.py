"""A pod and its claims, made from their templates if the cluster has not created them yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from dranode.api.resource import ObjectMeta, PodResourceClaim, ResourceClaim, ResourceClaimStatus
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.extended import classes_behind, left_over
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pod_claims import KnownClaims, pod_claims
from dranode.sim.cluster.workload import PodWithClaims
from dranode.sim.fit.dump import ClusterDump
from dranode.sim.scheduler.documents import SchedulingPod, SchedulingPodSpec
from dranode.sim.scheduler.snapshot import PodInfo

# The entry of the claim for extended resources. No entry of spec.resourceClaims can have this name.
_SPECIAL: Final = "<extended-resources>"
# The entry of the claim in a generated pod.
_CLAIM: Final = "claim"


@dataclass(frozen=True, slots=True)
class PodDemand:
    """A pod with its claims.

    Attributes:
        info: the pod.
        claims: its claims without repetition, in the order of `spec.resourceClaims`.
        entries: the claims by the names under which the pod's containers use them.
        missing: objects that the pod refers to and the documents lack: `ResourceClaim a`.
        extended: the DeviceClass of each extended resource that devices can back.
        left_over: the extended resource claim of an earlier attempt, which has to be deleted first; empty without one.
        problem: why the scheduler evaluates no node until the claims change; empty if it does.
        shared: the claims of the pod's PodGroup, which all its pods share.
    """

    info: PodInfo
    claims: tuple[ResourceClaim, ...]
    entries: Mapping[str, ClaimKey]
    missing: tuple[str, ...] = ()
    extended: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    left_over: str = ""
    problem: str = ""
    shared: frozenset[ClaimKey] = frozenset()

    @property
    def pod(self) -> SchedulingPod:
        """Return the pod."""
        return self.info.pod

    def waiting(self) -> PodDemand:
        """Return the pod as it was before it was bound."""
        pod = replace(self.pod, spec=replace(self.pod.spec, node_name=""))
        special = self.entries.get(_SPECIAL)
        claims = tuple(claim for claim in self.claims if ClaimKey.of(claim) != special)
        entries = {name: key for name, key in self.entries.items() if name != _SPECIAL}
        return dataclasses.replace(self, info=replace_pod(self.info, pod), claims=claims, entries=entries)

    def with_special(self, claim: ResourceClaim) -> PodDemand:
        """Return the pod with the claim that was created for its extended resources."""
        key = ClaimKey.of(claim)
        return dataclasses.replace(self, claims=(*self.claims, claim), entries={**self.entries, _SPECIAL: key})


def demand_of(pod: SchedulingPod, dump: ClusterDump, features: Features) -> PodDemand:
    """Return the pod with its claims.

    Raises:
        DocumentError: a selector of the pod is invalid.
    """
    groups = dump.groups if features.workload_resource_claims else None
    used = pod_claims(pod, KnownClaims(dump.claims, dump.templates, groups, features.binding))
    # The node resources that the devices of a bound pod map (KEP-5517); for a waiting pod, they are computed later.
    counted = features.node_allocatable_resources and pod.spec.node_name
    devices = pod.status.node_allocatable_resource_claim_statuses if counted else ()
    info = PodInfo.of(pod, features.release.number[0], devices)
    extended = classes_behind(info.requests, dump.classes) if features.extended_resource else {}
    missing = tuple(map(str, used.missing))
    demand = PodDemand(info, used.claims, used.entries, missing, extended, "", used.problem, frozenset(used.shared))
    return _with_extended(demand, dump) if extended else demand


def _with_extended(demand: PodDemand, dump: ClusterDump) -> PodDemand:
    """Add the claim for the pod's extended resources if it is bound, or note one left over from an earlier attempt."""
    status = demand.pod.status.extended_resource_claim_status
    if demand.pod.spec.node_name:
        name = status.resource_claim_name if status is not None else ""
        claim = dump.claims.get(ClaimKey(demand.pod.metadata.namespace, name))
        return demand if claim is None else demand.with_special(claim)
    stale = left_over(dump.claims.values(), demand.pod)
    return demand if stale is None else dataclasses.replace(demand, left_over=stale.metadata.name)


def demand_for_claim(pod: PodWithClaims, taken: set[str], features: Features) -> PodDemand:
    """Return a claim that no pod uses, with a generated pod of its name, or of a similar one not in `taken`."""
    (claim,) = pod.claims
    namespace, _, name = pod.name.partition("/")
    free, number = name, 0
    while f"{namespace}/{free}" in taken:
        free, number = f"{name}-{number}", number + 1
    taken.add(f"{namespace}/{free}")
    entry = PodResourceClaim(name=_CLAIM, resource_claim_name=claim.metadata.name)
    made = SchedulingPod(
        metadata=ObjectMeta(name=free, namespace=namespace), spec=SchedulingPodSpec(resource_claims=(entry,))
    )
    info = PodInfo.of(made, features.release.number[0])
    return PodDemand(info, pod.claims, {_CLAIM: ClaimKey.of(claim)})


def copy_of(demand: PodDemand, number: int) -> PodDemand:
    """Return one more waiting pod like this one; claims from templates are copied, named claims are shared."""
    demand = demand.waiting()
    pod = demand.pod
    templated = {entry.name for entry in pod.spec.resource_claims if entry.resource_claim_template_name is not None}
    name = f"{pod.metadata.name}-{number}"
    renamed = {
        demand.entries[entry]: ClaimKey(pod.metadata.namespace, f"{name}-{entry}")
        for entry in templated & demand.entries.keys()
        if demand.entries[entry] not in demand.shared
    }
    claims = tuple(
        replace(
            claim,
            metadata=replace(claim.metadata, name=renamed[ClaimKey.of(claim)].name),
            status=ResourceClaimStatus(),
        )
        if ClaimKey.of(claim) in renamed
        else claim
        for claim in demand.claims
    )
    entries = {entry: renamed.get(key, key) for entry, key in demand.entries.items()}
    info = replace_pod(demand.info, replace(pod, metadata=replace(pod.metadata, name=name)))
    return dataclasses.replace(demand, info=info, claims=claims, entries=entries)


def replace_pod(info: PodInfo, pod: SchedulingPod) -> PodInfo:
    """Replace the pod by one that differs only in its name or its node, on which nothing else depends."""
    return PodInfo(pod, info.requests, info.non_zero, info.terms, info.ports)
