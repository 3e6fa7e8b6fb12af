"""Constraints between the devices of a claim: `matchAttribute` and `distinctAttribute` (KEP-4381, KEP-5075, KEP-5491).

The search adds and removes devices like a stack. Releases before 1.37 remember less than they should for
`distinctAttribute` (`releases.Change`), so they have a class of their own.
"""

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
    """A constraint during a search: its devices need a common value, or distinct values.

    Attributes:
        spec: the constraint of the claim.
        attribute: the attribute whose values are compared.
        depends_on_history: whether later answers depend on devices that were added and removed again.
    """

    depends_on_history = False

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool) -> None:
        """Start without devices; `lists` says whether lists are compared as sets (KEP-5491)."""
        self.spec = spec
        self.attribute = attribute
        self._lists = lists
        # For distinctAttribute, the values of each device; for matchAttribute, those it shares with all devices before.
        self._values: list[Values | None] = []

    def applies(self, request: str) -> bool:
        """Return whether the constraint covers the devices of `<request>` or `<request>/<subrequest>`."""
        return applies(self.spec.requests, request)

    def add(self, request: str, attribute: DeviceAttribute) -> bool:  # noqa: ARG002 - older releases need it
        """Add a device with this attribute for a request that the constraint covers; False if that violates it."""
        values = attribute_values(attribute, lists=self._lists)
        # If lists are not compared, any device can be the first, even one with a list.
        if values is None and (self._lists or self._values):
            return False
        if self.spec.match_attribute is None:
            if any(common_values(values, other) for other in self._values):
                return False
        elif self._values:
            values = common_values(values, self._values[-1])
            if values is None:
                return False
        self._values.append(values)
        return True

    def remove(self, request: str) -> None:  # noqa: ARG002 - older releases need it
        """Undo the last `add`, which was for this request."""
        self._values.pop()

    def state(self) -> Hashable:
        """Return everything that later answers depend on."""
        if self.spec.match_attribute is not None:
            return tuple(self._values[-1:])
        return len(self._values), frozenset(self._values)


class DistinctAttributeByRequest(Constraint):
    """`distinctAttribute` until 1.36, which remembers only one value per request (`DISTINCT_COMPARES_ALL`).

    Removing any device of the request forgets the value. 1.34 compares pointers instead of values, so any two devices
    differ (`DISTINCT_COMPARES`).
    """

    depends_on_history = True

    def __init__(self, spec: DeviceConstraint, attribute: str, *, lists: bool, compares: bool) -> None:
        """Start without devices."""
        super().__init__(spec, attribute, lists=lists)
        self._compares = compares
        self._count = 0
        self._by_request: dict[str, Values | None] = {}

    def add(self, request: str, attribute: DeviceAttribute) -> bool:
        """Add a device; it is compared only with the last device of each request."""
        values = attribute_values(attribute, lists=self._lists)
        others = self._by_request.values() if self._count else ()
        if others and (values is None or (self._compares and any(common_values(values, other) for other in others))):
            return False
        self._by_request[request.partition("/")[0]] = values
        self._count += 1
        return True

    def remove(self, request: str) -> None:
        """Undo the last `add`; the value of the device before it is lost."""
        self._by_request.pop(request.partition("/")[0], None)
        self._count -= 1

    def state(self) -> Hashable:
        """Return the remembered values."""
        return self._count, frozenset(self._by_request.items())


def constraint(spec: DeviceConstraint, features: Features) -> Constraint | None:
    """Return the constraint as the release applies it; None if it sets no field that the release knows."""
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
    """Return the attribute with this fully qualified name; the device may publish it without the driver's domain."""
    attribute = device.attributes.get(name)
    if attribute is None:
        domain, _, identifier = name.partition("/")
        if domain == driver:
            attribute = device.attributes.get(identifier)
    return attribute


def attribute_value(attribute: DeviceAttribute) -> Value | None:
    """Return type and value of a scalar attribute; versions compare as text."""
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
    """Return type and values of an attribute; a scalar is one value. Without `lists`, a list has none."""
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


def common_values(first: Values | None, second: Values | None) -> Values | None:
    """Return the values that two devices have in common; None if there are none."""
    if first is None or second is None or first[0] != second[0] or not first[1] & second[1]:
        return None
    return first[0], first[1] & second[1]


class ClaimConstraints:
    """The constraints of a claim during a search.

    Attributes:
        depend_on_history: whether later answers depend on devices that were added and removed again.
        refusal: the error of a constraint without an attribute, which ends the attempt; None without one.
    """

    def __init__(self, claim: ResourceClaim, name: str, selectors: Selectors) -> None:
        """Start without devices; `name` is the claim's, for messages."""
        self._selectors = selectors
        self.refusal: AllocationError | None = None
        self._constraints: list[Constraint] = []
        for index, spec in enumerate(claim.spec.devices.constraints):
            effective = constraint(spec, selectors.features)
            if effective is None:
                problem = "names no attribute" if spec.distinct_attribute is None else "needs DRAConsumableCapacity"
                message = f"claim {name}, constraint #{index} {problem}"
                self.refusal = AllocationError(message, Reason.INCOMPLETE_CLAIM)
                break
            self._constraints.append(effective)
        self.depend_on_history = any(item.depends_on_history for item in self._constraints)

    def bind(self, alternative: Alternative) -> bool:
        """Return whether any constraint applies to the alternative."""
        return any(item.applies(alternative.name) for item in self._constraints)

    def state(self) -> Hashable:
        """Return everything that later answers depend on."""
        return tuple(item.state() for item in self._constraints)

    def add(self, alternative: Alternative, candidate: Candidate) -> bool:
        """Add a device for the alternative; return False, without a change, if it violates a constraint.

        Raises:
            AllocationError: a derived attribute cannot be evaluated on the device.
        """
        added: list[Constraint] = []
        for item in self._constraints:
            if not item.applies(alternative.name):
                continue
            attribute = self._attribute(alternative, candidate, item.attribute)
            if attribute is None or not item.add(alternative.name, attribute):
                for previous in reversed(added):
                    previous.remove(alternative.name)
                return False
            added.append(item)
        return True

    def remove(self, alternative: Alternative) -> None:
        """Undo the last `add`, which was for this alternative."""
        for item in reversed(self._constraints):
            if item.applies(alternative.name):
                item.remove(alternative.name)

    def _attribute(self, alternative: Alternative, candidate: Candidate, name: str) -> DeviceAttribute | None:
        expression = alternative.derived.get(name)
        if expression is not None:
            return self._selectors.derived(name, expression, candidate)
        return lookup(candidate.device, candidate.pool.driver, name)
