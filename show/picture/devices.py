"""Lists the devices in ResourceSlices by node, with the newest generation of every pool, like the scheduler."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from dranode.api.names import named_value, qualified
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceAttribute, PoolID, ResourceSlice, newest_slices
from dranode.driver.claims.hooks import Layout
from dranode.show.picture.fleet import DeviceKey, FleetClaim, FleetDevice, FleetNode
from dranode.show.picture.node import numa_of

Tally: TypeAlias = int | Fraction
# Amounts of counters, of a pool or consumed by a device, by set and name.
CounterAmounts: TypeAlias = Mapping[tuple[str, str], Tally]
# The taints that rules put on a device, `key=value:effect (rule NAME)`.
RuledTaints: TypeAlias = Callable[[DeviceKey], tuple[str, ...]]


class Published(msgspec.Struct, frozen=True):
    """The devices of a cluster.

    Attributes:
        nodes: every node, with its devices and remarks about its pools.
        counters: the counters of each pool that has any.
        draws: the counters that each device consumes.
    """

    nodes: tuple[FleetNode, ...]
    counters: Mapping[PoolID, CounterAmounts] = msgspec.field(default_factory=dict)
    draws: Mapping[DeviceKey, CounterAmounts] = msgspec.field(default_factory=dict)


def published(
    slices: Iterable[ResourceSlice],
    known: Mapping[str, Sequence[str]],
    layouts: Mapping[str, Layout],
    ruled: RuledTaints = lambda _: (),
) -> Published:
    """Return the published devices of the `known` nodes, given with their remarks, and of nodes that slices name."""
    newest = newest_slices(slices)
    devices: dict[str, list[FleetDevice]] = {name: [] for name in known}
    remarks: dict[str, list[str]] = {name: list(of_node) for name, of_node in known.items()}
    for pool, parts in newest.items():
        places: set[str] = set()
        for part in parts:
            places.add(part.spec.node_name or "")
            devices.setdefault(part.spec.node_name or "", [])  # an empty slice shows that a driver is alive
            for device in part.spec.devices:
                place = part.spec.node_name or device.node_name or ""
                places.add(place)
                rules = ruled(DeviceKey(pool.driver, pool.pool, device.name))
                devices.setdefault(place, []).append(fleet_device(pool.driver, pool.pool, device, rules))
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
    return Published(tuple(nodes), *counters_and_draws(newest))


def counters_and_draws(
    newest: Mapping[PoolID, Iterable[ResourceSlice]],
) -> tuple[Mapping[PoolID, CounterAmounts], Mapping[DeviceKey, CounterAmounts]]:
    """Return the counters of each pool, and those that each device consumes (KEP-4815)."""
    counters: dict[PoolID, dict[tuple[str, str], Tally]] = {}
    draws: dict[DeviceKey, CounterAmounts] = {}
    for pool, parts in newest.items():
        for part in parts:
            for counter_set in part.spec.shared_counters:
                for name, counter in counter_set.counters.items():
                    counters.setdefault(pool, {})[counter_set.name, name] = counter.value.value
            for device in part.spec.devices:
                if device.consumes_counters:
                    draws[DeviceKey(pool.driver, pool.pool, device.name)] = _draws(device)
    return counters, draws


def blocked_devices(
    counters: Mapping[PoolID, CounterAmounts], draws: Mapping[DeviceKey, CounterAmounts], held: Collection[DeviceKey]
) -> Iterator[DeviceKey]:
    """Yield the devices that no claim holds and for which too little is left of a counter."""
    remaining = {pool: dict(amounts) for pool, amounts in counters.items()}
    for key in draws.keys() & held:
        pool = remaining.get(PoolID(key.driver, key.pool), {})
        for counter, amount in draws[key].items():
            pool[counter] = pool.get(counter, 0) - amount
    for key, amounts in draws.items():
        pool = remaining.get(PoolID(key.driver, key.pool), {})
        if key not in held and any(amount > pool.get(counter, 0) for counter, amount in amounts.items()):
            yield key


def with_unpublished(fleet: Published, claims: Iterable[FleetClaim]) -> Published:
    """Add the devices that claims hold and that are in no slice."""
    known = {device.key for node in fleet.nodes for device in node.devices}
    missing = dict.fromkeys(share.device for claim in claims for share in claim.shares if share.device not in known)
    if not missing:
        return fleet
    names = {node.name for node in fleet.nodes}
    added: dict[str, list[FleetDevice]] = defaultdict(list)
    for key in missing:
        added[key.pool if key.pool in names else ""].append(FleetDevice(key, published=False))
    nodes = [
        FleetNode(node.name, (*node.devices, *added.pop(node.name, ())), node.layout, node.remarks)
        for node in fleet.nodes
    ]
    nodes += [FleetNode(name, tuple(devices)) for name, devices in added.items()]
    return Published(tuple(nodes), fleet.counters, fleet.draws)


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    """Return a natural sort key: node-2 before node-10, and devices without a node last."""
    parts = re.split(r"(\d+)", name, flags=re.ASCII) if name else ["\U0010ffff"]
    # Numbers are compared by length and digits, because they may have more digits than int() accepts.
    return [(not part.isdigit(), len(part.lstrip("0")) if part.isdigit() else 0, part.lstrip("0")) for part in parts]


def _draws(device: Device) -> CounterAmounts:
    return {
        (consumption.counter_set, name): counter.value.value
        for consumption in device.consumes_counters
        for name, counter in consumption.counters.items()
    }


# Names that drivers use for the attribute with the product, the best first.
_PRODUCT_NAMES: Final = ("productname", "model", "product", "devicename", "type")


def fleet_device(driver: str, pool: str, device: Device, ruled: tuple[str, ...] = ()) -> FleetDevice:
    """Return a published device for a picture; `ruled` are its taints from DeviceTaintRules."""
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
        taints=(*(taint.text for taint in device.taints), *ruled),
    )


def _product(attributes: Mapping[str, str]) -> str:
    plain = {name.rpartition("/")[2].lower(): value for name, value in attributes.items()}
    return next((plain[name] for name in _PRODUCT_NAMES if plain.get(name)), "")


def attribute_text(attribute: DeviceAttribute, between: str = ", ") -> str:
    """Return the value of an attribute as text; the values of a list are joined by `between`."""
    values = (getattr(attribute, field) for field in attribute.__struct_fields__)
    value = next((value for value in values if value is not None), "")
    if isinstance(value, bool):
        return str(value).lower()
    return between.join(map(str, value)) if isinstance(value, tuple) else str(value)


# Memory drivers publish ordinary memory and huge pages as the same capacity, with two attributes that distinguish them
# (kubernetes-sigs/dra-driver-memory; docs/memory.md).
_CAPACITY: Final = "size"
_IS_HUGE: Final = "hugeTLB"
_PAGE_SIZE: Final = "pageSize"
_PAGES: Final = re.compile(r"([0-9]{1,9})([kmgt])", re.ASCII)


def unit_of(device: Device, name: str, driver: str) -> str:
    """Return the unit of a device's capacity: `memory`, `hugepages-2Mi`, or its qualified name.

    Memory and huge pages of different sizes have different units, so that they are never added up.
    """
    qualified_name = qualified(name, driver)
    huge = named_value(device.attributes, _IS_HUGE, driver)
    if qualified_name != qualified(_CAPACITY, driver) or huge is None or huge.bool_ is None:
        return qualified_name
    if not huge.bool_:
        return "memory"
    size = named_value(device.attributes, _PAGE_SIZE, driver)
    pages = _PAGES.fullmatch(size.string or "") if size is not None else None
    return f"hugepages-{pages[1]}{pages[2].upper()}i" if pages else qualified_name


def is_published_name(unit: str) -> bool:
    """Return whether a unit is the qualified name of a capacity, not a resource name such as `memory`."""
    return "/" in unit


def part_text(amount: Quantity, name: str) -> str:
    """Return an amount of a device's capacity, for a text that also has the device: `4 cpu`, `8Gi`."""
    return f"{amount}" if name.rpartition("/")[2] == _CAPACITY else f"{amount} {name}"
