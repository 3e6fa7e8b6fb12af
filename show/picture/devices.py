"""Lists the devices of nodes by ResourceSlices: of every pool the newest generation, as the scheduler sees it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

import msgspec

from dranode.api.names import named_value, qualified
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceAttribute, DeviceTaint, ResourceSlice
from dranode.driver.claims.hooks import Layout
from dranode.show.picture.fleet import DeviceKey, FleetClaim, FleetDevice, FleetNode
from dranode.show.picture.node import numa_of

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


# How drivers call the attribute that says what a device is, the best first.
_PRODUCT_NAMES: Final = ("productname", "model", "product", "devicename", "type")


def fleet_device(driver: str, pool: str, device: Device, ruled: tuple[str, ...] = ()) -> FleetDevice:
    """Return a published device as a picture shows it; `ruled` are taints that rules put on it."""
    attributes = {name: attribute_text(attribute) for name, attribute in device.attributes.items()}
    return FleetDevice(
        key=DeviceKey(driver, pool, device.name),
        numa=numa_of(device),
        product=_product(attributes),
        attributes=attributes,
        capacity={name: capacity.value for name, capacity in device.capacity.items()},
        steps={name: capacity.step for name, capacity in device.capacity.items() if capacity.step is not None},
        units={name: unit for name in device.capacity if not is_published_name(unit := unit_of(device, name, driver))},
        shared=bool(device.allow_multiple_allocations),
        taints=(*map(taint_text, device.taints), *ruled),
    )


def taint_text(taint: DeviceTaint) -> str:
    """Return a taint as kubectl writes one: `key=value:effect`, `key:effect` without a value."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def _product(attributes: Mapping[str, str]) -> str:
    plain = {name.rpartition("/")[2].lower(): value for name, value in attributes.items()}
    return next((plain[name] for name in _PRODUCT_NAMES if plain.get(name)), "")


def attribute_text(attribute: DeviceAttribute, between: str = ", ") -> str:
    """Return the value of an attribute, those of a list with `between` between them."""
    values = (getattr(attribute, field) for field in attribute.__struct_fields__)
    value = next((value for value in values if value is not None), "")
    if isinstance(value, bool):
        return str(value).lower()
    return between.join(map(str, value)) if isinstance(value, tuple) else str(value)


# How drivers of memory publish ordinary memory and huge pages of each size: one capacity, told apart by two attributes
# (kubernetes-sigs/dra-driver-memory; docs/memory.md).
_CAPACITY: Final = "size"
_IS_HUGE: Final = "hugeTLB"
_PAGE_SIZE: Final = "pageSize"
_PAGES: Final = re.compile(r"([0-9]{1,9})([kmgt])", re.ASCII)


def unit_of(device: Device, name: str, driver: str) -> str:
    """Return what a device's capacity is an amount of: `memory`, `hugepages-2Mi`, or its qualified name.

    Memory and huge pages of different sizes are never added up, though they are one capacity.
    """
    whole = qualified(name, driver)
    huge = named_value(device.attributes, _IS_HUGE, driver)
    if whole != qualified(_CAPACITY, driver) or huge is None or huge.bool_ is None:
        return whole
    if not huge.bool_:
        return "memory"
    size = named_value(device.attributes, _PAGE_SIZE, driver)
    pages = _PAGES.fullmatch(size.string or "") if size is not None else None
    return f"hugepages-{pages[1]}{pages[2].upper()}i" if pages else whole


def is_published_name(unit: str) -> bool:
    """Return whether a unit is the qualified name of a capacity, not a name of its own such as `memory`."""
    return "/" in unit


def part_text(amount: Quantity, name: str) -> str:
    """Return how much of a device's capacity a claim has, where the device is named beside it: `4 cpu`, `8Gi`."""
    return f"{amount}" if name.rpartition("/")[2] == _CAPACITY else f"{amount} {name}"
