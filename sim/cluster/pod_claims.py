"""The claims of a pod: named, or made from templates (by the cluster or here), its own or those of its PodGroup.

Source: `k8s.io/dynamic-resource-allocation/resourceclaim` and the resource claim controller of Kubernetes 1.36.3 and
1.37.1; for PodGroups, KEP-5729. If devices failed to bind (KEP-5007), kube-scheduler releases them before it looks for
others (`isClaimReadyForBinding` and PostFilter of DynamicResources, the same in 1.34 to 1.37). Its time limit of 10
minutes is not simulated, because a dump does not contain the current time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dranode.api.documents import API_VERSION
from dranode.api.resource import (
    SCHEDULING,
    APIDocument,
    APIObject,
    DeviceRequestAllocationResult,
    ObjectMeta,
    PodResourceClaim,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimTemplate,
)
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.metadata import POD_CLAIM_NAME
from dranode.driver.claims.users import owning_group
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.scheduler.documents import PodClaimStatus, SchedulingPod

_TRUE: Final = "True"


def binding_failure(claim: ResourceClaim, pod_uid: str, pod_group: str = "") -> str:
    """Return why the pod cannot run while a device of the claim failed to bind; empty if none failed.

    As in kube-scheduler, the search ends at a device that is not bound yet, so failures of later devices do not count.
    """
    if claim.status.allocation is None:
        return ""
    for result in readable_results(claim.status.allocation):
        if not result.binding_conditions:
            continue
        conditions = _conditions(claim, result)
        failed = next((name for name in result.binding_failure_conditions if _holds(conditions, name)), None)
        if failed is not None:
            return _sentence(claim, _consequence(claim, pod_uid, pod_group), result, conditions[failed])
        if unbound(claim, result):
            return ""
    return ""


def unbound(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> list[str]:
    """Return the conditions that a device still needs before a pod with the claim can run."""
    conditions = _conditions(claim, result)
    return [name for name in result.binding_conditions if not _holds(conditions, name)]


def _consequence(claim: ResourceClaim, pod_uid: str, pod_group: str) -> str:
    users = claim.status.reserved_for
    if not users or (len(users) == 1 and users[0].uid == pod_uid):
        return "kube-scheduler releases the claim's devices and looks for others when it tries the pod again"
    if len(users) == 1 and users[0].is_pod_group and users[0].name == pod_group:
        # PodGroupPostFilter.
        return f"kube-scheduler releases the claim's devices if no pod of {users[0]} has been scheduled"
    return "the claim keeps its devices, because it is also reserved for others"


def _sentence(
    claim: ResourceClaim, consequence: str, result: DeviceRequestAllocationResult, condition: Mapping[str, Any]
) -> str:
    why = ", ".join(str(condition[field]) for field in ("type", "reason", "message") if condition.get(field))
    return (
        f"resourceclaim not available on the node: device {result.driver}/{result.pool}/{result.device} of "
        f"{ClaimKey.of(claim)} failed to bind ({why}); {consequence}"
    )


def _conditions(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dict[str, Mapping[str, Any]]:
    """Return the conditions of the device's first entry in `status.devices`, by type."""
    for entry in claim.status.devices:
        if isinstance(entry, Mapping) and all(
            entry.get(field) == getattr(result, field) for field in ("driver", "pool", "device")
        ):
            listed = entry.get("conditions")
            conditions = listed if isinstance(listed, (list, tuple)) else ()
            # The first condition of a type counts, so it has to be the last one entered.
            return {str(item.get("type")): item for item in reversed(conditions) if isinstance(item, Mapping)}
    return {}


def _holds(conditions: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    return conditions.get(name, {}).get("status") == _TRUE


class PodGroupSpec(APIDocument, frozen=True, kw_only=True):
    """`PodGroup.spec`; the entries are like those of a pod."""

    resource_claims: tuple[PodResourceClaim, ...] = ()


class PodGroupStatus(APIDocument, frozen=True, kw_only=True):
    """`PodGroup.status`."""

    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()


class PodGroup(APIObject, frozen=True, kw_only=True):
    """The fields of a PodGroup about claims (`scheduling.k8s.io`, v1alpha2 in 1.36, v1alpha3 and v1beta1 in 1.37)."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class MissingObject(NamedTuple):
    """An object that a pod refers to and that is not among the documents."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class KnownClaims:
    """The objects that pods refer to, by namespace and name.

    Attributes:
        claims: the claims.
        templates: the templates from which claims are made.
        groups: the PodGroups that share claims; None if DRAWorkloadResourceClaims is off.
        binding: whether the scheduler checks whether devices are bound (DRADeviceBindingConditions).
    """

    claims: Mapping[ClaimKey, ResourceClaim]
    templates: Mapping[ClaimKey, ResourceClaimTemplate]
    groups: Mapping[ClaimKey, PodGroup] | None = None
    binding: bool = False


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod.

    Attributes:
        claims: its claims without repetition, in the order of `spec.resourceClaims`.
        entries: the claims by the names under which the pod's containers use them.
        missing: objects that the pod refers to and the documents lack.
        problem: why the scheduler evaluates no node until the pod or its claims change; empty if it does.
        shared: the claims of the pod's PodGroup, with the group as their consumer.
    """

    claims: tuple[ResourceClaim, ...]
    entries: Mapping[str, ClaimKey]
    missing: tuple[MissingObject, ...] = ()
    problem: str = ""
    shared: Mapping[ClaimKey, ResourceClaimConsumerReference] = field(default_factory=lambda: MappingProxyType({}))


def pod_claims(pod: SchedulingPod, known: KnownClaims) -> PodClaims:
    """Return the claims of a pod; those that the cluster has not created yet are made from their templates."""
    claims: dict[ClaimKey, ResourceClaim] = {}
    entries: dict[str, ClaimKey] = {}
    missing: list[MissingObject] = []
    problems: list[str] = []
    shared: dict[ClaimKey, ResourceClaimConsumerReference] = {}
    group = _group(pod, known, missing)
    for entry in pod.spec.resource_claims:
        of_group = group is not None and entry in group.spec.resource_claims
        made = _made(pod, group if of_group else None, entry)
        if made is not None and made.resource_claim_name is None:
            continue  # according to the pod's status, this entry needs no claim
        name = made.resource_claim_name if made is not None else entry.resource_claim_name
        claim = _claim(pod, group if of_group else None, entry, name, known)
        if isinstance(claim, MissingObject):
            missing.append(claim)
            continue
        key = entries[entry.name] = ClaimKey.of(claim)
        claims.setdefault(key, claim)
        if made is not None:
            problems += _not_owned(claim, pod, groups=known.groups is not None)
        if of_group and group is not None:
            shared[key] = _reference(group)
    deleted = (claim.metadata.name for claim in claims.values() if claim.metadata.deletion_timestamp is not None)
    problems += [f'resourceclaim "{name}" is being deleted' for name in deleted]
    if known.binding:
        failures = (binding_failure(claim, pod.metadata.uid, pod.spec.pod_group) for claim in claims.values())
        problems += filter(None, failures)
    problem = next(iter((*_gates(pod), *problems)), "")
    return PodClaims(tuple(claims.values()), entries, tuple(missing), problem, shared)


def _gates(pod: SchedulingPod) -> list[str]:
    if pod.metadata.deletion_timestamp is not None and not pod.spec.node_name:
        return [f"pod {pod.key} is being deleted"]
    gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
    return [f"pod {pod.key} waits until its scheduling gates are removed: {gates}"] if gates else []


def _group(pod: SchedulingPod, known: KnownClaims, missing: list[MissingObject]) -> PodGroup | None:
    name = pod.spec.pod_group
    if not name or known.groups is None or not pod.spec.resource_claims:
        return None
    group = known.groups.get(ClaimKey(pod.metadata.namespace, name))
    if group is None:
        missing.append(MissingObject("PodGroup", name))
    return group


def _made(pod: SchedulingPod, group: PodGroup | None, entry: PodResourceClaim) -> PodClaimStatus | None:
    """Return the status of the claim that the cluster created for an entry, in the pod or in its PodGroup."""
    if entry.resource_claim_template_name is None:
        return None
    statuses = (*pod.status.resource_claim_statuses, *(group.status.resource_claim_statuses if group else ()))
    return next((status for status in statuses if status.name == entry.name), None)


def _claim(
    pod: SchedulingPod, group: PodGroup | None, entry: PodResourceClaim, name: str | None, known: KnownClaims
) -> ResourceClaim | MissingObject:
    namespace = pod.metadata.namespace
    if name is not None:
        return known.claims.get(ClaimKey(namespace, name)) or MissingObject("ResourceClaim", name)
    source = entry.resource_claim_template_name or ""
    template = known.templates.get(ClaimKey(namespace, source))
    if template is None:
        return MissingObject("ResourceClaimTemplate", source)
    owner = pod.metadata if group is None else group.metadata
    return claim_from(template, f"{owner.name}-{entry.name}", {POD_CLAIM_NAME: entry.name})


def claim_from(template: ResourceClaimTemplate, name: str, annotations: Mapping[str, str]) -> ResourceClaim:
    """Return the claim made from a template."""
    template_metadata = template.spec.metadata
    metadata = ObjectMeta(
        name=name,
        namespace=template.metadata.namespace,
        labels=template_metadata.labels,
        annotations={**template_metadata.annotations, **annotations},
    )
    return ResourceClaim(api_version=API_VERSION, kind="ResourceClaim", metadata=metadata, spec=template.spec.spec)


def _not_owned(claim: ResourceClaim, pod: SchedulingPod, *, groups: bool) -> list[str]:
    """Return why the pod may not use the claim: it was created for an earlier pod with the same name."""
    owner = next((reference for reference in claim.metadata.owner_references if reference.controller), None)
    if owner is None or not pod.metadata.uid or owner.uid == pod.metadata.uid:
        return []
    group = pod.spec.pod_group if groups else ""
    if not group:
        why = "Pod is not owner"
    elif group == owning_group(claim):
        return []
    else:
        why = f"neither Pod nor PodGroup {group} is the owner"
    return [f"ResourceClaim {ClaimKey.of(claim)} was not created for Pod {pod.key} ({why})"]


def _reference(group: PodGroup) -> ResourceClaimConsumerReference:
    metadata = group.metadata
    return ResourceClaimConsumerReference(
        api_group=SCHEDULING, resource="podgroups", name=metadata.name, uid=metadata.uid
    )
