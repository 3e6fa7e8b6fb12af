"""Reads the pods of a local run with their claims from files, in the order given.

A template becomes a claim for each pod that uses it; a template or claim that no pod uses gets a pod made up, as if
somebody had written the simplest one. Everything here is pure: documents in, pods with claims out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from dranode.driver.core.api.documents import API_VERSION, decode
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.pod_validation import pod_errors
from dranode.driver.core.api.resource import (
    CELSelector,
    DeviceClass,
    DeviceClassSpec,
    DeviceSelector,
    ObjectMeta,
    Pod,
    PodResourceClaim,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from dranode.driver.core.api.source_document import SourceDocument
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules

Named = TypeVar("Named", ResourceClaim, ResourceClaimTemplate, Pod)

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
DEFAULT_NAMESPACE: Final = "default"
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
# Any fixed namespace will do: the same files get the same UIDs, so a run over kept state meets its own claims again.
_UIDS: Final = uuid.UUID("6ad4b9f0-63c1-5c0e-9bd3-2a1b6f6f1a10")


@dataclass(frozen=True, slots=True)
class PodWithClaims:
    """A pod and its claims, prepared together.

    Attributes:
        name: `<namespace>/<name>` of the pod.
        claims: in the order of `spec.resourceClaims`, each once, reserved for the pod.
        missing: names of claims or templates that the pod refers to and no file has.
        node: the node that the pod is bound to; empty if to none.
    """

    name: str
    claims: tuple[ResourceClaim, ...]
    missing: tuple[str, ...] = ()
    node: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadDocuments:
    """Everything the files ask for.

    Attributes:
        pods: in the order of the files.
        classes: the files' classes, and those of `DEFAULT_CLASSES` where they define none.
        rules: the files' DeviceTaintRules.
    """

    pods: tuple[PodWithClaims, ...]
    classes: tuple[DeviceClass, ...]
    rules: tuple[DeviceTaintRule, ...] = ()


def read_workload(documents: Iterable[SourceDocument]) -> WorkloadDocuments:
    """Sort out documents: claims, templates, pods, classes and taint rules; other kinds are passed over.

    Raises:
        DocumentError: a document of these kinds does not decode, two claims have one name, or a pod names claims or
            requests that there are not; says where.
    """
    claims: dict[tuple[str, str], ResourceClaim] = {}
    templates: dict[tuple[str, str], ResourceClaimTemplate] = {}
    pods: list[Pod] = []
    of_pods: list[SourceDocument] = []
    classes = {kind.metadata.name: kind for kind in map(default_class, DEFAULT_CLASSES)}
    order: list[tuple[str, str, str]] = []
    everything = tuple(documents)
    for source in everything:
        try:
            match source.kind:
                case "ResourceClaim":
                    claim = _in_namespace(decode(ResourceClaim, source.document))
                    _enter(claims, claim, "claim")
                    order.append(("claim", claim.metadata.namespace, claim.metadata.name))
                case "ResourceClaimTemplate":
                    template = _in_namespace(decode(ResourceClaimTemplate, source.document))
                    _enter(templates, template, "template")
                    order.append(("template", template.metadata.namespace, template.metadata.name))
                case "Pod":
                    pods.append(_in_namespace(decode(Pod, source.document)))
                    of_pods.append(source)
                    order.append(("pod", "", str(len(pods) - 1)))
                case "DeviceClass":
                    device_class = decode(DeviceClass, source.document)
                    classes[device_class.metadata.name] = device_class
                case _:
                    pass
        except DocumentError as error:
            raise DocumentError(f"{source.place}: {error}") from error
    for source, pod in zip(of_pods, pods, strict=True):
        _check_pod(source, pod, claims, templates)
    placed = tuple(_pods(order, claims, templates, pods))
    return WorkloadDocuments(placed, tuple(classes.values()), taint_rules(everything))


def require_pods(pods: Sequence[PodWithClaims], files: Iterable[str]) -> None:
    """Refuse files that ask for nothing.

    Raises:
        DocumentError: there is no pod, nor a claim or template that one could be made up for.
    """
    if not pods:
        raise DocumentError(f"no claim, template or pod is in {', '.join(files)}, so there is nothing to do")


def request_names(
    entry: PodResourceClaim,
    namespace: str,
    claims: Mapping[tuple[str, str], ResourceClaim],
    templates: Mapping[tuple[str, str], ResourceClaimTemplate],
) -> tuple[str, ...] | None:
    """The names of the requests of the claim or template behind an entry of a pod's `spec.resourceClaims`.

    None if it is not among `claims` and `templates`, which are by namespace and name.
    """
    if entry.resource_claim_name is not None:
        claim = claims.get((namespace, entry.resource_claim_name))
        devices = claim.spec.devices if claim is not None else None
    else:
        template = templates.get((namespace, entry.resource_claim_template_name or ""))
        devices = template.spec.spec.devices if template is not None else None
    return None if devices is None else tuple(request.name for request in devices.requests)


def _check_pod(
    source: SourceDocument,
    pod: Pod,
    claims: Mapping[tuple[str, str], ResourceClaim],
    templates: Mapping[tuple[str, str], ResourceClaimTemplate],
) -> None:
    """Refuse a pod that the API server would refuse, or that asks a claim for what it has not.

    A pod that is bound was taken by a cluster; that it is served badly there is not for us to stop at.
    """

    def requests_of(entry: PodResourceClaim) -> tuple[str, ...] | None:
        return None if pod.spec.node_name else request_names(entry, pod.metadata.namespace, claims, templates)

    for error in pod_errors(pod, requests_of):
        raise DocumentError(f"{source.place}: {error.path}: {error.message}")


def default_class(name: str) -> DeviceClass:
    """The DeviceClass (resource.k8s.io/v1) of that name among those that exist by default."""
    selector = DeviceSelector(cel=CELSelector(expression=DEFAULT_CLASSES[name]))
    return DeviceClass(
        api_version=API_VERSION,
        kind="DeviceClass",
        metadata=ObjectMeta(name=name),
        spec=DeviceClassSpec(selectors=(selector,)),
    )


def _in_namespace(value: Named) -> Named:
    if not value.metadata.name:
        raise DocumentError("a name is required", "metadata.name")
    metadata = msgspec.structs.replace(value.metadata, namespace=value.metadata.namespace or DEFAULT_NAMESPACE)
    return msgspec.structs.replace(value, metadata=metadata)


def _enter(known: dict[tuple[str, str], Named], value: Named, what: str) -> None:
    key = value.metadata.namespace, value.metadata.name
    if key in known:
        raise DocumentError(f"a {what} {key[0]}/{key[1]} is there already", "metadata.name")
    known[key] = value


def _pods(
    order: Iterable[tuple[str, str, str]],
    claims: Mapping[tuple[str, str], ResourceClaim],
    templates: Mapping[tuple[str, str], ResourceClaimTemplate],
    pods: list[Pod],
) -> Iterable[PodWithClaims]:
    # A claim and a template may have one name: that a pod uses the one says nothing of the other.
    used = {
        (kind, pod.metadata.namespace, name)
        for pod in pods
        for entry in pod.spec.resource_claims
        for kind, name in (("claim", entry.resource_claim_name), ("template", entry.resource_claim_template_name))
        if name
    }
    for kind, namespace, name in order:
        if kind == "pod":
            yield _pod_claims(pods[int(name)], claims, templates)
        elif (kind, namespace, name) not in used:
            claim = claims.get((namespace, name)) if kind == "claim" else None
            made_up = claim or _from_template(templates[namespace, name], name)
            yield PodWithClaims(f"{namespace}/{name}", (_reserved(made_up, name),))


def _pod_claims(
    pod: Pod,
    claims: Mapping[tuple[str, str], ResourceClaim],
    templates: Mapping[tuple[str, str], ResourceClaimTemplate],
) -> PodWithClaims:
    namespace, name = pod.metadata.namespace, pod.metadata.name
    own: dict[str, ResourceClaim] = {}
    missing: list[str] = []
    for entry in pod.spec.resource_claims:
        if entry.resource_claim_name is not None:
            claim = claims.get((namespace, entry.resource_claim_name))
        else:
            template = templates.get((namespace, entry.resource_claim_template_name or ""))
            claim = _from_template(template, f"{name}-{entry.name}", entry.name) if template else None
        if claim is None:
            missing.append(entry.resource_claim_name or entry.resource_claim_template_name or entry.name)
        else:
            own.setdefault(claim.metadata.name, _reserved(claim, name))
    return PodWithClaims(f"{namespace}/{name}", tuple(own.values()), tuple(missing), pod.spec.node_name)


def _from_template(template: ResourceClaimTemplate, name: str, pod_claim_name: str = "") -> ResourceClaim:
    given = template.spec.metadata
    annotations = {**given.annotations, **({POD_CLAIM_NAME: pod_claim_name} if pod_claim_name else {})}
    metadata = ObjectMeta(
        name=name, namespace=template.metadata.namespace, labels=given.labels, annotations=annotations
    )
    return ResourceClaim(api_version=API_VERSION, kind="ResourceClaim", metadata=metadata, spec=template.spec.spec)


def _reserved(claim: ResourceClaim, pod: str) -> ResourceClaim:
    namespace, name = claim.metadata.namespace, claim.metadata.name
    uid = claim.metadata.uid or str(uuid.uuid5(_UIDS, f"{namespace}/{name}"))
    reserved = claim.status.reserved_for or (
        ResourceClaimConsumerReference(resource="pods", name=pod, uid=str(uuid.uuid5(_UIDS, f"pod {namespace}/{pod}"))),
    )
    return msgspec.structs.replace(
        claim,
        api_version=API_VERSION,
        kind="ResourceClaim",
        metadata=msgspec.structs.replace(claim.metadata, uid=uid),
        status=ResourceClaimStatus(
            allocation=claim.status.allocation, reserved_for=reserved, devices=claim.status.devices
        ),
    )
