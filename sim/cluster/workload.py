"""Reads pods with their claims from documents, in their order.

A pod's claims are those that the cluster created for it, or are made from its templates. A template or claim that no
pod uses gets a generated pod.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import msgspec

from dranode.api.documents import API_VERSION
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import (
    CELSelector,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceSelector,
    ObjectMeta,
    PodResourceClaim,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from dranode.api.validation import pod_errors
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules
from dranode.sim.cluster.extended import extended_of, is_special, special_claims
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.manifests import by_key, check_manifests, decoded, decoded_claims, key_of
from dranode.sim.cluster.pod_claims import KnownClaims, MissingObject, PodClaims, PodGroup, claim_from, pod_claims
from dranode.sim.cluster.pod_templates import claims_named
from dranode.sim.scheduler.amounts import check_selectors, pod_scheduling_errors, with_defaults
from dranode.sim.scheduler.documents import SchedulingPod

_HUGE: Final = (
    'device.driver == "dra.memory" && device.attributes["dra.memory"].hugeTLB && '
    'device.attributes["dra.memory"].pageSize == "{}"'
)
# Classes that exist unless a file defines them, with their selectors: those of deploy/deviceclasses.yaml.
DEFAULT_CLASSES: Final = {
    "dra.cpu": 'device.driver == "dra.cpu"',
    "dra.gpu": 'device.driver == "dra.gpu"',
    "dra.memory": 'device.driver == "dra.memory" && !device.attributes["dra.memory"].hugeTLB',
    "dra.hugepages-2m": _HUGE.format("2m"),
    "dra.hugepages-1g": _HUGE.format("1g"),
}
# A fixed UUID namespace, so that the same files get the same UIDs, and a run with --state finds its claims again.
_UIDS: Final = uuid.UUID("6ad4b9f0-63c1-5c0e-9bd3-2a1b6f6f1a10")


@dataclass(frozen=True, slots=True)
class PodWithClaims:
    """A pod and its claims, prepared together.

    Attributes:
        name: `<namespace>/<name>` of the pod.
        claims: the claims without repetition, in the order of `spec.resourceClaims`, reserved for the pod; for a
            finished pod, those that are still allocated.
        missing: objects that the pod refers to and the documents lack.
        problem: why kube-scheduler evaluates no node until the pod or its claims change; empty if it does.
        pod: the pod as the API server would store it; None for a generated one.
        entries: the claims by the names under which the pod's containers use them.
    """

    name: str
    claims: tuple[ResourceClaim, ...]
    missing: tuple[MissingObject, ...] = ()
    problem: str = ""
    pod: SchedulingPod | None = None
    entries: Mapping[str, ClaimKey] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def node(self) -> str:
        """Return the node that the pod is bound to; empty without one."""
        return self.pod.spec.node_name if self.pod is not None else ""


@dataclass(frozen=True, slots=True)
class WorkloadDocuments:
    """The pods of documents, with the classes and rules for them.

    Attributes:
        pods: in the order of the documents.
        classes: the DeviceClasses, including those of `DEFAULT_CLASSES` that the documents do not define.
        rules: the DeviceTaintRules.
    """

    pods: tuple[PodWithClaims, ...]
    classes: tuple[DeviceClass, ...]
    rules: tuple[DeviceTaintRule, ...] = ()


def read_workload(documents: Iterable[SourceDocument], features: Features) -> WorkloadDocuments:
    """Decode claims, templates, pods, PodGroups, classes and taint rules; other kinds are ignored.

    Raises:
        DocumentError: a document of these kinds does not decode, two of a kind have the same name, or a pod names a
            missing claim or request; names the place.
    """
    sources = tuple(documents)
    check_manifests(sources)
    claims = by_key(decoded_claims(sources))
    templates = by_key(decoded(sources, ResourceClaimTemplate))
    groups = by_key(decoded(sources, PodGroup))
    pods = {key: with_defaults(pod, {}) for key, pod in by_key(decoded(sources, SchedulingPod, "Pod")).items()}
    classes = {name: default_class(name) for name in DEFAULT_CLASSES}
    written: set[str] = set()
    for source, device_class in decoded(sources, DeviceClass):
        name = device_class.metadata.name
        if name in written:
            raise DocumentError(f"{source.place}: metadata.name: there is already a DeviceClass {name}")
        written.add(name)
        classes[name] = device_class
    for source in sources:
        if source.kind == "Pod":
            _check_pod(source, pods[key_of(source)], claims, templates)
    known = KnownClaims(claims, templates, groups if features.workload_resource_claims else None, features.binding)
    return WorkloadDocuments(tuple(_pods(sources, pods, known)), tuple(classes.values()), taint_rules(sources))


def with_special(pod: PodWithClaims, classes: Iterable[DeviceClass], features: Features) -> PodWithClaims:
    """Add the claim for the pod's extended resources, for a node that does not offer any of them itself."""
    if pod.pod is None:
        return pod
    user = _pod_reference(ClaimKey(pod.pod.metadata.namespace, pod.pod.metadata.name), pod.pod.metadata.uid)
    special = special_claims(pod.pod, extended_of(pod.pod, classes, features))
    return replace(pod, claims=(*pod.claims, *(_reserved(claim, user) for claim in special)))


def asked_by(pods: Iterable[PodWithClaims]) -> Iterator[DeviceClaim]:
    """Yield the requests and constraints of the pods' claims."""
    return (claim.spec.devices for pod in pods for claim in pod.claims)


def require_pods(pods: Sequence[PodWithClaims], files: Iterable[str]) -> None:
    """Check that there is something to do.

    Raises:
        DocumentError: there is no pod, claim or template.
    """
    if not pods:
        raise DocumentError(f"nothing to do: no claim, template or pod in {', '.join(files)}")


def request_names(
    entry: PodResourceClaim,
    namespace: str,
    claims: Mapping[ClaimKey, ResourceClaim],
    templates: Mapping[ClaimKey, ResourceClaimTemplate],
) -> tuple[str, ...] | None:
    """Return the request names of the claim or template of an entry in a pod's `spec.resourceClaims`.

    Return None if it is not among `claims` and `templates`, which are by namespace and name.
    """
    if entry.resource_claim_name is not None:
        claim = claims.get(ClaimKey(namespace, entry.resource_claim_name))
        devices = claim.spec.devices if claim is not None else None
    else:
        template = templates.get(ClaimKey(namespace, entry.resource_claim_template_name or ""))
        devices = template.spec.spec.devices if template is not None else None
    return None if devices is None else tuple(request.name for request in devices.requests)


def _check_pod(
    source: SourceDocument,
    pod: SchedulingPod,
    claims: Mapping[ClaimKey, ResourceClaim],
    templates: Mapping[ClaimKey, ResourceClaimTemplate],
) -> None:
    """Check that the API server would accept the pod, and that its containers name existing requests of claims.

    The request names of a bound pod are not checked, because a cluster has accepted it.
    """

    def requests_of(entry: PodResourceClaim) -> tuple[str, ...] | None:
        return None if pod.spec.node_name else request_names(entry, pod.metadata.namespace, claims, templates)

    with source.names_errors():
        check_selectors(pod)
        for error in (*pod_errors(pod, requests_of), *pod_scheduling_errors(pod, stored=bool(pod.metadata.uid))):
            raise DocumentError(error.message, error.path)


def default_class(name: str) -> DeviceClass:
    """Return the default DeviceClass (resource.k8s.io/v1) with this name."""
    return class_selecting(name, DEFAULT_CLASSES[name])


def class_selecting(name: str, expression: str) -> DeviceClass:
    """Return a DeviceClass (resource.k8s.io/v1) with one selector."""
    selector = DeviceSelector(cel=CELSelector(expression=expression))
    return DeviceClass(
        api_version=API_VERSION,
        kind="DeviceClass",
        metadata=ObjectMeta(name=name),
        spec=DeviceClassSpec(selectors=(selector,)),
    )


def _pods(
    sources: Iterable[SourceDocument], pods: Mapping[ClaimKey, SchedulingPod], known: KnownClaims
) -> Iterator[PodWithClaims]:
    """Yield the pods of the documents, and a pod for each claim and template that no pod uses, in their order."""
    claims_of_pods = {key: pod_claims(pod, known) for key, pod in pods.items()}
    # A claim and a template may have the same name, so the kind is part of the key.
    used = {("ResourceClaim", claim) for claims in claims_of_pods.values() for claim in claims.entries.values()}
    used |= {
        (kind, ClaimKey(key.namespace, name))
        for key, pod in pods.items()
        for entry in pod.spec.resource_claims
        for kind, name in (
            ("ResourceClaim", entry.resource_claim_name),
            ("ResourceClaimTemplate", entry.resource_claim_template_name),
        )
        if name
    }
    used |= set(claims_named(sources))
    # Claims for extended resources, which kube-scheduler creates, are not allocated by themselves either.
    used |= {
        ("ResourceClaim", key)
        for key, claim in known.claims.items()
        if is_special(claim) and claim.status.allocation is None
    }
    for source in sources:
        if source.kind == "Pod":
            yield _pod(pods[key_of(source)], claims_of_pods[key_of(source)])
        elif source.kind in ("ResourceClaim", "ResourceClaimTemplate") and (source.kind, key_of(source)) not in used:
            key = key_of(source)
            is_claim = source.kind == "ResourceClaim"
            claim = known.claims[key] if is_claim else claim_from(known.templates[key], key.name, {})
            yield PodWithClaims(str(key), (_reserved(claim, _pod_reference(key)),))


def _pod(pod: SchedulingPod, claims_of_pod: PodClaims) -> PodWithClaims:
    reference = _pod_reference(ClaimKey(pod.metadata.namespace, pod.metadata.name), pod.metadata.uid)
    claims = tuple(
        _reserved(claim, claims_of_pod.shared.get(ClaimKey.of(claim), reference)) for claim in claims_of_pod.claims
    )
    if pod.finished:
        allocated = tuple(claim for claim in claims if claim.status.allocation is not None)
        return PodWithClaims(pod.key, allocated, pod=pod)
    return PodWithClaims(pod.key, claims, claims_of_pod.missing, claims_of_pod.problem, pod, claims_of_pod.entries)


def _pod_reference(pod: ClaimKey, uid: str = "") -> ResourceClaimConsumerReference:
    uid = uid or str(uuid.uuid5(_UIDS, f"pod {pod}"))
    return ResourceClaimConsumerReference(resource="pods", name=pod.name, uid=uid)


def _reserved(claim: ResourceClaim, user: ResourceClaimConsumerReference) -> ResourceClaim:
    uid = claim.metadata.uid or str(uuid.uuid5(_UIDS, str(ClaimKey.of(claim))))
    if not user.uid:
        made_up = uuid.uuid5(_UIDS, f"{user.resource} {claim.metadata.namespace}/{user.name}")
        user = msgspec.structs.replace(user, uid=str(made_up))
    return msgspec.structs.replace(
        claim,
        api_version=API_VERSION,
        kind="ResourceClaim",
        metadata=msgspec.structs.replace(claim.metadata, uid=uid),
        status=ResourceClaimStatus(
            allocation=claim.status.allocation,
            reserved_for=claim.status.reserved_for or (user,),
            devices=claim.status.devices,
        ),
    )
