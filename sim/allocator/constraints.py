"""Constraints between the devices of a claim: `matchAttribute` and `distinctAttribute` (KEP-4381, KEP-5075, KEP-5491).

Devices are added and removed as the search goes. Two things are as in kube-scheduler 1.36, not as one would expect:
`distinctAttribute` remembers one value for each request, so within a request a device is compared only with the one
before it, and removing a device forgets that value; on lists, `matchAttribute` does not widen the common values again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TypeAlias

from dranode.driver.core.api.resource import Device, DeviceAttribute, DeviceConstraint
from dranode.driver.core.claims.configs import applies

Value: TypeAlias = tuple[str, int | bool | str]
Values: TypeAlias = tuple[str, frozenset[int | bool | str]]


class Constraint(ABC):
    """A constraint during a search.

    Attributes:
        spec: as it stands in the claim.
    """

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool) -> None:
        """Start without devices; `lists` says whether lists are compared as sets."""
        self.spec = spec
        self._attribute = attribute
        self._lists = lists
        self._count = 0

    def add(self, request: str, driver: str, device: Device) -> bool:
        """Add a device for `<request>` or `<request>/<subrequest>`; False, and nothing changes, if it violates."""
        if not applies(self.spec.requests, request):
            return True
        attribute = lookup(device, driver, self._attribute)
        if attribute is None or not self._accept(request.partition("/")[0], attribute):
            return False
        self._count += 1
        return True

    def remove(self, request: str) -> None:
        """Undo the last `add` for the request."""
        if applies(self.spec.requests, request):
            self._count -= 1
            self._forget(request.partition("/")[0])

    @abstractmethod
    def state(self) -> Hashable:
        """What later answers depend on."""

    @abstractmethod
    def _accept(self, request: str, attribute: DeviceAttribute) -> bool:
        """Whether the device's attribute satisfies the constraint; if so, remember what is needed of it."""

    @abstractmethod
    def _forget(self, request: str) -> None:
        """The last device of the request is gone."""


class MatchAttribute(Constraint):
    """All devices have the same value, or with lists a common one."""

    _value: Value | Values | None = None

    def state(self) -> Hashable:
        """The value, once there is a device."""
        return self._value if self._count else None

    def _accept(self, request: str, attribute: DeviceAttribute) -> bool:  # noqa: ARG002 - the base class's signature
        if self._lists:
            return self._narrow(attribute_values(attribute))
        value = attribute_value(attribute)
        if self._count == 0:
            self._value = value  # any device can be the first, even with a list
            return True
        return value is not None and value == self._value

    def _forget(self, request: str) -> None:
        """The value is set anew with the next first device."""

    def _narrow(self, values: Values | None) -> bool:
        if values is None:
            return False
        if self._count == 0:
            self._value = values
            return True
        kind, common = self._value or ("", frozenset())
        if not isinstance(common, frozenset) or kind != values[0] or not common & values[1]:
            return False
        self._value = (kind, common & values[1])
        return True


class DistinctAttribute(Constraint):
    """All devices have different values, or with lists nothing in common."""

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool) -> None:
        """Start without devices."""
        super().__init__(spec, attribute, lists=lists)
        self._values: dict[str, Value | Values | None] = {}

    def state(self) -> Hashable:
        """The values that are remembered."""
        return self._count, frozenset(self._values.items())

    def _accept(self, request: str, attribute: DeviceAttribute) -> bool:
        value = attribute_values(attribute) if self._lists else attribute_value(attribute)
        others = self._values.values() if self._count else ()
        if others and (value is None or any(_overlap(value, other) for other in others)):
            return False
        self._values[request] = value
        return True

    def _forget(self, request: str) -> None:
        self._values.pop(request, None)


def constraint(spec: DeviceConstraint, *, lists: bool) -> Constraint | None:
    """The constraint; None if it names no attribute."""
    if spec.match_attribute is not None:
        return MatchAttribute(spec, spec.match_attribute, lists=lists)
    if spec.distinct_attribute is not None:
        return DistinctAttribute(spec, spec.distinct_attribute, lists=lists)
    return None


def lookup(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    """The attribute of that fully-qualified name; the driver's own domain may be left out on the device."""
    found = device.attributes.get(name)
    if found is None:
        domain, _, identifier = name.partition("/")
        if domain == driver:
            found = device.attributes.get(identifier)
    return found


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


def _overlap(value: Value | Values, other: Value | Values | None) -> bool:
    if other is None or value[0] != other[0]:
        return False
    if isinstance(value[1], frozenset) and isinstance(other[1], frozenset):
        return bool(value[1] & other[1])
    return value[1] == other[1]
