"""Amounts of a resource as quota counts them: whole numbers of thousandths of a CPU, of bytes, of devices.

Kueue counts `cpu` in thousandths and everything else in whole units, both rounded up, so that the sum of what fits is
what fits. These numbers are internal: people read and write quantities.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Final

from dranode.api.quantity import Quantity

CPU: Final = "cpu"
_BINARY: Final = tuple((suffix, 1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1))
_IN_BYTES: Final = frozenset({"memory", "ephemeral-storage"})


def amount(resource: str, quantity: Quantity) -> int:
    """The number that stands for a quantity of a resource, rounded up: thousandths of a CPU, else bytes or pieces."""
    value = Fraction(quantity.value)
    return ceil(value * 1000 if resource == CPU else value)


def amount_text(resource: str, number: int) -> str:
    """The quantity that a number stands for, as people write it: `2500m`, `16Gi`, `3`."""
    if resource == CPU:
        return str(number // 1000) if number % 1000 == 0 else f"{number}m"
    if number and resource in _IN_BYTES:
        for suffix, factor in reversed(_BINARY):
            if number % factor == 0:
                return f"{number // factor}{suffix}"
    return str(number)
