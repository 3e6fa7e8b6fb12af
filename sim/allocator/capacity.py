"""Consumable capacity (KEP-5075): how much of a capacity a request consumes, and whether that much is available.

Kubernetes does the arithmetic of steps on 64-bit integers: on whole numbers, each quantity rounded up, or since 1.37
(gate DRAFractionalCapacityRange) on thousandths where all numbers of the range are whole thousandths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

from dranode.api.names import qualified
from dranode.api.quantity import Quantity
from dranode.api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, Reason
from dranode.sim.allocator.state import Amount

_DECIMAL: Final = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_KIBI: Final = 1024
# An exponent that is kept as it is written: a whole number before it, and thousands after it.
_WRITTEN_SO: Final = re.compile(r"[1-9][0-9]*[eE][+-]?(?:0|3|6|9|12|15|18)")
_EXPONENT: Final = re.compile(r"[eE][+-]?[0-9]")
_GREATEST: Final = 2**63 - 1
_THOUSANDTHS: Final = 1000


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why a capacity of a device is not enough.

    Attributes:
        name: the capacity.
        needed: how much the request would consume; None if the device has no such capacity.
        available: how much there is; None if it is the device's policy that forbids the amount.
        policy: the policy that forbids the amount.
    """

    name: str
    needed: Amount | None
    available: Amount | None
    policy: CapacityRequestPolicy | None = None


def shortage(
    candidate: Candidate, requests: Mapping[str, Quantity], consumed: Mapping[str, Amount] | None, features: Features
) -> Shortage | None:
    """Return what keeps the device from serving the request, if anything does.

    `consumed` is what others consume of each capacity. A device that is allocated as a whole is asked the same way: its
    capacity must be as large as the request.

    Raises:
        AllocationError: since 1.37, an amount is beyond 64 bits or below 0.
    """
    capacities = candidate.device.capacity
    requests = published_names(candidate, requests, features)
    for name in requests:
        if name not in capacities:
            return Shortage(name, None, None)
    # All amounts first: one that cannot be reckoned with ends the attempt, whatever the others are.
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
    """Return what a share of the device consumes: every capacity counts, whether it was asked for or not.

    Raises:
        AllocationError: since 1.37, an amount is beyond 64 bits or below 0.
    """
    return _amounts(candidate, published_names(candidate, requests, features), features)


def published_names(
    candidate: Candidate, requests: Mapping[str, Quantity], features: Features
) -> Mapping[str, Quantity]:
    """The requests by the names under which the device publishes the capacities."""
    if not requests or not features.has(Change.CAPACITY_NAMES):
        return requests
    driver = candidate.pool.driver
    published: dict[str, str] = {}
    for name in sorted(candidate.device.capacity, key=lambda each: "/" in each):  # a name with a domain wins
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
    """Return what a request for one capacity consumes: rounded up to what the policy allows, by default its default.

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
    """Return whether rounding to whole numbers changed what a step was meant to be."""
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
    least, step, asked = (ceil(quantity.value * unit) for quantity in (limits.min, limits.step, request))
    ends = features.has(Change.OVERFLOW_ENDS)
    if ends and unit > 1 and not _thousandths(request):
        raise ArithmeticError(f"the request {request} is not in thousandths")
    if not step:
        raise ZeroDivisionError("the step of its valid range is 0")
    amount = least - (least - asked) // step * step
    if not -_GREATEST - 1 <= amount <= _GREATEST:
        if ends:
            raise OverflowError(f"the request {request} is beyond 64 bits")
        amount = (amount + _GREATEST + 1) % (2 * (_GREATEST + 1)) - _GREATEST - 1
    binary = limits.step.text.endswith("i") or not features.has(Change.STEPS_KEEP_SUFFIX)
    exact = Fraction(amount, unit)
    return Quantity(_text(exact.numerator if exact.denominator == 1 else exact, binary=binary))


def _unit(limits: CapacityRequestPolicyRange, features: Features) -> int:
    """Return how many parts of 1 the arithmetic of the range is done in."""
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
    """The quantity as the API server writes it: no fraction, the largest suffix that leaves none."""
    return _canonical(quantity.text)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> Quantity:
    quantity = Quantity(text)
    if _EXPONENT.search(text):
        return quantity if _WRITTEN_SO.fullmatch(text) else Quantity(_with_exponent(quantity.value))
    return Quantity(_text(quantity.value, binary=text.endswith("i")))


def _with_exponent(value: Amount) -> str:
    """The amount as Kubernetes writes what was written with an exponent: 1e4 as 10e3, 1e2 as 100."""
    text = _text(value, binary=False)
    number = text.rstrip("numkMGTPE")
    power = next(power for power, suffix in _DECIMAL.items() if number + suffix == text)
    return f"{number}e{3 * power}" if power else number


def _text(value: Amount, *, binary: bool) -> str:
    if value == -_GREATEST - 1:
        return str(value)  # Go's arithmetic has no positive number of it, of which it would take factors away
    if binary and abs(Fraction(value)) >= _KIBI and Fraction(value).denominator == 1:
        power, whole = 0, int(value)
        while power + 1 < len(_BINARY) and whole % _KIBI == 0:
            whole //= _KIBI
            power += 1
        return f"{whole}{_BINARY[power]}"
    power = -3
    number = ceil(Fraction(value) * 1000**3)
    while power < max(_DECIMAL) and number and number % 1000 == 0:
        number //= 1000
        power += 1
    return f"{number}{_DECIMAL[power]}" if number else "0"
