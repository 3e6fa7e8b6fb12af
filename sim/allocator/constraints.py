"""Constraints between the devices of a claim: `matchAttribute` and `distinctAttribute` (KEP-4381, KEP-5075, KEP-5491).

Devices are added and removed as the search goes, last in first out. Releases before 1.37 keep less in mind than they
should (`releases.Change`): their constraints are classes of their own.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from dranode.api.resource import Device, DeviceAttribute, DeviceConstraint, ResourceClaim
from dranode.driver.claims.grant import applies
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, Alternative, Reason
from dranode.sim.allocator.selectors import Selectors

Value: TypeAlias = tuple[str, int | bool | str]
Values: TypeAlias = tuple[str, frozenset[int | bool | str]]


class Constraint:
    """A constraint during a search: its devices have a value in common, or none of them.

    Attributes:
        spec: the constraint of the claim.
        attribute: the attribute whose values are compared.
    """

    # Whether later answers depend on devices that were tried and given back.
    remembers = False

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool) -> None:
        """Start without devices; `lists` says whether lists are compared as sets (KEP-5491)."""
        self.spec = spec
        self.attribute = attribute
        self._lists = lists
        # For distinctAttribute the values of each device; for matchAttribute what each device has in common with those
        # before it.
        self._values: list[Values | None] = []

    def applies(self, request: str) -> bool:
        """Return whether the constraint covers the devices of `<request>` or `<request>/<subrequest>`."""
        return applies(self.spec.requests, request)

    def add(self, request: str, attribute: DeviceAttribute) -> bool:  # noqa: ARG002 - older releases look at it
        """Add a device with that attribute for a request that the constraint covers; False if it violates."""
        values = attribute_values(attribute, lists=self._lists)
        # Without lists any device can be the first, even one whose attribute is a list.
        if values is None and (self._lists or self._values):
            return False
        if self.spec.match_attribute is None:
            if any(_common(values, other) for other in self._values):
                return False
        elif self._values:
            values = _common(values, self._values[-1])
            if values is None:
                return False
        self._values.append(values)
        return True

    def remove(self, request: str) -> None:  # noqa: ARG002 - older releases look at it
        """Undo the last `add`, which was for this request."""
        self._values.pop()

    def state(self) -> Hashable:
        """Return what later answers depend on."""
        if self.spec.match_attribute is not None:
            return tuple(self._values[-1:])
        return len(self._values), frozenset(self._values)


class DistinctAttributeByRequest(Constraint):
    """Until 1.36: one value is remembered for each request, and forgotten with any device (`DISTINCT_COMPARES_ALL`).

    1.34 compares where the values lie in memory, so that any two devices differ (`DISTINCT_COMPARES`).
    """

    remembers = True

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool, compares: bool) -> None:
        """Start without devices."""
        super().__init__(spec, attribute, lists=lists)
        self._compares = compares
        self._count = 0
        self._by_request: dict[str, Values | None] = {}

    def add(self, request: str, attribute: DeviceAttribute) -> bool:
        """Add a device; it is compared with the last device of each request alone."""
        values = attribute_values(attribute, lists=self._lists)
        others = self._by_request.values() if self._count else ()
        if others and (values is None or (self._compares and any(_common(values, other) for other in others))):
            return False
        self._by_request[request.partition("/")[0]] = values
        self._count += 1
        return True

    def remove(self, request: str) -> None:
        """Undo the last `add`; the value of the device before it is lost."""
        self._by_request.pop(request.partition("/")[0], None)
        self._count -= 1

    def state(self) -> Hashable:
        """Return the values that are remembered."""
        return self._count, frozenset(self._by_request.items())


def constraint(spec: DeviceConstraint, features: Features) -> Constraint | None:
    """Return the constraint as the release keeps it; None if it names no attribute that the release knows."""
    lists = features.lists_compared
    if spec.match_attribute is not None:
        return Constraint(spec, spec.match_attribute, lists=lists)
    if spec.distinct_attribute is None or not features.beyond_stable:
        return None
    if features.has(Change.DISTINCT_COMPARES_ALL):
        return Constraint(spec, spec.distinct_attribute, lists=lists)
    compares = features.has(Change.DISTINCT_COMPARES)
    return DistinctAttributeByRequest(spec, spec.distinct_attribute, lists=lists, compares=compares)


def lookup(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    """The attribute of that fully-qualified name; the driver's own domain may be left out on the device."""
    attribute = device.attributes.get(name)
    if attribute is None:
        domain, _, identifier = name.partition("/")
        if domain == driver:
            attribute = device.attributes.get(identifier)
    return attribute


def attribute_value(attribute: DeviceAttribute) -> Value | None:
    """Type and value of a scalar attribute; versions compare as text."""
    if attribute.string is not None:
        return "string", attribute.string
    if attribute.int_ is not None:
        return "int", attribute.int_
    if attribute.bool_ is not None:
        return "bool", attribute.bool_
    if attribute.version is not None:
        return "version", attribute.version
    return None


def attribute_values(attribute: DeviceAttribute, *, lists: bool = True) -> Values | None:
    """Type and values of an attribute; a scalar is one value. With `lists` off, a list has none."""
    for kind, values in (
        ("int", attribute.ints),
        ("bool", attribute.bools),
        ("string", attribute.strings),
        ("version", attribute.versions),
    ):
        if lists and values:
            return kind, frozenset(values)
    scalar = attribute_value(attribute)
    return None if scalar is None else (scalar[0], frozenset((scalar[1],)))


def _common(first: Values | None, second: Values | None) -> Values | None:
    """Return the values that two devices have in common; None if there are none."""
    if first is None or second is None or first[0] != second[0] or not first[1] & second[1]:
        return None
    return first[0], first[1] & second[1]


class ClaimConstraints:
    """The constraints of a claim during a search.

    Attributes:
        remember: whether answers to `distinctAttribute` depend on devices that were tried and given back.
        refusal: why the claim cannot be allocated anywhere, if a constraint names no attribute.
    """

    def __init__(self, claim: ResourceClaim, name: str, selectors: Selectors) -> None:
        """Start without devices; `name` is the claim's, for messages."""
        self._selectors = selectors
        self.refusal: AllocationError | None = None
        self._constraints: list[Constraint] = []
        for index, spec in enumerate(claim.spec.devices.constraints):
            known = constraint(spec, selectors.features)
            if known is None:
                what = "names no attribute" if spec.distinct_attribute is None else "needs DRAConsumableCapacity"
                message = f"claim {name}, constraint #{index} {what}"
                self.refusal = AllocationError(message, Reason.INCOMPLETE_CLAIM)
                break
            self._constraints.append(known)
        self.remember = any(known.remembers for known in self._constraints)

    def bind(self, alternative: Alternative) -> bool:
        """Return whether any constraint applies to the alternative."""
        return any(known.applies(alternative.name) for known in self._constraints)

    def state(self) -> Hashable:
        """Return what later answers depend on."""
        return tuple(known.state() for known in self._constraints)

    def add(self, alternative: Alternative, candidate: Candidate) -> bool:
        """Add a device for the alternative; False, and nothing changes, if it violates a constraint.

        Raises:
            AllocationError: a derived attribute cannot be evaluated on the device.
        """
        added: list[Constraint] = []
        for known in self._constraints:
            if not known.applies(alternative.name):
                continue
            attribute = self._attribute(alternative, candidate, known.attribute)
            if attribute is None or not known.add(alternative.name, attribute):
                for undone in reversed(added):
                    undone.remove(alternative.name)
                return False
            added.append(known)
        return True

    def remove(self, alternative: Alternative) -> None:
        """Undo the last `add`, which was for this alternative."""
        for known in reversed(self._constraints):
            if known.applies(alternative.name):
                known.remove(alternative.name)

    def _attribute(self, alternative: Alternative, candidate: Candidate, name: str) -> DeviceAttribute | None:
        expression = alternative.derived.get(name)
        if expression is not None:
            return self._selectors.derived(name, expression, candidate)
        return lookup(candidate.device, candidate.pool.driver, name)
