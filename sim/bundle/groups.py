"""Finds devices that belong together: on one node and of one value of an attribute, such as the NUMA node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dranode.api.resource import Device
from dranode.sim.allocator.constraints import attribute_values, lookup
from dranode.sim.allocator.pools import Candidate
from dranode.sim.allocator.state import PoolID
from dranode.sim.bundle.kinds import DeviceAmount, DeviceKind, Kinds, amount_of

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
