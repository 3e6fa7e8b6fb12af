"""Decodes manifests, and checks for unknown fields and invalid objects that would otherwise be ignored."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from dranode.api.documents import decode, to_v1
from dranode.api.errors import DocumentError
from dranode.api.field_errors import FieldError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import APIDocument, DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dranode.api.slice_validation import slice_errors
from dranode.api.unknown_fields import UnknownField, unknown_fields
from dranode.api.validation import claim_errors, class_errors, template_errors
from dranode.driver.claims.grant import check_results
from dranode.sim.allocator.taint_rules import DeviceTaintRule, rule_errors, taint_rule
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.cluster.pod_claims import PodGroup
from dranode.sim.scheduler.amounts import DEFAULT_NAMESPACE, PriorityClass, check_node_amounts
from dranode.sim.scheduler.documents import SchedulingNode, SchedulingPod
from dranode.sim.scheduler.terms import LabeledObject, SelectingObject

T = TypeVar("T")
Namespaced = TypeVar("Namespaced", PodGroup, ResourceClaim, ResourceClaimTemplate, SchedulingPod)

# The kinds with a complete list of fields, except for those of the status.
COMPLETE: Final[Mapping[str, type[APIDocument]]] = {
    kind.__name__: kind for kind in (ResourceClaim, ResourceClaimTemplate, DeviceClass, ResourceSlice, DeviceTaintRule)
}
# Metadata that `ObjectMeta` lacks, because only API servers write it.
_SERVERS: Final = ("metadata.managedFields", "metadata.selfLink", "metadata.deletionGracePeriodSeconds")
# Kinds other than pods and their controllers that decide where pods run.
CLUSTER: Final[Mapping[str, type[APIDocument]]] = {
    "Node": SchedulingNode,
    "PodGroup": PodGroup,
    "ResourceSlice": ResourceSlice,
    "Namespace": LabeledObject,
    "PriorityClass": PriorityClass,
    "Service": LabeledObject,
    "ReplicationController": LabeledObject,
    "ReplicaSet": SelectingObject,
    "StatefulSet": SelectingObject,
}


def decoded(
    sources: Iterable[SourceDocument], into: type[T], kind: str = "", check: Callable[[T], None] = lambda _: None
) -> list[tuple[SourceDocument, T]]:
    """Decode the documents of a kind, by default the name of the type.

    Raises:
        DocumentError: a document does not decode, or `check` refuses its value; names the place.
    """
    kind = kind or into.__name__
    values = []
    for source in sources:
        if source.kind == kind:
            with source.names_errors():
                value = decode(into, source.document)
                check(value)
            values.append((source, value))
    return values


def decoded_claims(sources: Iterable[SourceDocument]) -> list[tuple[SourceDocument, ResourceClaim]]:
    """Decode the claims, with the results of every driver: a device whose result was not read would count as free.

    Raises:
        DocumentError: a claim or one of its results does not decode; says where.
    """
    return decoded(sources, ResourceClaim, check=lambda claim: check_results(claim.status.allocation))


def by_key(documents: Iterable[tuple[SourceDocument, Namespaced]]) -> dict[ClaimKey, Namespaced]:
    """Return values by namespace and name, with the default namespace filled in.

    Raises:
        DocumentError: an object has no name, or two have the same name; names the place.
    """
    values: dict[ClaimKey, Namespaced] = {}
    for source, value in documents:
        key = key_of(source)
        if not key.name:
            raise DocumentError(f"{source.place}: metadata.name: a name is required")
        if key in values:
            raise DocumentError(f"{source.place}: metadata.name: there is already a {source.kind} {key}")
        values[key] = replace(value, metadata=replace(value.metadata, namespace=key.namespace))
    return values


def key_of(source: SourceDocument) -> ClaimKey:
    """Return the namespace and the name of a document."""
    metadata = source.document.get("metadata") or {}
    return ClaimKey(metadata.get("namespace") or DEFAULT_NAMESPACE, metadata.get("name") or "")


def check_manifests(documents: Iterable[SourceDocument]) -> None:
    """Check that objects of resource.k8s.io have no unknown fields and that the API server would accept them.

    Objects with a UID are not checked: an API server stored them, maybe of a release with other rules.

    Raises:
        DocumentError: a check fails; names the place.
    """
    for source in documents:
        if source.kind not in COMPLETE or (source.document.get("metadata") or {}).get("uid"):
            continue
        with source.names_errors():
            for field in unknown_in(source.kind, source.document):
                raise DocumentError(f"there is no such field; the fields are {', '.join(field.known)}", field.path)
            for problem in _refusals(source):
                raise DocumentError(problem.message, problem.path)


def unknown_in(kind: str, document: Mapping[str, Any]) -> Iterator[UnknownField]:
    """Yield every field that an object of resource.k8s.io does not have, in its v1 form and without its status."""
    written = {name: value for name, value in document.items() if name != "status"}
    return (field for field in unknown_fields(COMPLETE[kind], written) if field.path not in _SERVERS)


def _unchecked(expression: str) -> None:  # noqa: ARG001 - the allocator reports invalid expressions
    return None


def _refusals(source: SourceDocument) -> Iterator[FieldError]:
    match source.kind:
        case "ResourceSlice":
            yield from slice_errors(decode(ResourceSlice, source.document), newest=False)
        case "DeviceTaintRule":
            yield from rule_errors(taint_rule(source))
        case "ResourceClaim":
            yield from claim_errors(decode(ResourceClaim, source.document), _unchecked)
        case "ResourceClaimTemplate":
            yield from template_errors(decode(ResourceClaimTemplate, source.document), _unchecked)
        case "DeviceClass":
            yield from class_errors(decode(DeviceClass, source.document), _unchecked)


def check_cluster_object(source: SourceDocument) -> None:
    """Check an object that decides where pods run.

    Raises:
        DocumentError: it does not decode, or is a Node with invalid amounts; with the path in the document.
    """
    kind = CLUSTER.get(source.kind)
    if kind is not None:
        value = decode(kind, to_v1(source.document))
        if isinstance(value, SchedulingNode):
            check_node_amounts(value)
    if source.kind == "DeviceTaintRule":
        taint_rule(source)


def check_unused(documents: Iterable[SourceDocument]) -> None:
    """Check the objects of a cluster, for a command that only reads the workload among the documents.

    Raises:
        DocumentError: an object is invalid; names the place.
    """
    for source in documents:
        with source.names_errors():
            check_cluster_object(source)
