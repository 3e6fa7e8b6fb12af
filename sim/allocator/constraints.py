"""Constraints between the devices of a claim: `matchAttribute` and `distinctAttribute` (KEP-4381, KEP-5075, KEP-5491).

Devices are added and removed as the search goes, last in first out. Releases before 1.37 keep less in mind than they
should (`releases.Change`): their constraints are classes of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class Constraint(ABC):
    """A constraint during a search.

    Attributes:
        spec: as it stands in the claim.
        attribute: the attribute that it is about.
    """

    # Whether later answers depend on devices that were tried and given back.
    remembers = False

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool) -> None:
        """Start without devices; `lists` says whether lists are compared as sets."""
        self.spec = spec
        self.attribute = attribute
        self._lists = lists

    def applies(self, request: str) -> bool:
        """Return whether it is about the devices of `<request>` or `<request>/<subrequest>`."""
        return applies(self.spec.requests, request)

    @abstractmethod
    def add(self, request: str, attribute: DeviceAttribute) -> bool:
        """Add a device with that attribute for a request to which it applies; False, and no change, if it violates."""

    @abstractmethod
    def remove(self, request: str) -> None:
        """Undo the last `add`, which was for this request."""

    @abstractmethod
    def state(self) -> Hashable:
        """Return what later answers depend on."""


class MatchAttribute(Constraint):
    """All devices have the same value, or with lists a common one."""

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool) -> None:
        """Start without devices."""
        super().__init__(spec, attribute, lists=lists)
        # What is common to the first device, to the first two ...
        self._common: list[Value | Values | None] = []

    def state(self) -> Hashable:
        """The value, once there is a device."""
        return self._common[-1] if self._common else None

    def add(self, request: str, attribute: DeviceAttribute) -> bool:  # noqa: ARG002 - all requests are alike
        """Add a device."""
        if self._lists:
            return self._narrow(attribute_values(attribute))
        value = attribute_value(attribute)
        if self._common and (value is None or value != self._common[0]):
            return False
        self._common.append(value)  # any device can be the first, even with a list
        return True

    def remove(self, request: str) -> None:  # noqa: ARG002 - all requests are alike
        """Undo the last `add`."""
        self._common.pop()

    def _narrow(self, values: Values | None) -> bool:
        if values is None:
            return False
        if self._common:
            kind, common = self._common[-1] or ("", frozenset())
            if not isinstance(common, frozenset) or kind != values[0] or not common & values[1]:
                return False
            values = (kind, common & values[1])
        self._common.append(values)
        return True


class DistinctAttribute(Constraint):
    """All devices have different values, or with lists nothing in common."""

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool) -> None:
        """Start without devices."""
        super().__init__(spec, attribute, lists=lists)
        self._values: list[Value | Values | None] = []

    def state(self) -> Hashable:
        """The values of the devices."""
        return len(self._values), frozenset(self._values)

    def add(self, request: str, attribute: DeviceAttribute) -> bool:  # noqa: ARG002 - all requests are alike
        """Add a device."""
        value = attribute_values(attribute) if self._lists else attribute_value(attribute)
        if value is None and (self._lists or self._values):
            return False
        if any(_overlap(value, other) for other in self._values):
            return False
        self._values.append(value)
        return True

    def remove(self, request: str) -> None:  # noqa: ARG002 - all requests are alike
        """Undo the last `add`."""
        self._values.pop()


class DistinctAttributeByRequest(Constraint):
    """Until 1.36: one value is remembered for each request, and forgotten with any device (`DISTINCT_COMPARES_ALL`)."""

    remembers = True

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool) -> None:
        """Start without devices."""
        super().__init__(spec, attribute, lists=lists)
        self._count = 0
        self._values: dict[str, Value | Values | None] = {}

    def state(self) -> Hashable:
        """The values that are remembered."""
        return self._count, frozenset(self._values.items())

    def add(self, request: str, attribute: DeviceAttribute) -> bool:
        """Add a device; within the request it is compared with the one before it alone."""
        value = attribute_values(attribute) if self._lists else attribute_value(attribute)
        others = self._values.values() if self._count else ()
        if others and (value is None or any(self._same(value, other) for other in others)):
            return False
        self._values[request.partition("/")[0]] = value
        self._count += 1
        return True

    def remove(self, request: str) -> None:
        """Undo the last `add`; the value of the device before it is not known any more."""
        self._values.pop(request.partition("/")[0], None)
        self._count -= 1

    def _same(self, value: Value | Values | None, other: Value | Values | None) -> bool:
        return _overlap(value, other)


class DistinctAttributeUncompared(DistinctAttributeByRequest):
    """In 1.34: where the values lie in memory is compared, so that any two devices differ (`DISTINCT_COMPARES`)."""

    def _same(self, value: Value | Values | None, other: Value | Values | None) -> bool:  # noqa: ARG002 - see above
        return False


def constraint(spec: DeviceConstraint, features: Features) -> Constraint | None:
    """The constraint as the release keeps it; None if it names no attribute that the release knows of."""
    lists = features.lists_compared
    if spec.match_attribute is not None:
        return MatchAttribute(spec, spec.match_attribute, lists=lists)
    if spec.distinct_attribute is not None and features.beyond_stable:
        return _distinct(features)(spec, spec.distinct_attribute, lists=lists)
    return None


def _distinct(features: Features) -> type[Constraint]:
    if features.has(Change.DISTINCT_COMPARES_ALL):
        return DistinctAttribute
    return DistinctAttributeByRequest if features.has(Change.DISTINCT_COMPARES) else DistinctAttributeUncompared


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


def attribute_values(attribute: DeviceAttribute) -> Values | None:
    """Type and values of an attribute; a scalar is one value."""
    for kind, values in (
        ("int", attribute.ints),
        ("bool", attribute.bools),
        ("string", attribute.strings),
        ("version", attribute.versions),
    ):
        if values:
            return kind, frozenset(values)
    scalar = attribute_value(attribute)
    return None if scalar is None else (scalar[0], frozenset((scalar[1],)))


def _overlap(value: Value | Values | None, other: Value | Values | None) -> bool:
    if value is None or other is None or value[0] != other[0]:
        return False
    if isinstance(value[1], frozenset) and isinstance(other[1], frozenset):
        return bool(value[1] & other[1])
    return value[1] == other[1]


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
