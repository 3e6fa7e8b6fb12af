"""Kubernetes quantities, exact.

Format (`k8s.io/apimachinery/pkg/api/resource`): a signed decimal number, then a decimal suffix (n u m k M G T P E), a
binary suffix (Ki Mi Gi Ti Pi Ei) or a decimal exponent (e6, E-3). Two quantities are equal if their values are.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache, total_ordering
from typing import Final

_LONGEST: Final = 4000  # characters; Python converts at most 4,300 digits
_NUMBER: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?",
    re.ASCII,
)
# The factor and the divisor of each suffix. Integers keep the value exact.
_SCALE: Final[dict[str, tuple[int, int]]] = {
    "": (1, 1),
    **{suffix: (1, 1000**power) for power, suffix in enumerate("mun", start=1)},
    **{suffix: (1000**power, 1) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": (1024**power, 1) for power, suffix in enumerate("KMGTPE", start=1)},
}


# The devices of a cluster repeat few amounts, so most texts are parsed only once.
@lru_cache(maxsize=4096)
def _value(text: str) -> int | Fraction:
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(f'"{text}" is not a quantity such as 4, 500m or 16Gi')
    suffix = match["suffix"] or ""
    if suffix in _SCALE:
        times, by = _SCALE[suffix]
    else:
        power = int(suffix[1:])
        times, by = 10 ** max(power, 0), 10 ** max(-power, 0)
    part = match["part"] or ""
    # Digits after the point move into the divisor, so 1.5Gi stays exact.
    number: int = int(f"{match['sign']}{match['whole']}{part}") * times
    by *= int(10 ** len(part))
    if not number % by:
        return number // by
    return Fraction(number, by)


@total_ordering
class Quantity:
    """An amount that keeps its text and is compared by its exact value.

    Attributes:
        text: the quantity as written, kept so that documents come back as they were.
        value: the exact number; an `int` wherever it is whole.
    """

    __slots__ = ("text", "value")

    def __init__(self, text: str | int) -> None:
        """Read a quantity.

        Raises:
            ValueError: `text` is not a quantity.
        """
        self.text = str(text)
        self.value = _value(self.text)

    @classmethod
    def binary(cls, amount: int) -> Quantity:
        """Return an amount as Kubernetes formats it, with the largest binary suffix that leaves it whole."""
        for suffix in ("", "Ki", "Mi", "Gi", "Ti"):
            if amount % 1024 or not amount:
                return cls(f"{amount}{suffix}")
            amount //= 1024
        return cls(f"{amount}Pi")

    @property
    def whole(self) -> bool:
        """Return whether the value is an integer."""
        return isinstance(self.value, int)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Quantity({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        # Equal values such as 1Gi and 1024Mi need equal hashes; an int and a Fraction of the same value have them.
        return hash(self.value)


# Sizes of huge pages as cgroups and the OCI runtime specification write them: `64KB`, `2MB`, `1GB`, counted in 1,024s
# (opencontainers/runtime-spec, config-linux.md, "Huge page limits").


_UNITS: Final = ("", "K", "M", "G", "T")
_NAME: Final = re.compile(r"([0-9]{1,9})([KMGT]?)B", re.ASCII)


def page_size_name(size: int) -> str:
    """Return the name that cgroups have for a page size in bytes: `2MB`."""
    unit = 0
    while size % 1024 == 0 and unit + 1 < len(_UNITS):
        size, unit = size // 1024, unit + 1
    return f"{size}{_UNITS[unit]}B"


def page_size_of(name: str) -> int | None:
    """Return the bytes of a page size such as `2MB`; None if the name is not a page size."""
    match = _NAME.fullmatch(name)
    return int(match[1]) * 1024 ** _UNITS.index(match[2]) or None if match else None
