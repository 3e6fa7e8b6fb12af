"""Lists the devices of nodes by ResourceSlices: of every pool the newest generation, as the scheduler sees it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import msgspec

from dranode.api.resource import Device, ResourceSlice
from dranode.driver.claims.plugin import Layout
from dranode.show.picture.fleet import DeviceKey, FleetClaim, FleetDevice, FleetNode
from dranode.show.picture.published import fleet_device

Tally: TypeAlias = int | Fraction
# The counters of a pool by set and name, or what a device draws of them.
CounterAmounts: TypeAlias = Mapping[tuple[str, str], Tally]
# The taints that rules put on a device, `key=value:effect (rule NAME)`.
RuledTaints: TypeAlias = Callable[[DeviceKey], tuple[str, ...]]


class PoolKey(NamedTuple):
    """The name of a pool in a cluster."""

    driver: str
    pool: str


class Published(msgspec.Struct, frozen=True):
    """The devices of a cluster.

    Attributes:
        nodes: every node, with its devices and what is odd about its pools.
        counters: the counters of each pool that has any.
        draws: what each device draws of them.
    """

    nodes: tuple[FleetNode, ...]
    counters: Mapping[PoolKey, CounterAmounts] = msgspec.field(default_factory=dict)
    draws: Mapping[DeviceKey, CounterAmounts] = msgspec.field(default_factory=dict)


def published(
    slices: Iterable[ResourceSlice],
    known: Mapping[str, Sequence[str]],
    layouts: Mapping[str, Layout],
    ruled: RuledTaints = lambda _: (),
) -> Published:
    """Return what slices publish, for the nodes that are known with their remarks, and those that slices name."""
    newest = _newest(slices)
    devices: dict[str, list[FleetDevice]] = {name: [] for name in known}
    remarks: dict[str, list[str]] = {name: list(each) for name, each in known.items()}
    counters: dict[PoolKey, dict[tuple[str, str], Tally]] = {}
    draws: dict[DeviceKey, CounterAmounts] = {}
    for pool, parts in newest.items():
        places: set[str] = set()
        for part in parts:
            for counter_set in part.spec.shared_counters:
                for name, counter in counter_set.counters.items():
                    counters.setdefault(pool, {})[counter_set.name, name] = counter.value.value
            places.add(part.spec.node_name or "")
            devices.setdefault(part.spec.node_name or "", [])  # an empty slice shows that a driver is alive
            for device in part.spec.devices:
                place = part.spec.node_name or device.node_name or ""
                places.add(place)
                rules = ruled(DeviceKey(pool.driver, pool.pool, device.name))
                shown = fleet_device(pool.driver, pool.pool, device, rules)
                devices.setdefault(place, []).append(shown)
                if device.consumes_counters:
                    draws[shown.key] = _draws(device)
        count = parts[0].spec.pool.resource_slice_count
        if len(parts) != count:
            for place in places:
                remarks.setdefault(place, []).append(
                    f"incomplete: pool {pool.pool} of {pool.driver} has {len(parts)} of {count} slices, and the "
                    "scheduler takes nothing from it"
                )
    nodes = [
        FleetNode(name, tuple(devices[name]), layouts.get(name), tuple(remarks.get(name, ())))
        for name in sorted(devices, key=_by_number)
        if name or devices[name]
    ]
    return Published(tuple(nodes), counters, draws)


def with_unpublished(what: Published, claims: Iterable[FleetClaim]) -> Published:
    """Return the same with the devices that claims hold and no slice has."""
    known = {device.key for node in what.nodes for device in node.devices}
    missing = dict.fromkeys(share.device for claim in claims for share in claim.shares if share.device not in known)
    if not missing:
        return what
    names = {node.name for node in what.nodes}
    added: dict[str, list[FleetDevice]] = defaultdict(list)
    for key in missing:
        added[key.pool if key.pool in names else ""].append(FleetDevice(key, published=False))
    nodes = [
        FleetNode(node.name, (*node.devices, *added.pop(node.name, ())), node.layout, node.remarks)
        for node in what.nodes
    ]
    nodes += [FleetNode(name, tuple(devices)) for name, devices in added.items()]
    return Published(tuple(nodes), what.counters, what.draws)


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    """The order in which people look for names: node-2 before node-10, and what is on no node last."""
    parts = re.split(r"(\d+)", name, flags=re.ASCII) if name else ["\U0010ffff"]
    # A number is greater the more digits it has; it may have more than can be read.
    return [(not part.isdigit(), len(part.lstrip("0")) if part.isdigit() else 0, part.lstrip("0")) for part in parts]


def _newest(slices: Iterable[ResourceSlice]) -> dict[PoolKey, list[ResourceSlice]]:
    newest: dict[PoolKey, list[ResourceSlice]] = {}
    for each in slices:
        pool = PoolKey(each.spec.driver, each.spec.pool.name)
        known = newest.get(pool)
        generation = each.spec.pool.generation
        if known is None or generation > known[0].spec.pool.generation:
            newest[pool] = [each]
        elif generation == known[0].spec.pool.generation:
            known.append(each)
    return newest


def _draws(device: Device) -> CounterAmounts:
    return {
        (consumption.counter_set, name): counter.value.value
        for consumption in device.consumes_counters
        for name, counter in consumption.counters.items()
    }
