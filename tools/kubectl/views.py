"""The claims of a cluster for people: which devices each has, who uses it, who waits for it, how it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from dranode.api.resource import DeviceRequestAllocationResult, ResourceClaim, ResourceSlice
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.uses import groups_among
from dranode.show.picture.devices import unit_of
from dranode.sim.allocator.state import Amount
from dranode.tools.diagnosis.device_view import Availability, DeviceRow, allocated_on
from dranode.tools.diagnosis.live_objects import LiveNode, LivePod
from dranode.tools.diagnosis.pod import ready_conditions


class ClaimStage(StrEnum):
    """The stage of a claim, in the words of kubectl's own column."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    RESERVED = "allocated,reserved"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One claim.

    Attributes:
        namespace: its namespace.
        name: its name.
        stage: how far it has come.
        node: the node of its devices; empty if it has none, or if several nodes see them; None if it is not known.
        pods: the pods that it is reserved for; a PodGroup as `podgroup NAME`, with those of its pods that are on nodes.
        waiting: pods that name it and do not have it yet; None if they are not known.
        results: what it was allocated.
        health: `Ready`, or the reason why a device is not; empty if no driver says anything.
        message: what the driver says of that.
        created: when it was made, in RFC 3339; empty if unknown.
    """

    namespace: str
    name: str
    stage: ClaimStage
    node: str | None
    pods: tuple[str, ...]
    waiting: tuple[str, ...] | None
    results: tuple[DeviceRequestAllocationResult, ...]
    health: str
    message: str
    created: str


def claim_rows(
    claims: Iterable[ResourceClaim], slices: Iterable[ResourceSlice] | None, pods: Iterable[LivePod] | None
) -> Iterator[ClaimRow]:
    """Yield every claim, by namespace and name; what only slices or pods say is None where they are."""
    nodes = {
        (slice_.spec.driver, slice_.spec.pool.name): slice_.spec.node_name
        for slice_ in slices or ()
        if slice_.spec.node_name is not None
    }
    users = _users(pods or ())
    for claim in sorted(claims, key=lambda one: (one.metadata.namespace, one.metadata.name)):
        metadata, status = claim.metadata, claim.status
        results = tuple(readable_results(status.allocation))
        named = users.get((metadata.namespace, metadata.name), ())
        having = _having(claim, named)
        health, message = _health(claim)
        yield ClaimRow(
            namespace=metadata.namespace,
            name=metadata.name,
            stage=_stage(claim),
            node=None if slices is None and results else allocated_on(results, nodes),
            pods=having,
            waiting=None if pods is None else tuple(name for pod in named if (name := pod.metadata.name) not in having),
            results=results,
            health=health,
            message=message,
            created=metadata.creation_timestamp or "",
        )


def _stage(claim: ResourceClaim) -> ClaimStage:
    if claim.metadata.deletion_timestamp is not None:
        return ClaimStage.DELETED
    if claim.status.allocation is None:
        return ClaimStage.PENDING
    return ClaimStage.RESERVED if claim.status.reserved_for else ClaimStage.ALLOCATED


def _health(claim: ResourceClaim) -> tuple[str, str]:
    conditions = list(ready_conditions(claim))
    for condition in conditions:
        if condition.get("status") != "True":
            return str(condition.get("reason") or "NotReady"), str(condition.get("message") or "")
    return ("Ready", "") if conditions else ("", "")


def _having(claim: ResourceClaim, named: Iterable[LivePod]) -> tuple[str, ...]:
    """Return who has a claim: what it is reserved for, and of PodGroups the pods on nodes that name it."""
    groups = groups_among(claim.status.reserved_for)
    theirs = (pod.metadata.name for pod in named if pod.spec.node_name and pod.spec.pod_group in groups)
    return tuple(dict.fromkeys((*map(str, claim.status.reserved_for), *theirs)))


def _users(pods: Iterable[LivePod]) -> Mapping[tuple[str, str], tuple[LivePod, ...]]:
    """Return the pods that use each claim or are to, by namespace and name, those that have ended left out."""
    users: defaultdict[tuple[str, str], list[LivePod]] = defaultdict(list)
    for pod in pods:
        if pod.status.phase in ("Succeeded", "Failed"):
            continue
        made = {
            resource_claim_status.name: resource_claim_status.resource_claim_name
            for resource_claim_status in pod.status.resource_claim_statuses
        }
        for entry in pod.spec.resource_claims:
            name = entry.resource_claim_name or made.get(entry.name)
            if name:
                users[pod.metadata.namespace, name].append(pod)
    return {key: tuple(theirs) for key, theirs in users.items()}


def age(created: str, now: datetime) -> str:
    """Return an age as kubectl prints it (`5d`, `47s`); `<unknown>` without a time, `<invalid>` for one to come."""
    try:
        seconds = int((now - datetime.fromisoformat(created)).total_seconds())
    except (ValueError, TypeError):
        return "<unknown>"
    # A second is nothing; more means that the clock here is behind the server's.
    if seconds < -1:
        return "<invalid>"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    # apimachinery's duration.HumanDuration: below each limit, so many of one unit and the rest in the next.
    steps = (
        (120, max(seconds, 0), "s", 0, ""),
        (600, minutes, "m", seconds % 60, "s"),
        (3 * 3600, minutes, "m", 0, ""),
        (8 * 3600, hours, "h", minutes % 60, "m"),
        (48 * 3600, hours, "h", 0, ""),
        (8 * 86400, days, "d", hours % 24, "h"),
    )
    for limit, whole, unit, rest, smaller in steps:
        if seconds < limit:
            return f"{whole}{unit}{rest}{smaller}" if rest else f"{whole}{unit}"
    return f"{days}d"


@dataclass(slots=True)
class Stock:
    """The devices of one kind on a NUMA node.

    Attributes:
        free: devices that can be had whole, or the amount that is left of a capacity that claims share.
        total: all of them.
    """

    free: Amount = 0
    total: Amount = 0


@dataclass(frozen=True, slots=True)
class NumaRow:
    """One NUMA node of a node, or what no NUMA node of it has.

    Attributes:
        node: the node.
        ready: whether it is Ready; `Unknown` for a node that is not there, or of which nobody has said so.
        numa: the number of the NUMA node; empty for devices without one.
        stock: by driver, or by what a capacity that claims share is an amount of: `memory`, `dra.cpu/cpu`.
    """

    node: str
    ready: str
    numa: str
    stock: Mapping[str, Stock] = field(default_factory=dict)


def numa_rows(nodes: Iterable[LiveNode], devices: Iterable[DeviceRow]) -> Iterator[NumaRow]:
    """Yield the NUMA nodes of every node, by name and number; a node without devices has one row."""
    stocks: defaultdict[str, defaultdict[str, dict[str, Stock]]] = defaultdict(lambda: defaultdict(dict))
    for row in devices:
        if row.node:
            _count(stocks[row.node][",".join(map(str, row.numa))], row)
    readiness = {node.metadata.name: _readiness(node) for node in nodes}
    for name in sorted(readiness.keys() | stocks.keys()):
        ready = readiness.get(name, "Unknown")
        found = stocks.get(name)
        if not found:
            yield NumaRow(name, ready, "")
            continue
        for numa in sorted(found, key=lambda each: (each == "", each.zfill(4))):
            yield NumaRow(name, ready, numa, found[numa])


def _readiness(node: LiveNode) -> str:
    why = node.not_ready
    return "Unknown" if why is None else "NotReady" if why else "Ready"


def _count(stock: dict[str, Stock], row: DeviceRow) -> None:
    usable = row.state in (Availability.FREE, Availability.SHARED)
    for name, total in row.total.items():
        entry = stock.setdefault(unit_of(row.device, name, row.driver), Stock())
        entry.total += total
        entry.free += max(row.free[name], 0) if usable else 0
    if not row.total:
        entry = stock.setdefault(row.driver, Stock())
        entry.total += 1
        entry.free += row.state is Availability.FREE
