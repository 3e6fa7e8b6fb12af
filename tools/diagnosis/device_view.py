"""The devices of a cluster for people: every driver's, each with who has it, what is left of it and why it is tainted.

A pool counts by the slices of its newest generation (`spec.pool.generation`), as for kube-scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from dranode.api.quantity import Quantity
from dranode.api.resource import (
    Device,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceSlice,
)
from dranode.driver.claims.grant import readable_results
from dranode.show.picture.devices import taint_text
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.state import Amount
from dranode.sim.allocator.taint_rules import DeviceTaintRule, rules_on

# Driver, pool and device.
DevicePlace: TypeAlias = tuple[str, str, str]

_NUMA: Final = ("resource.kubernetes.io/numaNode", "numaNode", "numaNodeID")
_NEWEST: Final = Features()
_MOST_POOLS: Final = 10
_EXCLUDING: Final = frozenset(("NoSchedule", "NoExecute"))


class Availability(StrEnum):
    """The part of a device that is free."""

    FREE = "free"
    TAKEN = "taken"
    SHARED = "shared"
    TAINTED = "tainted"
    BLOCKED = "blocked"  # other partitions have what it draws on


@dataclass(frozen=True, slots=True)
class HeldPart:
    """The part that one claim has of a device.

    Attributes:
        claim: `<namespace>/<name>`.
        pods: the pods that the claim is reserved for, and what else it is: `podgroup NAME`.
        consumed: of its capacities, by name; empty for the whole device.
        admin: admin access: nothing is held.
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
        node: the node that it is on; empty if several see it.
        numa: its NUMA nodes, by its attributes; empty if it has none.
        state: what can still be had of it.
        free: what is left of each capacity that claims share, by name.
        total: all of each of them.
        parts: who has it.
        taints: `key[=value]:effect`, those of rules with the rule's name.
        device: as it is published.
    """

    driver: str
    pool: str
    name: str
    node: str
    numa: tuple[int, ...]
    state: Availability
    free: Mapping[str, Amount]
    total: Mapping[str, Amount]
    parts: tuple[HeldPart, ...]
    taints: tuple[str, ...]
    device: Device


def device_rows(
    slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim], rules: tuple[DeviceTaintRule, ...] = ()
) -> Iterator[DeviceRow]:
    """Yield every device that the newest generations of pools have, by driver, node, pool and order of publication."""
    held = held_parts(claims)
    newest = newest_slices(slices)
    counters = _Counters(newest, held)
    for published in sorted(newest, key=lambda one: (one.spec.driver, one.spec.node_name or "", one.metadata.name)):
        for device in published.spec.devices:
            yield _row(published, device, held, rules, counters)


def held_parts(claims: Iterable[ResourceClaim]) -> Mapping[DevicePlace, tuple[HeldPart, ...]]:
    """Return who has which device, by driver, pool and device."""
    parts: defaultdict[DevicePlace, list[HeldPart]] = defaultdict(list)
    for claim in claims:
        name = f"{claim.metadata.namespace}/{claim.metadata.name}"
        pods = tuple(map(str, claim.status.reserved_for))
        for result in readable_results(claim.status.allocation):
            part = HeldPart(name, pods, result.consumed_capacity, bool(result.admin_access))
            parts[result.driver, result.pool, result.device].append(part)
    return {key: tuple(each) for key, each in parts.items()}


def newest_slices(slices: Iterable[ResourceSlice]) -> list[ResourceSlice]:
    """Return the slices of the newest generation of each pool."""
    slices = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for slice_ in slices:
        key = slice_.spec.driver, slice_.spec.pool.name
        newest[key] = max(newest.get(key, 0), slice_.spec.pool.generation)
    return [
        slice_ for slice_ in slices if slice_.spec.pool.generation == newest[slice_.spec.driver, slice_.spec.pool.name]
    ]


def incomplete_pools(slices: Iterable[ResourceSlice]) -> Iterator[str]:
    """Yield a sentence for each pool that lacks slices (`spec.pool.resourceSliceCount`)."""
    there: defaultdict[tuple[str, str], list[ResourceSlice]] = defaultdict(list)
    for slice_ in newest_slices(slices):
        there[slice_.spec.driver, slice_.spec.pool.name].append(slice_)
    lacking = {key: each for key, each in there.items() if len(each) < each[0].spec.pool.resource_slice_count}
    for (driver, pool), each in sorted(lacking.items())[:_MOST_POOLS]:
        count = each[0].spec.pool.resource_slice_count
        yield (
            f"pool {pool} of {driver} is not complete: {len(each)} of {count} slices are published, and kube-scheduler "
            "allocates nothing from it; check whether the driver runs"
        )
    if len(lacking) > _MOST_POOLS:
        yield f"{len(lacking) - _MOST_POOLS} more pools are not complete"


def numa_nodes(driver: str, device: Device) -> tuple[int, ...]:
    """Return the NUMA nodes of a device: KEP-6072's attribute, else the driver's own; empty if it has none."""
    for name in _NUMA:
        attribute = device.attributes.get(name) or device.attributes.get(f"{driver}/{name}")
        if attribute is not None and attribute.int_ is not None:
            return (attribute.int_,)
        if attribute is not None and attribute.ints:
            return attribute.ints[:1]  # the device's own node comes first
    return ()


def _row(
    published: ResourceSlice,
    device: Device,
    held: Mapping[DevicePlace, tuple[HeldPart, ...]],
    rules: tuple[DeviceTaintRule, ...],
    counters: _Counters,
) -> DeviceRow:
    spec = published.spec
    parts = held.get((spec.driver, spec.pool.name, device.name), ())
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
        numa=numa_nodes(spec.driver, device),
        state=_state(
            taken=bool(holding) and (not shared or any(left <= 0 for left in free.values())),
            part=bool(holding),
            tainted=excluding,
            blocked=not holding and counters.short(spec.driver, spec.pool.name, device),
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
    """Return what is left of each capacity; claims name it with the driver's domain or without."""
    free = dict(total)
    for part in holding:
        for name, amount in part.consumed.items():
            short = name.removeprefix(f"{driver}/")
            key = next((one for one in (name, short, f"{driver}/{short}") if one in free), None)
            if key is not None:
                free[key] -= amount.value
    return free


def _taints(driver: str, pool: str, device: Device, rules: tuple[DeviceTaintRule, ...]) -> tuple[tuple[str, ...], bool]:
    """Return a device's taints for people, and whether one of them keeps claims away that do not tolerate it."""
    own = [(taint, "") for taint in device.taints]
    applied = rules_on(rules, driver, pool, device.name, _NEWEST)
    ruled = [(rule.spec.taint, f" (rule {rule.metadata.name})") for rule in applied]
    texts = tuple(f"{taint_text(taint)}{source}" for taint, source in own + ruled)
    return texts, any(taint.effect in _EXCLUDING for taint, _ in own + ruled)


class _Counters:
    """The shared counters that partitions of a pool draw on (KEP-4815)."""

    def __init__(self, slices: Iterable[ResourceSlice], held: Mapping[DevicePlace, tuple[HeldPart, ...]]) -> None:
        self._remaining: dict[tuple[str, str, str, str], Amount] = {}
        slices = [slice_ for slice_ in slices if slice_.spec.shared_counters or _draws(slice_)]
        for slice_ in slices:
            for counters in slice_.spec.shared_counters:
                for name, counter in counters.counters.items():
                    key = (slice_.spec.driver, slice_.spec.pool.name, counters.name, name)
                    self._remaining[key] = counter.value.value
        for slice_ in slices:
            for device in slice_.spec.devices:
                if any(
                    not part.admin for part in held.get((slice_.spec.driver, slice_.spec.pool.name, device.name), ())
                ):
                    for key, amount in _drawn(slice_.spec.driver, slice_.spec.pool.name, device):
                        self._remaining[key] = self._remaining.get(key, 0) - amount

    def short(self, driver: str, pool: str, device: Device) -> bool:
        """Return whether less is left of a counter than the device would draw."""
        return any(self._remaining.get(key, 0) < amount for key, amount in _drawn(driver, pool, device))


def _draws(published: ResourceSlice) -> bool:
    return any(device.consumes_counters for device in published.spec.devices)


def _drawn(driver: str, pool: str, device: Device) -> Iterator[tuple[tuple[str, str, str, str], Amount]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (driver, pool, consumption.counter_set, name), counter.value.value


def allocated_on(results: Iterable[DeviceRequestAllocationResult], nodes: Mapping[tuple[str, str], str]) -> str:
    """Return the node of an allocation's devices, by the pools that slices of one node have; empty if none says."""
    return next((nodes[result.driver, result.pool] for result in results if (result.driver, result.pool) in nodes), "")
