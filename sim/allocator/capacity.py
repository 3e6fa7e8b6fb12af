"""Consumable capacity (KEP-5075) and shared counters (KEP-4815): how much is consumed, and whether it is available.

Kubernetes calculates steps with 64-bit integers. It rounds each quantity up to a whole number. Since 1.37 (gate
DRAFractionalCapacityRange), it uses thousandths instead if all numbers of the range are whole thousandths.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final, TypeAlias

from dranode.api.names import qualified
from dranode.api.quantity import Quantity
from dranode.api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceCapacity, PoolID
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate, Pool
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, Reason
from dranode.sim.allocator.state import Allocated, Amount, PoolState

_DECIMAL: Final = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_KIBI: Final = 1024
# A number with an exponent that Kubernetes does not reformat: an integer and a power of 1000.
_CANONICAL_EXPONENT: Final = re.compile(r"[1-9][0-9]*[eE][+-]?(?:0|3|6|9|12|15|18)")
_EXPONENT: Final = re.compile(r"[eE][+-]?[0-9]")
_GREATEST: Final = 2**63 - 1
_THOUSANDTHS: Final = 1000


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why a capacity of a device is not enough.

    Attributes:
        name: the capacity.
        needed: the amount that the request would consume; None if the device lacks this capacity.
        available: the available amount; None if the device's policy forbids the needed amount.
        policy: the policy that forbids the amount.
    """

    name: str
    needed: Amount | None
    available: Amount | None
    policy: CapacityRequestPolicy | None = None


def shortage(
    candidate: Candidate, requests: Mapping[str, Quantity], consumed: Mapping[str, Amount] | None, features: Features
) -> Shortage | None:
    """Return the first capacity of the device that is not enough for the request, if any.

    `consumed` is the amount that others consume of each capacity. A device that is allocated as a whole is checked in
    the same way: its capacity has to be as large as the request.

    Raises:
        AllocationError: since 1.37, an amount is beyond 64 bits or below 0.
    """
    capacities = candidate.device.capacity
    requests = published_names(candidate, requests, features)
    for name in requests:
        if name not in capacities:
            return Shortage(name, None, None)
    # Compute all amounts first: one that overflows ends the attempt, even if another capacity is short.
    amounts = _amounts(candidate, requests, features)
    for name, capacity in capacities.items():
        amount = amounts[name].value
        if _violates(amount, capacity.request_policy, features):
            return Shortage(name, amount, None, capacity.request_policy)
        available = capacity.value.value - (consumed.get(name, 0) if consumed else 0)
        if amount > available:
            return Shortage(name, amount, available)
    return None


def consumptions(candidate: Candidate, requests: Mapping[str, Quantity], features: Features) -> dict[str, Quantity]:
    """Return what a share of the device consumes of every capacity, requested or not.

    Raises:
        AllocationError: since 1.37, an amount is beyond 64 bits or below 0.
    """
    return _amounts(candidate, published_names(candidate, requests, features), features)


def published_names(
    candidate: Candidate, requests: Mapping[str, Quantity], features: Features
) -> Mapping[str, Quantity]:
    """Return the requests by the names under which the device publishes the capacities."""
    if not requests or not features.has(Change.CAPACITY_NAMES):
        return requests
    driver = candidate.pool.driver
    published: dict[str, str] = {}
    for name in sorted(candidate.device.capacity, key=lambda name: "/" in name):  # a name with a domain wins
        published[qualified(name, driver)] = name
    return {published.get(qualified(name, driver), name): amount for name, amount in requests.items()}


def _amounts(candidate: Candidate, requests: Mapping[str, Quantity], features: Features) -> dict[str, Quantity]:
    amounts: dict[str, Quantity] = {}
    for name, capacity in candidate.device.capacity.items():
        try:
            amounts[name] = consumption(requests.get(name), capacity, features)
        except ArithmeticError as error:
            raise AllocationError(
                f"device {candidate.pool}/{candidate.device.name}, capacity {name}: {error}", Reason.CAPACITY_OVERFLOW
            ) from error
    return amounts


def consumption(request: Quantity | None, capacity: DeviceCapacity, features: Features) -> Quantity:
    """Return what a request for one capacity consumes: rounded up as the policy says; without a request, the default.

    Raises:
        ArithmeticError: since 1.37, the amount is beyond 64 bits or below 0; or the step is 0.
    """
    amount = _amount(request, capacity, features)
    if amount.value < 0 and features.has(Change.OVERFLOW_ENDS):
        raise ArithmeticError(f"{amount} is below 0")
    return amount


def _amount(request: Quantity | None, capacity: DeviceCapacity, features: Features) -> Quantity:
    policy = capacity.request_policy
    if request is None:
        return canonical(policy.default if policy and policy.default else capacity.value)
    if policy and policy.valid_range:
        return _in_range(request, policy.valid_range, features)
    if policy and policy.valid_values:
        return canonical(next((value for value in policy.valid_values if request <= value), request))
    return canonical(request)


def steps_are_inexact(candidate: Candidate, requests: Mapping[str, Quantity], features: Features) -> bool:
    """Return whether rounding to whole numbers changed the meaning of a step."""
    requests = published_names(candidate, requests, features)
    return any(
        capacity.request_policy is not None
        and (limits := capacity.request_policy.valid_range) is not None
        and limits.step is not None
        and name in requests
        and _unit(limits, features) == 1
        and not (limits.step.whole and limits.min.whole and requests[name].whole)
        for name, capacity in candidate.device.capacity.items()
    )


def _in_range(request: Quantity, limits: CapacityRequestPolicyRange, features: Features) -> Quantity:
    if request < limits.min:
        return canonical(limits.min)
    if limits.step is None:
        return canonical(request)
    unit = _unit(limits, features)
    least, step, requested = (ceil(quantity.value * unit) for quantity in (limits.min, limits.step, request))
    ends = features.has(Change.OVERFLOW_ENDS)
    if ends and unit > 1 and not _thousandths(request):
        raise ArithmeticError(f"the request {request} is not a number of thousandths within 64 bits")
    if not step:
        raise ZeroDivisionError("the step of its valid range is 0")
    amount = least - (least - requested) // step * step
    if not -_GREATEST - 1 <= amount <= _GREATEST:
        if ends:
            raise OverflowError(f"the request {request} is beyond 64 bits")
        amount = (amount + _GREATEST + 1) % (2 * (_GREATEST + 1)) - _GREATEST - 1
    binary = limits.step.text.endswith("i") or not features.has(Change.STEPS_KEEP_SUFFIX)
    exact = Fraction(amount, unit)
    return Quantity(_text(exact.numerator if exact.denominator == 1 else exact, binary=binary))


def _unit(limits: CapacityRequestPolicyRange, features: Features) -> int:
    """Return the parts of 1 in which the range is calculated: 1 or 1000."""
    if not features.fractional_capacity_range or limits.step is None or limits.step.value <= 0:
        return 1
    bounds = (limits.min, limits.step, *(() if limits.max is None else (limits.max,)))
    return _THOUSANDTHS if all(map(_thousandths, bounds)) else 1


def _thousandths(quantity: Quantity) -> bool:
    amount = Fraction(quantity.value) * _THOUSANDTHS
    return amount.denominator == 1 and -_GREATEST - 1 <= amount.numerator <= _GREATEST


def _violates(amount: Amount, policy: CapacityRequestPolicy | None, features: Features) -> bool:
    if policy is None or (policy.default is not None and amount == policy.default.value):
        return False
    limits = policy.valid_range
    if limits is not None:
        if limits.max is not None and amount > limits.max.value:
            return True
        if limits.step is None:
            return False
        unit = _unit(limits, features)
        return (ceil(amount * unit) - ceil(limits.min.value * unit)) % ceil(limits.step.value * unit) != 0
    return bool(policy.valid_values) and all(amount != value.value for value in policy.valid_values)


def canonical(quantity: Quantity) -> Quantity:
    """Return the quantity in the API server's canonical form: the largest suffix that leaves no fraction."""
    return _canonical(quantity.text)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> Quantity:
    quantity = Quantity(text)
    if _EXPONENT.search(text):
        return quantity if _CANONICAL_EXPONENT.fullmatch(text) else Quantity(_with_exponent(quantity.value))
    return Quantity(_text(quantity.value, binary=text.endswith("i")))


def _with_exponent(value: Amount) -> str:
    """Format an amount that was written with an exponent as Kubernetes does: 1e4 as 10e3, 1e2 as 100."""
    text = _text(value, binary=False)
    number = text.rstrip("numkMGTPE")
    power = next(power for power, suffix in _DECIMAL.items() if number + suffix == text)
    return f"{number}e{3 * power}" if power else number


def _text(value: Amount, *, binary: bool) -> str:
    if value == -_GREATEST - 1:
        return str(value)  # Go cannot negate the lowest int64, so it does not look for a suffix
    if binary and abs(Fraction(value)) >= _KIBI and Fraction(value).denominator == 1:
        power, integer = 0, int(value)
        while power + 1 < len(_BINARY) and integer % _KIBI == 0:
            integer //= _KIBI
            power += 1
        return f"{integer}{_BINARY[power]}"
    power = -3
    number = ceil(Fraction(value) * 1000**3)
    while power < max(_DECIMAL) and number and number % 1000 == 0:
        number //= 1000
        power += 1
    return f"{number}{_DECIMAL[power]}" if number else "0"


# Shared counters of partitionable devices. Compatibility groups (KEP-5963) belong to them, because all devices that
# draw on a counter set need a group in common.


CounterKey: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class Counters:
    """The counters of a pool, or of all pools with the same name, during one attempt.

    Attributes:
        available: the amounts that were available before the attempt, by set and name.
        drawn: the amounts that the attempt has drawn.
    """

    available: dict[CounterKey, Amount]
    drawn: dict[CounterKey, Amount] = field(default_factory=dict)

    def draw(self, device: Device) -> tuple[CounterKey, Amount] | None:
        """Draw what the device consumes; return the first counter that is short with the free amount, or None."""
        for key, amount in _consumed(device):
            self.drawn[key] = self.drawn.get(key, 0) + amount
        for key, available in self.available.items():
            if self.drawn.get(key, 0) > available:
                self.give_back(device)
                return key, available - self.drawn.get(key, 0)
        return None

    def give_back(self, device: Device) -> None:
        """Undo `draw`."""
        for key, amount in _consumed(device):
            self.drawn[key] -= amount


# The compatibility groups that devices have in common; None for devices without any.
Groups: TypeAlias = frozenset[str] | None


@dataclass(slots=True)
class CompatibilityGroups:
    """The groups that the devices on each counter set of a pool have in common, during one attempt.

    Attributes:
        common: the groups by counter set; sets that no device draws on have no entry.
    """

    common: dict[str, Groups]

    def join(self, device: Device) -> dict[str, Groups] | None:
        """Add the device and return the previous groups; return None, without a change, if it is incompatible."""
        common = dict(self.common)
        for name, groups in _groups(device):
            shared = common.get(name)
            if name not in common:
                common[name] = groups
            elif shared is not None and groups is not None and shared & groups:
                common[name] = shared & groups
            elif shared is not None or groups is not None:
                return None
        before, self.common = self.common, common
        return before


class CounterLedger:
    """Counters and compatibility groups of all pools during one attempt."""

    def __init__(self, pools: Mapping[PoolID, Pool], allocated: Allocated, features: Features) -> None:
        """Start with the allocated devices; a pool is only computed when it is needed."""
        self._pools = pools
        self._allocated = allocated
        self._by_name = not features.has(Change.COUNTERS_BY_POOL_ID)
        self._checks_groups = features.device_compatibility_groups
        self._counters: dict[PoolID | str, Counters] = {}
        self._groups: dict[PoolID, CompatibilityGroups] = {}

    def draw(self, candidate: Candidate) -> Drawn | None:
        """Draw what the device consumes; return None, without a change, if it is not available."""
        groups = self._groups_of(candidate.pool) if self._checks_groups else None
        before = groups.join(candidate.device) if groups is not None else None
        if groups is not None and before is None:
            return None
        counters = self._counters_of(candidate.pool)
        if counters.draw(candidate.device) is not None:
            if groups is not None and before is not None:
                groups.common = before
            return None
        return Drawn(counters, groups, before or {})

    def state(self) -> Hashable:
        """Return the drawn amounts and the common groups, by pool."""
        drawn = (
            (key, counter, amount)
            for key, counters in self._counters.items()
            for counter, amount in counters.drawn.items()
            if amount
        )
        groups = ((pool, *item) for pool, of_pool in self._groups.items() for item in of_pool.common.items())
        return frozenset(drawn), frozenset(groups)

    def _counters_of(self, pool: PoolID) -> Counters:
        key = pool.pool if self._by_name else pool
        counters = self._counters.get(key)
        if counters is None:
            counters = Counters(available_counters(self._pools[pool], self._allocated.pool(pool)))
            self._counters[key] = counters
        return counters

    def _groups_of(self, pool: PoolID) -> CompatibilityGroups:
        groups = self._groups.get(pool)
        if groups is None:
            groups = CompatibilityGroups(common_groups(self._pools[pool], self._allocated.pool(pool)))
            self._groups[pool] = groups
        return groups


@dataclass(frozen=True, slots=True)
class Drawn:
    """A record of what one device drew, to undo it.

    Attributes:
        counters: the counters that it drew on.
        groups: the groups that it joined, if the feature is on.
        before: the common groups before.
    """

    counters: Counters
    groups: CompatibilityGroups | None
    before: dict[str, Groups]

    def give_back(self, device: Device) -> None:
        """Undo the draw; draws are undone in reverse order."""
        self.counters.give_back(device)
        if self.groups is not None:
            self.groups.common = self.before


def available_counters(pool: Pool, state: PoolState) -> dict[CounterKey, Amount]:
    """Return the pool's counters minus what its allocated devices consume on all nodes; shared devices count once."""
    available: dict[CounterKey, Amount] = {
        (set_.name, name): counter.value.value
        for set_ in pool.counters.values()
        for name, counter in set_.counters.items()
    }
    for device in _allocated(pool, state):
        for key, amount in _consumed(device):
            if key in available:
                available[key] -= amount
    return available


def common_groups(pool: Pool, state: PoolState) -> dict[str, Groups]:
    """Return the compatibility groups that the allocated devices of each counter set share, on all nodes."""
    common: dict[str, Groups] = {}
    for device in _allocated(pool, state):
        for name, groups in _groups(device):
            shared = common.get(name)
            if name not in common:
                common[name] = groups
            elif shared is not None and groups is not None:
                common[name] = shared & groups
    return common


def _allocated(pool: Pool, state: PoolState) -> Iterator[Device]:
    for device in (*(candidate.device for candidate in pool.candidates), *pool.elsewhere):
        if device.name in state.devices or device.name in state.shared:
            yield device


def _consumed(device: Device) -> Iterator[tuple[CounterKey, Amount]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (consumption.counter_set, name), counter.value.value


def _groups(device: Device) -> Iterator[tuple[str, Groups]]:
    for consumption in device.consumes_counters:
        yield consumption.counter_set, frozenset(consumption.compatibility_groups) or None
