"""Finds devices that belong together: on one node and of one value of an attribute, such as the NUMA node.

Devices are told apart by what a claim would ask for: their driver, and attributes such as the size of huge pages.
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
from dranode.api.resource import CapacityRequestPolicy, Device
from dranode.sim.allocator.constraints import attribute_value, attribute_values, lookup
from dranode.sim.allocator.pools import Candidate
from dranode.sim.allocator.state import PoolID

# Attributes, without their domain, whose values make devices of one driver different things to ask for.
_MARKS: Final = ("type", "productName", "profile", "hugeTLB", "pageSize")
_SLUG: Final = re.compile(r"[^a-z0-9]+", re.ASCII)
_MAX_NAME: Final = 63


@dataclass(frozen=True, slots=True, order=True)
class DeviceKind:
    """Devices that one request can ask for.

    Attributes:
        driver: the driver.
        marks: qualified attribute names with the CEL literal of their values, those that the devices have.
        capacity: the capacity that claims share a device by, as it is published, since until 1.37 requests have to name
            it so; empty where they take the device whole.
        name: for people and for a DeviceClass: the driver, with the values that tell its kinds apart.
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
    """The part of its kind that a device has, and the amounts that may be asked of it.

    Attributes:
        value: 1 for a whole device, else the capacity.
        policy: which amounts of the capacity may be asked for; None for all whole ones.
    """

    value: Fraction
    policy: CapacityRequestPolicy | None = None

    def rounded(self, limit: Fraction) -> Fraction:
        """Return the largest amount up to `limit` that may be asked for; 0 if there is none."""
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
            return max(
                (value for each in policy.valid_values if (value := Fraction(each.value)) <= most), default=Fraction(0)
            )
        return most


class Kinds:
    """The kinds of a fleet's devices, in order."""

    def __init__(self, candidates: Iterable[Candidate], names: Mapping[DeviceKind, str] = MappingProxyType({})) -> None:
        """Find the kinds; a value that all kinds of a driver have is not in their names. Some have `names` already."""
        # Devices of one content are of one kind.
        contents = {candidate.content.number: candidate for candidate in candidates}
        found = {number: _kind(candidate) for number, candidate in contents.items()}
        distinct = sorted(set(found.values()))
        names = {kind: names.get(kind) or _name(kind, distinct) for kind in distinct}
        self._by_content = {number: replace(kind, name=names[kind]) for number, kind in found.items()}

    def __iter__(self) -> Iterator[DeviceKind]:
        return iter(sorted(set(self._by_content.values())))

    def of(self, candidate: Candidate) -> DeviceKind:
        """Return the kind of a device of the fleet."""
        return self._by_content[candidate.content.number]


def amount_of(device: Device, kind: DeviceKind) -> DeviceAmount:
    """Return what the device has of its kind."""
    if not kind.capacity:
        return DeviceAmount(Fraction(1))
    (capacity,) = device.capacity.values()
    return DeviceAmount(Fraction(capacity.value.value), capacity.request_policy)


def quantity(amount: Fraction) -> Quantity:
    """Return a whole amount as Kubernetes writes it: in binary units from 1Ki on, where that is shorter."""
    binary = Quantity.binary(int(amount))
    return binary if binary.text[-1].isalpha() else Quantity(int(amount))


def selector_of(kind: DeviceKind, others: Iterable[DeviceKind]) -> str:
    """Return the CEL expression that selects the devices of a kind and those of no other kind of its driver."""
    own = dict(kind.marks)
    theirs = {name for other in others if other.driver == kind.driver for name, _ in other.marks}
    parts = [f"device.driver == {json.dumps(kind.driver)}"]
    for name in sorted(theirs | own.keys()):
        domain, _, identifier = name.rpartition("/")
        attributes = f"device.attributes[{json.dumps(domain)}]"
        there = f"{json.dumps(identifier)} in {attributes}"
        parts.append(f"{there} && {attributes}.{identifier} == {own[name]}" if name in own else f"!({there})")
    return " && ".join(parts)


def _kind(candidate: Candidate) -> DeviceKind:
    device, driver = candidate.device, candidate.pool.driver
    marks = []
    for name, attribute in device.attributes.items():
        domain, slash, identifier = name.rpartition("/")
        value = attribute_value(attribute)
        if identifier in _MARKS and value is not None and value[0] != "version" and domain in ("", driver):
            marks.append((name if slash else f"{driver}/{name}", json.dumps(value[1])))
    # By several capacities a request can ask for a part of each, so for none that could be named here.
    shared = device.allow_multiple_allocations and len(device.capacity) == 1
    return DeviceKind(driver, tuple(sorted(marks)), next(iter(device.capacity)) if shared else "")


def _name(kind: DeviceKind, kinds: Iterable[DeviceKind]) -> str:
    siblings = [set(each.marks) for each in kinds if each.driver == kind.driver]
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
        device: as it is published.
        kind: what a request for it asks for.
        amount: what it has of that.
    """

    pool: PoolID
    device: Device
    kind: DeviceKind
    amount: DeviceAmount

    @classmethod
    def of(cls, candidate: Candidate, kinds: Kinds) -> BundledDevice:
        """Return a device that is published."""
        kind = kinds.of(candidate)
        return cls(candidate.pool, candidate.device, kind, amount_of(candidate.device, kind))

    @property
    def name(self) -> tuple[str, str, str]:
        """Return driver, pool and device."""
        return (self.pool.driver, self.pool.pool, self.device.name)

    def values(self, attribute: str) -> frozenset[object]:
        """Return the values of an attribute; none if the device does not have it, or says that it is not known.

        The kernel says -1 for a NUMA node or a socket that it does not know, and some drivers publish it as it stands.
        """
        found = lookup(self.device, self.pool.driver, attribute)
        values = attribute_values(found) if found is not None else None
        return frozenset(filter(_says, values[1])) if values is not None else frozenset()


@dataclass(frozen=True, slots=True)
class Bundle:
    """All devices of a node that share one value of an attribute, and are in no other bundle.

    Attributes:
        node: the node.
        attribute: the qualified name of the attribute.
        value: its value.
        devices: those that have it.
    """

    node: str
    attribute: str
    value: object
    devices: tuple[BundledDevice, ...]

    def amounts(self) -> dict[DeviceKind, Fraction]:
        """Return what the bundle has of each kind."""
        amounts: dict[DeviceKind, Fraction] = {}
        for each in self.devices:
            amounts[each.kind] = amounts.get(each.kind, Fraction(0)) + each.amount.value
        return amounts


def bundles(node: str, devices: Iterable[BundledDevice], attribute: str) -> Iterator[Bundle]:
    """Yield the bundles of a node, in the order of their values; devices without the attribute are in none.

    Where a device has several values (KEP-6072), the largest bundle is made first and takes it.
    """
    found: list[Bundle] = []
    left = {each.name: (each, each.values(attribute)) for each in devices}
    while True:
        counts = Counter(value for _, values in left.values() for value in values)
        if not counts:
            break
        value = min(counts, key=lambda one: (-counts[one], _order(one)))
        taken = tuple(each for each, values in left.values() if value in values)
        found.append(Bundle(node, attribute, value, taken))
        for each in taken:
            del left[each.name]
    yield from sorted(found, key=lambda bundle: _order(bundle.value))


def shared_values(devices: Sequence[BundledDevice], attribute: str) -> frozenset[object]:
    """Return the values that all the devices have."""
    values = [each.values(attribute) for each in devices]
    return frozenset.intersection(*values) if values else frozenset()


def _says(value: object) -> bool:
    return value >= 0 if isinstance(value, int) else value != ""


def _order(value: object) -> tuple[bool, int, str]:
    return (not isinstance(value, int), value if isinstance(value, int) else 0, str(value))
