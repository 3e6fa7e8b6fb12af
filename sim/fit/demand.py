"""The demand of a pod: itself, and its claims, from templates where the cluster has not made them yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from dranode.api.resource import (
    ObjectMeta,
    PodResourceClaim,
    ResourceClaim,
    ResourceClaimStatus,
)
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.extended import classes_behind, left_over
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pod_claims import KnownClaims, pod_claims
from dranode.sim.cluster.workload import PodWithClaims
from dranode.sim.fit.dump import ClusterDump
from dranode.sim.scheduler.documents import SchedulingPod, SchedulingPodSpec
from dranode.sim.scheduler.snapshot import PodInfo

# Under this name stands the claim that containers use for extended resources; an entry cannot have it.
_SPECIAL: Final = "<extended-resources>"
# What a pod that is made up calls its claim.
_CLAIM: Final = "claim"


@dataclass(frozen=True, slots=True)
class PodDemand:
    """A pod with its claims.

    Attributes:
        info: the pod.
        claims: each once, in the order of `spec.resourceClaims`.
        entries: the claims by the names under which the pod's containers use them.
        missing: what the pod refers to and the documents do not have: `ResourceClaim a`.
        extended: the DeviceClass of each extended resource of the pod that has one.
        left_over: the claim for those that an attempt before has left, which has to be deleted first.
        problem: why the scheduler looks at no node as long as the claims are as they are.
        shared: the claims that its PodGroup has, which all its pods use.
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
        """Return the pod as it is before it is bound."""
        pod = replace(self.pod, spec=replace(self.pod.spec, node_name=""))
        special = self.entries.get(_SPECIAL)
        claims = tuple(claim for claim in self.claims if ClaimKey.of(claim) != special)
        entries = {name: key for name, key in self.entries.items() if name != _SPECIAL}
        return dataclasses.replace(self, info=replace_pod(self.info, pod), claims=claims, entries=entries)

    def with_special(self, claim: ResourceClaim) -> PodDemand:
        """Return the pod with the claim that was made for its extended resources."""
        key = ClaimKey.of(claim)
        return dataclasses.replace(self, claims=(*self.claims, claim), entries={**self.entries, _SPECIAL: key})


def demand_of(pod: SchedulingPod, dump: ClusterDump, features: Features) -> PodDemand:
    """The pod with its claims.

    Raises:
        DocumentError: a selector of the pod is none.
    """
    groups = dump.groups if features.workload_resource_claims else None
    own = pod_claims(pod, KnownClaims(dump.claims, dump.templates, groups, features.binding))
    # What its devices stand for of its node (KEP-5517); of a pod that waits it is found out.
    counted = features.node_allocatable_resources and pod.spec.node_name
    devices = pod.status.node_allocatable_resource_claim_statuses if counted else ()
    info = PodInfo.of(pod, features.release.number[0], devices)
    extended = classes_behind(info.requests, dump.classes) if features.extended_resource else {}
    missing = tuple(map(str, own.missing))
    demand = PodDemand(info, own.claims, own.entries, missing, extended, "", own.problem, frozenset(own.shared))
    return _with_extended(demand, dump) if extended else demand


def _with_extended(demand: PodDemand, dump: ClusterDump) -> PodDemand:
    """The pod with the claim for its extended resources: its own if it is bound, else one that is left over."""
    status = demand.pod.status.extended_resource_claim_status
    if demand.pod.spec.node_name:
        name = status.resource_claim_name if status is not None else ""
        claim = dump.claims.get(ClaimKey(demand.pod.metadata.namespace, name))
        return demand if claim is None else demand.with_special(claim)
    stale = left_over(dump.claims.values(), demand.pod)
    return demand if stale is None else dataclasses.replace(demand, left_over=stale.metadata.name)


def demand_for_claim(pod: PodWithClaims, taken: set[str], features: Features) -> PodDemand:
    """The demand of a claim that no pod uses; its pod has its name, or one like it if another pod has that."""
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
    """One more pod like this that waits, with claims of its own where they were made from templates."""
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
    """The same for a pod that differs in what nothing here depends on: its name, its node."""
    return PodInfo(pod, info.requests, info.non_zero, info.terms, info.ports)
