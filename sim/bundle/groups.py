"""Finds devices that belong together: on the same node, with the same value of an attribute such as the NUMA node.

Kinds of devices differ in what a claim would request: the driver, and attributes such as the size of huge pages.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from dranode.api.quantity import Quantity
from dranode.api.resource import CapacityRequestPolicy, Device, PoolID
from dranode.sim.allocator.constraints import attribute_value, attribute_values, lookup
from dranode.sim.allocator.pools import Candidate

# Attributes, without their domain, that distinguish the kinds of devices of a driver.
_MARKS: Final = ("type", "productName", "profile", "hugeTLB", "pageSize")
_SLUG: Final = re.compile(r"[^a-z0-9]+", re.ASCII)
_MAX_NAME: Final = 63


@dataclass(frozen=True, slots=True, order=True)
class DeviceKind:
    """Devices that one request can ask for.

    Attributes:
        driver: the driver.
        marks: the distinguishing attributes: qualified names with the CEL literals of their values.
        capacity: the capacity by which claims share a device, with its published name, which requests need until 1.37;
            empty if claims take whole devices.
        name: the driver with the values that distinguish its kinds, for people and for a DeviceClass.
    """

    driver: str
    marks: tuple[tuple[str, str], ...] = ()
    capacity: str = ""
    name: str = field(default="", compare=False)

    @property
    def request(self) -> str:
        """Return a name for requests, a DNS label."""
        return _SLUG.sub("-", self.name.lower().removeprefix("dra.")).strip("-")[:_MAX_NAME].rstrip("-")


@dataclass(frozen=True, slots=True)
class DeviceAmount:
    """The amount that a device has, and the amounts that may be requested.

    Attributes:
        value: 1 for a whole device, else the capacity.
        policy: the amounts of the capacity that may be requested; None for all whole numbers.
    """

    value: Fraction
    policy: CapacityRequestPolicy | None = None

    def rounded(self, limit: Fraction) -> Fraction:
        """Return the largest amount up to `limit` that may be requested; 0 if there is none."""
        most = Fraction(int(min(limit, self.value)))
        policy = self.policy
        if policy is not None and policy.valid_range is not None:
            bounds = policy.valid_range
            least = Fraction(bounds.min.value)
            if bounds.max is not None:
                most = min(most, Fraction(bounds.max.value))
            step = Fraction(bounds.step.value) if bounds.step is not None else Fraction(1)
            return least + (most - least) // step * step if most >= least else Fraction(0)
        if policy is not None and policy.valid_values:
            values = [Fraction(allowed.value) for allowed in policy.valid_values]
            return max((value for value in values if value <= most), default=Fraction(0))
        return most


class Kinds:
    """The kinds of a fleet's devices, in order."""

    def __init__(self, candidates: Iterable[Candidate], names: Mapping[DeviceKind, str] = MappingProxyType({})) -> None:
        """Find the kinds; values that all kinds of a driver share are not in their names, and `names` has priority."""
        # Devices with the same content are of the same kind.
        contents = {candidate.content.number: candidate for candidate in candidates}
        kinds = {number: _kind(candidate) for number, candidate in contents.items()}
        distinct = sorted(set(kinds.values()))
        names = {kind: names.get(kind) or _name(kind, distinct) for kind in distinct}
        self._by_content = {number: replace(kind, name=names[kind]) for number, kind in kinds.items()}

    def __iter__(self) -> Iterator[DeviceKind]:
        return iter(sorted(set(self._by_content.values())))

    def of(self, candidate: Candidate) -> DeviceKind:
        """Return the kind of a device of the fleet."""
        return self._by_content[candidate.content.number]


def amount_of(device: Device, kind: DeviceKind) -> DeviceAmount:
    """Return the amount that the device has of its kind."""
    if not kind.capacity:
        return DeviceAmount(Fraction(1))
    (capacity,) = device.capacity.values()
    return DeviceAmount(Fraction(capacity.value.value), capacity.request_policy)


def quantity(amount: Fraction) -> Quantity:
    """Return a whole amount as a quantity, in binary units if it is a multiple of 1Ki."""
    binary = Quantity.binary(int(amount))
    return binary if binary.text[-1].isalpha() else Quantity(int(amount))


def selector_of(kind: DeviceKind, others: Iterable[DeviceKind]) -> str:
    """Return the CEL expression that selects the devices of a kind, and of no other kind of its driver."""
    values = dict(kind.marks)
    all_names = {name for sibling in others if sibling.driver == kind.driver for name, _ in sibling.marks}
    parts = [f"device.driver == {json.dumps(kind.driver)}"]
    for name in sorted(all_names | values.keys()):
        domain, _, identifier = name.rpartition("/")
        attributes = f"device.attributes[{json.dumps(domain)}]"
        present = f"{json.dumps(identifier)} in {attributes}"
        parts.append(f"{present} && {attributes}.{identifier} == {values[name]}" if name in values else f"!({present})")
    return " && ".join(parts)


def _kind(candidate: Candidate) -> DeviceKind:
    device, driver = candidate.device, candidate.pool.driver
    marks = []
    for name, attribute in device.attributes.items():
        domain, slash, identifier = name.rpartition("/")
        value = attribute_value(attribute)
        if identifier in _MARKS and value is not None and value[0] != "version" and domain in ("", driver):
            marks.append((name if slash else f"{driver}/{name}", json.dumps(value[1])))
    # With several capacities, no single one describes what a request takes, so the device counts as a whole.
    shared = device.allow_multiple_allocations and len(device.capacity) == 1
    return DeviceKind(driver, tuple(sorted(marks)), next(iter(device.capacity)) if shared else "")


def _name(kind: DeviceKind, kinds: Iterable[DeviceKind]) -> str:
    siblings = [set(item.marks) for item in kinds if item.driver == kind.driver]
    common = set.intersection(*siblings)
    values = (_words(name, literal) for name, literal in kind.marks if (name, literal) not in common)
    return "-".join((kind.driver, *filter(None, values)))[:_MAX_NAME].rstrip("-.")


def _words(name: str, literal: str) -> str:
    value = json.loads(literal)
    if isinstance(value, bool):
        return _SLUG.sub("-", name.rpartition("/")[2].lower()) if value else ""
    return _SLUG.sub("-", str(value).lower()).strip("-")


NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"


@dataclass(frozen=True, slots=True)
class BundledDevice:
    """A device of a bundle.

    Attributes:
        pool: its pool.
        device: the published device.
        kind: its kind.
        amount: the amount it has of its kind.
    """

    pool: PoolID
    device: Device
    kind: DeviceKind
    amount: DeviceAmount

    @classmethod
    def of(cls, candidate: Candidate, kinds: Kinds) -> BundledDevice:
        """Return the bundled device of a candidate."""
        kind = kinds.of(candidate)
        return cls(candidate.pool, candidate.device, kind, amount_of(candidate.device, kind))

    @property
    def name(self) -> tuple[str, str, str]:
        """Return driver, pool and device."""
        return (self.pool.driver, self.pool.pool, self.device.name)

    def values(self, attribute: str) -> frozenset[object]:
        """Return the values of an attribute; empty if the device lacks it, or if its value means unknown.

        The kernel reports an unknown NUMA node or socket as -1, and some drivers publish this number.
        """
        published = lookup(self.device, self.pool.driver, attribute)
        values = attribute_values(published) if published is not None else None
        return frozenset(filter(_is_known, values[1])) if values is not None else frozenset()


@dataclass(frozen=True, slots=True)
class Bundle:
    """All devices of a node with the same value of an attribute that are in no other bundle.

    Attributes:
        node: the node.
        attribute: the qualified name of the attribute.
        value: its value.
        devices: the devices with this value.
    """

    node: str
    attribute: str
    value: object
    devices: tuple[BundledDevice, ...]

    def amounts(self) -> dict[DeviceKind, Fraction]:
        """Return the amount of each kind."""
        amounts: dict[DeviceKind, Fraction] = {}
        for device in self.devices:
            amounts[device.kind] = amounts.get(device.kind, Fraction(0)) + device.amount.value
        return amounts


def bundles(node: str, devices: Iterable[BundledDevice], attribute: str) -> Iterator[Bundle]:
    """Yield the bundles of a node, sorted by their values; devices without the attribute are in none.

    A device with several values (KEP-6072) goes into the largest bundle.
    """
    made: list[Bundle] = []
    remaining = {device.name: (device, device.values(attribute)) for device in devices}
    while True:
        counts = Counter(value for _, values in remaining.values() for value in values)
        if not counts:
            break
        largest = min(counts, key=lambda value: (-counts[value], _order(value)))
        members = tuple(device for device, values in remaining.values() if largest in values)
        made.append(Bundle(node, attribute, largest, members))
        for device in members:
            del remaining[device.name]
    yield from sorted(made, key=lambda bundle: _order(bundle.value))


def shared_values(devices: Sequence[BundledDevice], attribute: str) -> frozenset[object]:
    """Return the values that all devices have."""
    values = [device.values(attribute) for device in devices]
    return frozenset.intersection(*values) if values else frozenset()


def _is_known(value: object) -> bool:
    return value >= 0 if isinstance(value, int) else value != ""


def _order(value: object) -> tuple[bool, int, str]:
    return (not isinstance(value, int), value if isinstance(value, int) else 0, str(value))
