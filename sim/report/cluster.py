"""A cluster's documents as a picture needs them; what does not decode is named, never taken for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceClass, Node, Pod, ResourceClaim, ResourceSlice
from dranode.driver.claims.grant import check_results
from dranode.driver.claims.uses import pods_among
from dranode.show.picture.fleet import FleetClaim
from dranode.show.picture.pictures import shares_of
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules

T = TypeVar("T")

# The kinds that a page is made of, each with the parameters of its list.
PAGE_KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "ResourceSlice": {},
    "DeviceClass": {},
    "ResourceClaim": {},
    "DeviceTaintRule": {},
    "Node": {},
    "Pod": {},
    "Event": {"fieldSelector": "type=Warning,involvedObject.kind=Pod"},
}

_NAMESPACE: Final = "default"
_MOST_UNREAD: Final = 20
_POD_FINISHED: Final = frozenset(("Succeeded", "Failed"))


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod and what was seen around it.

    Attributes:
        name: `<namespace>/<name>`.
        pod: as it decodes.
        claims: the names of its claims, `<namespace>/<name>`; a template's once it is generated.
        ungenerated: the entries whose claim is not generated yet.
        phase: `status.phase`; empty if it is not there.
        scheduler: what kube-scheduler says in its condition PodScheduled, if that is false.
        warnings: its warning Events, the newest first: `<reason>: <message>`.
    """

    name: str
    pod: Pod
    claims: tuple[str, ...] = ()
    ungenerated: tuple[str, ...] = ()
    phase: str = ""
    scheduler: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Return whether it has not started yet, as far as its status says."""
        return self.phase in ("", "Pending")


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The objects of a cluster that were seen.

    Attributes:
        slices: all ResourceSlices.
        classes: all DeviceClasses.
        nodes: those that there are Nodes of.
        node_remarks: what is odd about each, by name.
        claims: by `<namespace>/<name>`.
        pods: in order, without those that have ended.
        notes: one sentence each for what was not seen.
        sources: the documents that decode.
        claims_known: False if no claim was read, so that nothing is known to be free.
        rules: all DeviceTaintRules.
    """

    slices: tuple[ResourceSlice, ...]
    classes: tuple[DeviceClass, ...]
    nodes: tuple[Node, ...]
    node_remarks: Mapping[str, Sequence[str]]
    claims: Mapping[str, ResourceClaim]
    pods: tuple[PodSeen, ...]
    notes: tuple[str, ...] = ()
    sources: tuple[SourceDocument, ...] = ()
    claims_known: bool = True
    rules: tuple[DeviceTaintRule, ...] = ()
    _users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def fleet_claims(self) -> Iterator[FleetClaim]:
        """Yield the claims as a picture shows them."""
        for name, claim in self.claims.items():
            metadata = claim.metadata
            yield FleetClaim(
                name,
                self._users.get(name, ()),
                shares_of(claim.status.allocation),
                _cpus(claim),
                metadata.creation_timestamp or "",
                tuple(_claim_remarks(claim)),
            )


def cluster_seen(
    documents: Iterable[SourceDocument], kinds: Collection[str] = (), refused: Sequence[str] = ()
) -> ClusterSeen:
    """Sort out a cluster's documents.

    Args:
        documents: those that matter and others.
        kinds: the kinds of which all that there is was read, so that none of a kind means that there is none.
        refused: what could not be read, in sentences.
    """
    documents = tuple(documents)
    by_kind: dict[str, list[SourceDocument]] = defaultdict(list)
    for source in documents:
        by_kind[source.kind].append(source)
    unread: dict[str, str] = {}
    slices = tuple(each for _, each in _decoded(ResourceSlice, by_kind["ResourceSlice"], unread))
    classes = tuple(each for _, each in _decoded(DeviceClass, by_kind["DeviceClass"], unread))
    nodes = tuple(_decoded(Node, by_kind["Node"], unread))
    claims = {
        _full_name(claim.metadata.namespace, claim.metadata.name): claim
        for _, claim in _decoded(ResourceClaim, by_kind["ResourceClaim"], unread)
    }
    rules = tuple(_rules(by_kind["DeviceTaintRule"], unread))
    warnings = _warnings(by_kind["Event"])
    pods = tuple(
        pod
        for source, each in _decoded(Pod, by_kind["Pod"], unread)
        if (pod := _pod(each, source.document, warnings)).phase not in _POD_FINISHED
    )
    return ClusterSeen(
        slices,
        classes,
        tuple(node for _, node in nodes),
        {node.metadata.name: tuple(_node_remarks(source.document)) for source, node in nodes},
        claims,
        pods,
        (*refused, *_lacking(by_kind, kinds), *_unread_notes(tuple(unread.values()))),
        tuple(source for source in documents if source.place not in unread),
        bool(by_kind["ResourceClaim"]) or "ResourceClaim" in kinds,
        rules,
        _users(claims, pods),
    )


def _decoded(
    into: type[T], sources: Iterable[SourceDocument], unread: dict[str, str]
) -> Iterator[tuple[SourceDocument, T]]:
    for source in sources:
        try:
            value = decode(into, source.document)
            if isinstance(value, ResourceClaim):
                check_results(value.status.allocation)
            yield source, value
        except DocumentError as error:
            unread[source.place] = f"{source.place} cannot be read: {error}"


def _rules(sources: Iterable[SourceDocument], unread: dict[str, str]) -> Iterator[DeviceTaintRule]:
    for source in sources:
        try:
            yield from taint_rules([source])
        except DocumentError as error:
            unread[source.place] = f"{error}; its taints are not shown"


def _unread_notes(unread: Sequence[str]) -> Iterator[str]:
    yield from unread[:_MOST_UNREAD]
    if len(unread) > _MOST_UNREAD:
        yield f"{len(unread) - _MOST_UNREAD} more documents cannot be read"


def _lacking(by_kind: Mapping[str, Sequence[SourceDocument]], kinds: Collection[str]) -> Iterator[str]:
    for kind, without in (
        ("ResourceSlice", "no devices are known"),
        ("ResourceClaim", "who holds which device is unknown, so none counts as free"),
        ("Node", "nodes without devices are not shown, nor which nodes are not Ready"),
        ("Pod", "which pods wait, and why, is unknown"),
        ("DeviceClass", "why claims are not allocated is unknown"),
        ("DeviceTaintRule", "taints that rules put on devices are unknown"),
        ("Event", "what Events say about pods is unknown"),
    ):
        if not by_kind.get(kind) and kind not in kinds:
            yield f"no {kind} was read: {without}"


def _pod(pod: Pod, document: Mapping[str, Any], warnings: Mapping[str, Sequence[str]]) -> PodSeen:
    namespace = pod.metadata.namespace or _NAMESPACE
    name = _full_name(namespace, pod.metadata.name)
    status = _mapping(document.get("status"))
    generated = {
        str(each.get("name")): each.get("resourceClaimName") for each in _mappings(status.get("resourceClaimStatuses"))
    }
    claims: list[str] = []
    ungenerated: list[str] = []
    for entry in pod.spec.resource_claims:
        own = entry.resource_claim_name or generated.get(entry.name)
        if own:
            claims.append(_full_name(namespace, str(own)))
        elif entry.name not in generated:  # there with no claim: the template asks for none
            ungenerated.append(entry.name)
    extended = _mapping(status.get("extendedResourceClaimStatus")).get("resourceClaimName")
    if isinstance(extended, str):
        claims.append(_full_name(namespace, extended))
    scheduled = next((each for each in _mappings(status.get("conditions")) if each.get("type") == "PodScheduled"), {})
    return PodSeen(
        name,
        pod,
        tuple(claims),
        tuple(ungenerated),
        str(status.get("phase") or ""),
        str(scheduled.get("message") or "") if scheduled.get("status") == "False" else "",
        tuple(warnings.get(name, ())),
    )


def _warnings(events: Iterable[SourceDocument]) -> dict[str, list[str]]:
    dated: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for source in events:
        event = source.document
        about = _mapping(event.get("involvedObject") or event.get("regarding"))
        if event.get("type") == "Warning" and about.get("kind") == "Pod":
            name = _full_name(str(about.get("namespace") or _NAMESPACE), str(about.get("name")))
            message = str(event.get("message") or event.get("note") or "")
            series = _mapping(event.get("series")).get("lastObservedTime")
            time = str(series or event.get("lastTimestamp") or event.get("eventTime") or "")
            dated[name].append((time, f"{event.get('reason')}: {message}"))
    return {name: list(dict.fromkeys(text for _, text in sorted(each, reverse=True))) for name, each in dated.items()}


def _node_remarks(document: Mapping[str, Any]) -> Iterator[str]:
    conditions = _mappings(_mapping(document.get("status")).get("conditions"))
    ready = next((each for each in conditions if each.get("type") == "Ready"), None)
    if ready is not None and ready.get("status") != "True":
        yield f"not Ready: {ready.get('message') or ready.get('reason') or ready.get('status')}"
    if _mapping(document.get("spec")).get("unschedulable"):
        yield "cordoned"


def _claim_remarks(claim: ResourceClaim) -> Iterator[str]:
    if claim.metadata.deletion_timestamp:
        yield f"deletion began at {claim.metadata.deletion_timestamp}"
    yield from (f"is reserved for {each}" for each in claim.status.reserved_for if not each.is_pod)
    for _, named in _named_cpus(claim):
        if not _is_cpu_list(named):
            yield f"has CPUs in its status that are not a valid cpu-list and are not shown: {named!r}"


def _users(claims: Mapping[str, ResourceClaim], pods: Iterable[PodSeen]) -> dict[str, tuple[str, ...]]:
    users: dict[str, dict[str, None]] = defaultdict(dict)
    for name, claim in claims.items():
        namespace = name.partition("/")[0]
        for reserved in pods_among(claim.status.reserved_for):
            users[name][_full_name(namespace, reserved.name)] = None
        for owner in claim.metadata.owner_references:
            if owner.kind == "Pod":
                users[name][_full_name(namespace, owner.name)] = None
    for pod in pods:
        for claim_name in pod.claims:
            users[claim_name][pod.name] = None
    return {name: tuple(each) for name, each in users.items()}


def _cpus(claim: ResourceClaim) -> dict[str, str]:
    """The CPUs that a driver names in the claim's status, by node: `data.cpus`, if it is a cpu-list."""
    cpus: dict[str, list[str]] = defaultdict(list)
    for pool, named in _named_cpus(claim):
        if _is_cpu_list(named) and named not in cpus[pool]:
            cpus[pool].append(named)
    return {pool: ",".join(each) for pool, each in cpus.items()}


def _named_cpus(claim: ResourceClaim) -> Iterator[tuple[str, str]]:
    """Yield pool and `data.cpus` of each device in the claim's status that has such a text."""
    for entry in claim.status.devices:
        status = _mapping(entry)
        named = _mapping(status.get("data")).get("cpus")
        if isinstance(named, str):
            yield str(status.get("pool")), named


def _is_cpu_list(text: str) -> bool:
    try:
        return bool(CPUSet.parse(text))
    except ValueError:
        return False


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace or _NAMESPACE}/{name}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    return (each for each in value if isinstance(each, Mapping)) if isinstance(value, (list, tuple)) else iter(())
