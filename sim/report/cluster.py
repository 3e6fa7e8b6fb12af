"""The documents of a cluster for a picture; documents that do not decode are reported instead of ignored."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.driver.claims.grant import check_results
from dranode.driver.claims.users import pods_among
from dranode.show.picture.fleet import FleetClaim
from dranode.show.picture.pictures import shares_of
from dranode.sim.allocator.taint_rules import DeviceTaintRule, taint_rules
from dranode.sim.scheduler.documents import SchedulingPod

T = TypeVar("T")

# The kinds that a page shows, each with the parameters for listing it.
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


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod with its claims and Events.

    Attributes:
        name: `<namespace>/<name>`.
        pod: the pod.
        claims: the names of its claims, `<namespace>/<name>`; those from templates once they are generated.
        ungenerated: the entries whose claim is not generated yet.
        scheduler: kube-scheduler's message in the condition PodScheduled, if that is false.
        warnings: its warning Events, the newest first: `<reason>: <message>`.
    """

    name: str
    pod: SchedulingPod
    claims: tuple[str, ...] = ()
    ungenerated: tuple[str, ...] = ()
    scheduler: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Return whether the pod has not started yet, according to its status."""
        return self.pod.status.phase in ("", "Pending")


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The objects of a cluster that were read.

    Attributes:
        slices: all ResourceSlices.
        classes: all DeviceClasses.
        nodes: all Nodes.
        node_remarks: remarks about each node, such as cordoned, by name.
        claims: by `<namespace>/<name>`.
        pods: in order, without finished pods.
        notes: one sentence for everything that was not read.
        sources: the documents that decode.
        claims_known: False if claims were not read, so that no device is known to be free.
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
        """Yield the claims for a picture."""
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
    """Decode the documents of a cluster.

    Args:
        documents: the documents; other kinds are ignored.
        kinds: the kinds that were read completely, even if the cluster has no object of them.
        refused: one sentence for each kind that could not be read.
    """
    documents = tuple(documents)
    by_kind: dict[str, list[SourceDocument]] = defaultdict(list)
    for source in documents:
        by_kind[source.kind].append(source)
    unread: dict[str, str] = {}
    slices = tuple(slice_ for _, slice_ in _decoded(ResourceSlice, by_kind["ResourceSlice"], unread))
    classes = tuple(class_ for _, class_ in _decoded(DeviceClass, by_kind["DeviceClass"], unread))
    nodes = tuple(_decoded(Node, by_kind["Node"], unread))
    claims = {
        _full_name(claim.metadata.namespace, claim.metadata.name): claim
        for _, claim in _decoded(ResourceClaim, by_kind["ResourceClaim"], unread)
    }
    rules = tuple(_rules(by_kind["DeviceTaintRule"], unread))
    warnings = _warnings(by_kind["Event"])
    pods = tuple(_pod(pod, warnings) for _, pod in _decoded(SchedulingPod, by_kind["Pod"], unread) if not pod.finished)
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


def _pod(pod: SchedulingPod, warnings: Mapping[str, Sequence[str]]) -> PodSeen:
    namespace = pod.metadata.namespace or _NAMESPACE
    name = _full_name(namespace, pod.metadata.name)
    status = pod.status
    generated = {item.name: item.resource_claim_name for item in status.resource_claim_statuses}
    claims: list[str] = []
    ungenerated: list[str] = []
    for entry in pod.spec.resource_claims:
        claim_name = entry.resource_claim_name or generated.get(entry.name)
        if claim_name:
            claims.append(_full_name(namespace, claim_name))
        elif entry.name not in generated:  # a status without a claim name means that no claim is needed
            ungenerated.append(entry.name)
    if (extended := status.extended_resource_claim_status) is not None:
        claims.append(_full_name(namespace, extended.resource_claim_name))
    unscheduled = (item for item in status.conditions if (item.type, item.status) == ("PodScheduled", "False"))
    return PodSeen(
        name,
        pod,
        tuple(claims),
        tuple(ungenerated),
        next((item.message for item in unscheduled), ""),
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
    return {
        name: list(dict.fromkeys(text for _, text in sorted(of_pod, reverse=True))) for name, of_pod in dated.items()
    }


def _node_remarks(document: Mapping[str, Any]) -> Iterator[str]:
    conditions = _mappings(_mapping(document.get("status")).get("conditions"))
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
    if ready is not None and ready.get("status") != "True":
        yield f"not Ready: {ready.get('message') or ready.get('reason') or ready.get('status')}"
    if _mapping(document.get("spec")).get("unschedulable"):
        yield "cordoned"


def _claim_remarks(claim: ResourceClaim) -> Iterator[str]:
    if claim.metadata.deletion_timestamp:
        yield f"deletion began at {claim.metadata.deletion_timestamp}"
    yield from (f"is reserved for {consumer}" for consumer in claim.status.reserved_for if not consumer.is_pod)
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
    return {name: tuple(of_claim) for name, of_claim in users.items()}


def _cpus(claim: ResourceClaim) -> dict[str, str]:
    """Return the CPUs in the claim's status, by pool: `data.cpus` of the drivers, if it is a cpu-list."""
    cpus: dict[str, list[str]] = defaultdict(list)
    for pool, named in _named_cpus(claim):
        if _is_cpu_list(named) and named not in cpus[pool]:
            cpus[pool].append(named)
    return {pool: ",".join(lists) for pool, lists in cpus.items()}


def _named_cpus(claim: ResourceClaim) -> Iterator[tuple[str, str]]:
    """Yield pool and `data.cpus` of each device in the claim's status that has it as a string."""
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
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, (list, tuple)) else iter(())
