"""Quantities and versions, as Kubernetes has them in CEL (k8s.io/apimachinery/pkg/api/resource; blang/semver)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dranode.api.quantity import Quantity
from dranode.api.semver import is_semver, semver_from_tolerant, version_key
from dranode.sim.cel.values import INT64, QuantityValue, SemverValue

_PARTS: Final = re.compile(r"[+-]?0*([0-9]*)(?:\.([0-9]*))?([A-Za-z]*[+-]?[0-9]*)", re.ASCII)
_DECIMALS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARIES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_FACTORS: Final = 18
_NANO: Final = -9
_LARGEST: Final = (1 << 63) - 1
_UINT64: Final = 1 << 64


@lru_cache(maxsize=4096)
def quantity_from(text: str) -> QuantityValue:
    """The quantity; it knows in which of its two forms Kubernetes keeps it, as that tells what is an integer.

    Raises:
        ValueError: `text` is none.
    """
    found = _PARTS.fullmatch(text)
    if found is None or not text:
        raise ValueError(f'"{text}" is not a quantity such as 4, 500m or 16Gi')
    # Kubernetes takes a suffix alone for nothing of it.
    bare = _is_suffix(found[3]) and not set(text.removesuffix(found[3])) & set("0123456789")
    number = Fraction(Quantity(f"0{found[3]}" if bare else text).value)
    whole, part, suffix = found[1] or "0", found[2] or "", found[3]
    scale = _scale(whole, part, suffix)
    if scale is not None and abs(int(whole + part)) in INT64 and _unscaled(number, scale) is not None:
        return QuantityValue(number, scale)
    rounded = Fraction(math.ceil(abs(number) * 10**9), 10**9)
    if suffix in _BINARIES:
        rounded = min(rounded, Fraction(_LARGEST))
    return QuantityValue(-rounded if number < 0 else rounded, None)


def _is_suffix(text: str) -> bool:
    return text in _DECIMALS or text in _BINARIES or re.fullmatch(r"[eE][+-]?[0-9]{1,3}", text) is not None


def _scale(whole: str, part: str, suffix: str) -> int | None:
    """The power of ten of the short form; None if there is only the long one."""
    if suffix in _BINARIES:
        exponent = _BINARIES[suffix]
        short = not part and 15 - len(whole) - int(exponent * 3 / 10) - 1 >= 0
        return 0 if short else None
    exponent = _DECIMALS[suffix] if suffix in _DECIMALS else int(suffix[1:])
    scale = exponent - len(part)
    return scale if len(whole) + len(part) <= _FACTORS and scale >= _NANO else None


def _unscaled(number: Fraction, scale: int) -> int | None:
    """The number in units of that power of ten, if it is whole and fits."""
    units = number / Fraction(10) ** scale
    return units.numerator if units.denominator == 1 and units.numerator in INT64 else None


def is_quantity(text: str) -> bool:
    """Return whether the text is a quantity."""
    return _is(quantity_from, text)


def is_integer(quantity: QuantityValue) -> bool:
    """Return whether Kubernetes knows that it is a whole number of 64 bits."""
    return quantity.scale is not None and quantity.scale >= 0 and quantity.number.numerator in INT64


def as_integer(quantity: QuantityValue) -> int:
    """The whole number."""
    if not is_integer(quantity):
        raise ValueError("cannot convert value to integer")
    return quantity.number.numerator


def as_float(quantity: QuantityValue) -> float:
    """The nearest double, with the errors of a multiplication."""
    scale = _NANO if quantity.scale is None else quantity.scale
    return float(int(quantity.number / Fraction(10) ** scale)) * 10.0**scale if scale else float(quantity.number)


def sign(quantity: QuantityValue) -> int:
    """-1, 0 or 1."""
    return (quantity.number > 0) - (quantity.number < 0)


def quantity_sum(quantity: QuantityValue, other: QuantityValue | int) -> QuantityValue:
    """The sum."""
    given = other if isinstance(other, QuantityValue) else QuantityValue(Fraction(other), 0)
    total = quantity.number + given.number
    if quantity.scale is None or given.scale is None:
        return QuantityValue(total, None, computed=True)
    if not quantity.number or not given.number:
        kept = quantity if not given.number else given
        return replace(kept, computed=True)
    scale = min(quantity.scale, given.scale)
    fits = all(_unscaled(one, scale) is not None for one in (quantity.number, given.number, total))
    return QuantityValue(total, scale if fits else None, computed=True)


def quantity_difference(quantity: QuantityValue, other: QuantityValue | int) -> QuantityValue:
    """The difference."""
    given = other if isinstance(other, QuantityValue) else QuantityValue(Fraction(other), 0)
    return quantity_sum(quantity, replace(given, number=-given.number))


@lru_cache(maxsize=4096)
def semver_from(text: str, normalize: bool = False) -> SemverValue:  # noqa: FBT001, FBT002 - CEL's positional argument
    """The version 2.0.0, or a loosely written one if it is normalized.

    Raises:
        ValueError: `text` is none.
    """
    text = semver_from_tolerant(text) if normalize else text
    if not is_semver(text):
        raise ValueError(f'"{text}" is not a semantic version such as 1.10.0')
    key = version_key(text)
    if max(key[:3]) >= _UINT64:
        raise ValueError(f'"{text}" has a number of more than 64 bits')
    return SemverValue(text, key)


def is_semantic_version(text: str, normalize: bool = False) -> bool:  # noqa: FBT001, FBT002 - CEL's positional argument
    """Return whether the text is a version."""
    return _is(semver_from, text, normalize)


def order(left: QuantityValue | SemverValue, right: QuantityValue | SemverValue) -> int:
    """-1, 0 or 1 of two quantities or two versions."""
    one = left.number if isinstance(left, QuantityValue) else left.key
    two = right.number if isinstance(right, QuantityValue) else right.key
    return int(one > two) - int(one < two)


def _is(read: Callable[..., object], *arguments: object) -> bool:
    try:
        read(*arguments)
    except ValueError:
        return False
    return True
