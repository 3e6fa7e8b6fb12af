"""Warns about attributes and capacities in claims and classes that no device has: most are misspelt.

Of a driver all attributes are known if it says which there are (`Plugin.attribute_names`), or if ResourceSlices are
among the documents. Nothing is said of other drivers, since their devices may have any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from dranode.api.names import qualified
from dranode.api.resource import Device, DeviceClaim, DeviceSelector
from dranode.api.validation import FieldError
from dranode.sim.cel.reads import names_read

_STANDARD: Final = "resource.kubernetes.io"
# Those that Kubernetes defines (k8s.io/dynamic-resource-allocation/deviceattribute 0.37).
_STANDARD_NAMES: Final = frozenset(f"{_STANDARD}/{name}" for name in ("numaNode", "pciBusID", "pcieRoot"))
_RESEMBLES: Final = 0.85


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names of attributes and capacities that devices have.

    Attributes:
        attributes: qualified.
        capacities: qualified.
        domains: those of which all attributes are known.
        capacity_domains: those of which all capacities are known.
        published: whether ResourceSlices say what is published, so that what they lack nobody publishes.
        of_drivers: the attributes of the devices of each driver of which all are known.
    """

    attributes: frozenset[str] = _STANDARD_NAMES
    capacities: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset((_STANDARD,))
    capacity_domains: frozenset[str] = frozenset()
    published: bool = False
    of_drivers: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, declared: Mapping[str, frozenset[str]], devices: Sequence[tuple[str, Device]]) -> KnownNames:
        """Return what drivers declare by name, and what devices of slices have, each with its driver."""
        of_drivers = {driver: set(names) for driver, names in declared.items() if names}
        for driver, device in devices:
            of_drivers.setdefault(driver, set()).update(qualified(name, driver) for name in device.attributes)
        capacities = {qualified(name, driver) for driver, device in devices for name in device.capacity}
        drivers = {driver for driver, _ in devices}
        return cls(
            _STANDARD_NAMES.union(*of_drivers.values()),
            frozenset(capacities),
            frozenset((_STANDARD, *of_drivers)),
            frozenset(drivers),
            bool(devices),
            {driver: frozenset(names) for driver, names in of_drivers.items()},
        )

    def among(self, drivers: Collection[str]) -> KnownNames:
        """Return the names for devices of these drivers alone, if all of their attributes are known."""
        if not drivers or not all(driver in self.of_drivers for driver in drivers):
            return self
        return replace(self, attributes=_STANDARD_NAMES.union(*(self.of_drivers[driver] for driver in drivers)))


def selector_warnings(selectors: Iterable[DeviceSelector], path: str, known: KnownNames) -> Iterator[FieldError]:
    """Yield a warning for each name in expressions that no device has."""
    for index, selector in enumerate(selectors):
        if selector.cel is not None:
            for kind, domain, name in sorted(set(names_read(selector.cel.expression))):
                problem = _problem(kind, domain, name, known)
                if problem:
                    yield FieldError(f"{path}[{index}].cel.expression", problem)


def constraint_warnings(devices: DeviceClaim, path: str, known: KnownNames) -> Iterator[FieldError]:
    """Yield a warning for each attribute in a constraint that nobody publishes."""
    requests = (one for each in devices.requests for one in (each.exactly, *each.first_available) if one is not None)
    derived = {attribute.name for request in requests for attribute in request.derived_attributes}
    for index, constraint in enumerate(devices.constraints):
        for kind, name in (
            ("matchAttribute", constraint.match_attribute),
            ("distinctAttribute", constraint.distinct_attribute),
        ):
            if name is None or name in known.attributes or name in derived:
                continue
            domain, _, identifier = name.rpartition("/")
            problem = _problem("attributes", domain, identifier, known)
            if problem or known.published:
                near = get_close_matches(name, known.attributes, 1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                yield FieldError(f"{path}.constraints[{index}].{kind}", f'no device publishes "{name}"{hint}')


def _problem(kind: str, domain: str, name: str, known: KnownNames) -> str:
    """Why no device has an attribute or a capacity; empty if one may have it."""
    attribute = kind == "attributes"
    names = known.attributes if attribute else known.capacities
    domains = known.domains if attribute else known.capacity_domains
    if f"{domain}/{name}" in names:
        return ""
    what = "attribute" if attribute else "capacity"
    if domain not in domains:
        near = get_close_matches(domain, domains, 1, _RESEMBLES)
        return f'no driver "{domain}" is known; did you mean "{near[0]}"?' if near else ""
    there = sorted(each.rpartition("/")[2] for each in names if each.rpartition("/")[0] == domain)
    near = get_close_matches(name, there, 1)
    hint = f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(there)}" if there else ""
    return f'no device has the {what} "{name}" of {domain}{hint}'
