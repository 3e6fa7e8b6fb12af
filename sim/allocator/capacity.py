"""Consumable capacity (KEP-5075): how much of a capacity a request consumes, and whether that much is left.

Kubernetes 1.36 does the arithmetic of steps on whole numbers, each quantity rounded up; so does this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceCapacity
from dranode.sim.allocator.state import Amount

_DECIMAL: Final = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_KIBI: Final = 1024
_EXPONENT: Final = re.compile(r"[eE][+-]?[0-9]")


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a capacity of a device does not do.

    Attributes:
        name: the capacity.
        wanted: how much the request would consume; None if the device has no such capacity.
        left: how much is left; None if it is the device's policy that forbids the amount.
    """

    name: str
    wanted: Amount | None
    left: Amount | None


def shortage(
    device: Device, requests: Mapping[str, Quantity], consumed: Mapping[str, Amount] | None
) -> Shortage | None:
    """What keeps the device from serving the request, if anything does.

    `consumed` is what others consume of each capacity. A device that is allocated as a whole is asked the same way: its
    capacity must be as large as the request.
    """
    for name in requests:
        if name not in device.capacity:
            return Shortage(name, None, None)
    for name, capacity in device.capacity.items():
        amount = consumption(requests.get(name), capacity).value
        if _violates(amount, capacity.request_policy):
            return Shortage(name, amount, None)
        left = capacity.value.value - (consumed.get(name, 0) if consumed else 0)
        if amount > left:
            return Shortage(name, amount, left)
    return None


def consumptions(device: Device, requests: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """What a share of the device consumes: every capacity counts, whether it was asked for or not."""
    return {name: consumption(requests.get(name), capacity) for name, capacity in device.capacity.items()}


def consumption(request: Quantity | None, capacity: DeviceCapacity) -> Quantity:
    """What a request for one capacity consumes: rounded up to what the policy allows, by default its default."""
    policy = capacity.request_policy
    if request is None:
        return canonical(policy.default if policy and policy.default else capacity.value)
    if policy and policy.valid_range:
        return _in_range(request, policy.valid_range)
    if policy and policy.valid_values:
        return canonical(next((value for value in policy.valid_values if request <= value), request))
    return canonical(request)


def steps_are_inexact(device: Device, requests: Mapping[str, Quantity]) -> bool:
    """Whether rounding to whole numbers changed what a step was meant to be."""
    return any(
        capacity.request_policy is not None
        and (limits := capacity.request_policy.valid_range) is not None
        and limits.step is not None
        and name in requests
        and not (limits.step.whole and limits.min.whole and requests[name].whole)
        for name, capacity in device.capacity.items()
    )


def _in_range(request: Quantity, limits: CapacityRequestPolicyRange) -> Quantity:
    if request < limits.min:
        return canonical(limits.min)
    if limits.step is None:
        return canonical(request)
    least, step = ceil(limits.min.value), ceil(limits.step.value)
    steps = -(-(ceil(request.value) - least) // step)
    return Quantity(_text(least + steps * step, binary=True))


def _violates(amount: Amount, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and amount == policy.default.value):
        return False
    limits = policy.valid_range
    if limits is not None:
        if limits.max is not None and amount > limits.max.value:
            return True
        return limits.step is not None and (ceil(amount) - ceil(limits.min.value)) % ceil(limits.step.value) != 0
    return bool(policy.valid_values) and all(amount != value.value for value in policy.valid_values)


def canonical(quantity: Quantity) -> Quantity:
    """The quantity as the API server writes it: no fraction, the largest suffix that leaves none."""
    return _canonical(quantity.text)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> Quantity:
    quantity = Quantity(text)
    if _EXPONENT.search(text):
        return quantity
    return Quantity(_text(quantity.value, binary=text.endswith("i")))


def _text(value: Amount, *, binary: bool) -> str:
    if binary and isinstance(value, int) and abs(value) >= _KIBI:
        power = 0
        while power + 1 < len(_BINARY) and value % _KIBI == 0:
            value //= _KIBI
            power += 1
        return f"{value}{_BINARY[power]}"
    power = -3
    number = ceil(Fraction(value) * 1000**3)
    while power < max(_DECIMAL) and number and number % 1000 == 0:
        number //= 1000
        power += 1
    return f"{number}{_DECIMAL[power]}" if number else "0"
