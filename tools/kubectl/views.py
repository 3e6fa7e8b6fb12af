"""The rows of `kubectl dranode claims` and `nodes`: a claim's devices, users and health, a NUMA node's devices."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from dranode.api.resource import DeviceRequestAllocationResult, ResourceClaim, ResourceSlice
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.users import groups_among
from dranode.show.picture.devices import unit_of
from dranode.sim.allocator.state import Amount
from dranode.tools.diagnosis.allocated import ready_conditions
from dranode.tools.diagnosis.device_view import Availability, DeviceRow, allocated_on
from dranode.tools.diagnosis.live_objects import LiveNode, LivePod


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
        node: the node of its devices; empty if it has none, or if several nodes can use them; None if not known.
        pods: the pods that it is reserved for; a PodGroup as `podgroup NAME`, with those of its pods that are on nodes.
        waiting: pods that name it and do not have it yet; None if they are not known.
        results: what it was allocated.
        health: `Ready`, or the reason why a device is not ready; empty if no driver reports it.
        message: the driver's explanation of `health`.
        created: when it was created, in RFC 3339; empty if unknown.
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
    """Yield every claim, by namespace and name; columns that need slices or pods are None if those are None."""
    nodes = {
        (slice_.spec.driver, slice_.spec.pool.name): slice_.spec.node_name
        for slice_ in slices or ()
        if slice_.spec.node_name is not None
    }
    users = _users(pods or ())
    for claim in sorted(claims, key=lambda claim: (claim.metadata.namespace, claim.metadata.name)):
        metadata, status = claim.metadata, claim.status
        results = tuple(readable_results(status.allocation))
        claim_pods = users.get((metadata.namespace, metadata.name), ())
        holders = _holders(claim, claim_pods)
        health, message = _health(claim)
        yield ClaimRow(
            namespace=metadata.namespace,
            name=metadata.name,
            stage=_stage(claim),
            node=None if slices is None and results else allocated_on(results, nodes),
            pods=holders,
            waiting=None
            if pods is None
            else tuple(name for pod in claim_pods if (name := pod.metadata.name) not in holders),
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


def _holders(claim: ResourceClaim, claim_pods: Iterable[LivePod]) -> tuple[str, ...]:
    """Return the consumers that a claim is reserved for, and the pods on nodes of PodGroups among them."""
    groups = groups_among(claim.status.reserved_for)
    members = (pod.metadata.name for pod in claim_pods if pod.spec.node_name and pod.spec.pod_group in groups)
    return tuple(dict.fromkeys((*map(str, claim.status.reserved_for), *members)))


def _users(pods: Iterable[LivePod]) -> Mapping[tuple[str, str], tuple[LivePod, ...]]:
    """Return the pods that name each claim, by its namespace and name; pods that have ended are left out."""
    users: defaultdict[tuple[str, str], list[LivePod]] = defaultdict(list)
    for pod in pods:
        if pod.status.phase in ("Succeeded", "Failed"):
            continue
        generated = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        for entry in pod.spec.resource_claims:
            name = entry.resource_claim_name or generated.get(entry.name)
            if name:
                users[pod.metadata.namespace, name].append(pod)
    return {key: tuple(claim_pods) for key, claim_pods in users.items()}


_YEAR: Final = 365 * 86400


def age(created: str, now: datetime) -> str:
    """Return an age as kubectl prints it (`5d`, `47s`); `<unknown>` without a time, `<invalid>` for a future time."""
    try:
        seconds = int((now - datetime.fromisoformat(created)).total_seconds())
    except (ValueError, TypeError):
        return "<unknown>"
    # Up to a second may be rounding; more means that the clock here is behind the server's.
    if seconds < -1:
        return "<invalid>"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    # apimachinery's duration.HumanDuration: up to each limit, how many of a unit, and the remainder in the next one.
    steps = (
        (120, max(seconds, 0), "s", 0, ""),
        (600, minutes, "m", seconds % 60, "s"),
        (3 * 3600, minutes, "m", 0, ""),
        (8 * 3600, hours, "h", minutes % 60, "m"),
        (48 * 3600, hours, "h", 0, ""),
        (8 * 86400, days, "d", hours % 24, "h"),
        (2 * _YEAR, days, "d", 0, ""),
        (8 * _YEAR, days // 365, "y", days % 365, "d"),
    )
    for limit, whole, unit, rest, smaller in steps:
        if seconds < limit:
            return f"{whole}{unit}{rest}{smaller}" if rest else f"{whole}{unit}"
    return f"{days // 365}y"


@dataclass(slots=True)
class Stock:
    """The devices of one kind on a NUMA node.

    Attributes:
        free: how many devices are free, or how much is left of a capacity that claims share.
        total: how many devices there are, or the whole capacity.
    """

    free: Amount = 0
    total: Amount = 0


@dataclass(frozen=True, slots=True)
class NumaRow:
    """One NUMA node of a node, or the node's devices without a NUMA node.

    Attributes:
        node: the node.
        ready: whether it is Ready; `Unknown` for a node that does not exist or has no Ready condition.
        numa: the number of the NUMA node; empty for devices without one.
        stock: by driver, or by the unit of a capacity that claims share: `memory`, `dra.cpu/cpu`.
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
            _count(stocks[row.node]["" if row.numa is None else str(row.numa)], row)
    readiness = {node.metadata.name: _readiness(node) for node in nodes}
    for name in sorted(readiness.keys() | stocks.keys()):
        ready = readiness.get(name, "Unknown")
        stock_by_numa = stocks.get(name)
        if not stock_by_numa:
            yield NumaRow(name, ready, "")
            continue
        # By number, and devices without a NUMA node last.
        for numa in sorted(stock_by_numa, key=lambda numa: (numa == "", numa.zfill(4))):
            yield NumaRow(name, ready, numa, stock_by_numa[numa])


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
