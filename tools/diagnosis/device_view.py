"""The devices of a cluster for people: which claims have each device, how much of it is free, and its taints.

Only the slices of a pool's newest generation (`spec.pool.generation`) count, as for kube-scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice, newest_slices
from dranode.driver.claims.grant import readable_results
from dranode.show.picture.devices import blocked_devices, counters_and_draws
from dranode.show.picture.fleet import DeviceKey
from dranode.show.picture.node import numa_of
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.state import Amount
from dranode.sim.allocator.taint_rules import DeviceTaintRule, rules_on, untolerated

_NEWEST: Final = Features()
_MOST_POOLS: Final = 10


class Availability(StrEnum):
    """Whether a device, or a part of it, is free."""

    FREE = "free"
    TAKEN = "taken"
    SHARED = "shared"
    TAINTED = "tainted"
    BLOCKED = "blocked"  # other partitions have used up its counters


@dataclass(frozen=True, slots=True)
class HeldPart:
    """The part of a device that one claim has.

    Attributes:
        claim: `<namespace>/<name>`.
        pods: the consumers that the claim is reserved for; a PodGroup as `podgroup NAME`.
        consumed: the amounts of the device's capacities, by name; empty for the whole device.
        admin: whether the claim only has admin access, which takes nothing from others.
    """

    claim: str
    pods: tuple[str, ...]
    consumed: Mapping[str, Quantity] = field(default_factory=dict)
    admin: bool = False


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device.

    Attributes:
        driver: its driver.
        pool: its pool.
        name: its name.
        node: the node that it is on; empty if several nodes can use it.
        numa: its NUMA node, from its attributes; None if it has none.
        state: whether it is free.
        free: how much is left of each capacity that claims share, by name.
        total: the whole of each of these capacities.
        parts: which claims have it.
        taints: `key[=value]:effect`, and the rule's name if a rule adds the taint.
        device: the published device.
    """

    driver: str
    pool: str
    name: str
    node: str
    numa: int | None
    state: Availability
    free: Mapping[str, Amount]
    total: Mapping[str, Amount]
    parts: tuple[HeldPart, ...]
    taints: tuple[str, ...]
    device: Device


def device_rows(
    slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim], rules: tuple[DeviceTaintRule, ...] = ()
) -> Iterator[DeviceRow]:
    """Yield every device of the newest generation of each pool, by driver, node, slice and order in the slice."""
    held = held_parts(claims)
    pools = newest_slices(slices)
    holding = {key for key, parts in held.items() if not all(part.admin for part in parts)}
    blocked = frozenset(blocked_devices(*counters_and_draws(pools), holding))
    newest = [slice_ for pool in pools.values() for slice_ in pool]
    newest.sort(key=lambda slice_: (slice_.spec.driver, slice_.spec.node_name or "", slice_.metadata.name))
    for slice_ in newest:
        for device in slice_.spec.devices:
            yield _row(slice_, device, held, rules, blocked)


def held_parts(claims: Iterable[ResourceClaim]) -> Mapping[DeviceKey, tuple[HeldPart, ...]]:
    """Return which claims have each device, by driver, pool and device."""
    parts: defaultdict[DeviceKey, list[HeldPart]] = defaultdict(list)
    for claim in claims:
        name = f"{claim.metadata.namespace}/{claim.metadata.name}"
        pods = tuple(map(str, claim.status.reserved_for))
        for result in readable_results(claim.status.allocation):
            part = HeldPart(name, pods, result.consumed_capacity, bool(result.admin_access))
            parts[DeviceKey(result.driver, result.pool, result.device)].append(part)
    return {place: tuple(device_parts) for place, device_parts in parts.items()}


def incomplete_pools(slices: Iterable[ResourceSlice]) -> Iterator[str]:
    """Yield a sentence for each pool that lacks slices (`spec.pool.resourceSliceCount`)."""
    counts = {
        pool: (len(newest), newest[0].spec.pool.resource_slice_count) for pool, newest in newest_slices(slices).items()
    }
    incomplete = sorted(pool for pool, (published, expected) in counts.items() if published < expected)
    for pool in incomplete[:_MOST_POOLS]:
        published, expected = counts[pool]
        yield (
            f"pool {pool.pool} of {pool.driver} is not complete: {published} of {expected} slices are published, and "
            "kube-scheduler allocates nothing from it; check whether the driver runs"
        )
    if len(incomplete) > _MOST_POOLS:
        yield f"{len(incomplete) - _MOST_POOLS} more pools are not complete"


def _row(
    published: ResourceSlice,
    device: Device,
    held: Mapping[DeviceKey, tuple[HeldPart, ...]],
    rules: tuple[DeviceTaintRule, ...],
    blocked: Collection[DeviceKey],
) -> DeviceRow:
    spec = published.spec
    key = DeviceKey(spec.driver, spec.pool.name, device.name)
    parts = held.get(key, ())
    holding = [part for part in parts if not part.admin]
    shared = bool(device.allow_multiple_allocations)
    total = {name: capacity.value.value for name, capacity in device.capacity.items()} if shared else {}
    free = _remaining(spec.driver, total, holding)
    taints, excluding = _taints(spec.driver, spec.pool.name, device, rules)
    return DeviceRow(
        driver=spec.driver,
        pool=spec.pool.name,
        name=device.name,
        node=spec.node_name or device.node_name or "",
        numa=numa_of(device),
        state=_state(
            taken=bool(holding) and (not shared or any(left <= 0 for left in free.values())),
            part=bool(holding),
            tainted=excluding,
            blocked=key in blocked,
        ),
        free=free,
        total=total,
        parts=parts,
        taints=taints,
        device=device,
    )


def _state(*, taken: bool, part: bool, tainted: bool, blocked: bool) -> Availability:
    if taken:
        return Availability.TAKEN
    if tainted:
        return Availability.TAINTED
    if blocked:
        return Availability.BLOCKED
    return Availability.SHARED if part else Availability.FREE


def _remaining(driver: str, total: Mapping[str, Amount], holding: Sequence[HeldPart]) -> dict[str, Amount]:
    """Return how much is left of each capacity; claims may name it with or without the driver's domain."""
    free = dict(total)
    for part in holding:
        for name, amount in part.consumed.items():
            short = name.removeprefix(f"{driver}/")
            capacity = next((key for key in (name, short, f"{driver}/{short}") if key in free), None)
            if capacity is not None:
                free[capacity] -= amount.value
    return free


def _taints(driver: str, pool: str, device: Device, rules: tuple[DeviceTaintRule, ...]) -> tuple[tuple[str, ...], bool]:
    """Return a device's taints for people, and whether one of them excludes claims that do not tolerate it."""
    own = [(taint, "") for taint in device.taints]
    applied = rules_on(rules, driver, pool, device.name, _NEWEST)
    ruled = [(rule.spec.taint, f" (rule {rule.metadata.name})") for rule in applied]
    texts = tuple(f"{taint.text}{source}" for taint, source in own + ruled)
    return texts, untolerated((taint for taint, _ in own + ruled), ()) is not None


def allocated_on(results: Iterable[DeviceRequestAllocationResult], nodes: Mapping[tuple[str, str], str]) -> str:
    """Return the node of an allocation's devices, given the nodes of pools; empty if none of its pools is on a node."""
    return next((nodes[result.driver, result.pool] for result in results if (result.driver, result.pool) in nodes), "")
