"""The conversions of CEL's standard library (cel-go: common/types)."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Any, Final

from dranode.sim.cel.times import (
    duration_from,
    duration_text,
    timestamp,
    timestamp_from,
    timestamp_text,
    unix_seconds,
)
from dranode.sim.cel.values import (
    INT64,
    SECOND,
    UINT64,
    CIDRValue,
    Duration,
    IPValue,
    Timestamp,
    TypeValue,
    UInt,
    type_name,
)

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_UNSIGNED: Final = re.compile(r"[0-9]+", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))", re.ASCII
)
_HEX_DOUBLE: Final = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+", re.ASCII)
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")
_EXPONENTS: Final = range(-4, 6)


def to_bool(value: Any) -> bool:
    """`bool(value)`."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in (*_TRUE, *_FALSE):
        return value in _TRUE
    raise _no_conversion(value, "bool")


def to_bytes(value: Any) -> bytes:
    """`bytes(value)`."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise _no_conversion(value, "bytes")


def to_double(value: Any) -> float:
    """`double(value)`."""
    if type(value) in (int, UInt, float):
        return float(value)
    if isinstance(value, str):
        if _HEX_DOUBLE.fullmatch(value):
            return float.fromhex(value)
        if _DOUBLE.fullmatch(value):
            number = float(value)
            if not (math.isinf(number) and value.strip("+-")[0].isdigit()):
                return number
    raise _no_conversion(value, "double")


def to_int(value: Any) -> int:
    """`int(value)`."""
    match value:
        case bool():
            raise _no_conversion(value, "int")
        case UInt() | int():
            return _within(int(value), INT64)
        case float():
            return _from_double(value, -(2.0**63), 2.0**63, above=False)
        case str() if _INTEGER.fullmatch(value) and int(value) in INT64:
            return int(value)
        case Duration():
            return value.nanoseconds
        case Timestamp():
            return unix_seconds(value)
    raise _no_conversion(value, "int")


def to_uint(value: Any) -> UInt:
    """`uint(value)`."""
    match value:
        case bool():
            raise _no_conversion(value, "uint")
        case int():
            return UInt(_within(int(value), UINT64))
        case float():
            return UInt(_from_double(value, 0.0, 2.0**64, above=True))
        case str() if _UNSIGNED.fullmatch(value) and int(value) in UINT64:
            return UInt(value)
    raise _no_conversion(value, "uint")


def _within(number: int, numbers: range) -> int:
    if number not in numbers:
        raise ValueError("integer overflow")
    return number


def _from_double(number: float, least: float, most: float, *, above: bool) -> int:
    if not math.isfinite(number) or number >= most or number < least or (number == least and not above):
        raise ValueError("integer overflow")
    return int(number)


def to_string(value: Any) -> str:  # noqa: C901, PLR0911 - one for each kind
    """`string(value)`."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int():
            return str(int(value))
        case float():
            return double_text(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise ValueError("invalid UTF-8 in bytes, cannot convert to string") from error
        case Duration():
            return duration_text(value)
        case Timestamp():
            return timestamp_text(value)
        case IPValue():
            return str(value.address)
        case CIDRValue():
            return str(value.network)
    raise _no_conversion(value, "string")


def double_text(number: float) -> str:
    """The shortest text of a double, as Go's `%g` writes it."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
    digits, _, exponent = f"{number!r}".partition("e")
    mantissa = digits.lstrip("-").replace(".", "")
    point = len(digits.lstrip("-").partition(".")[0]) + int(exponent or 0)
    stripped = mantissa.lstrip("0")
    point -= len(mantissa) - len(stripped)
    stripped = stripped.rstrip("0")
    sign = "-" if struct.pack(">d", number)[0] & 0x80 else ""
    if not stripped:
        return f"{sign}0"
    if point - 1 not in _EXPONENTS:
        fraction = f".{stripped[1:]}" if len(stripped) > 1 else ""
        return f"{sign}{stripped[0]}{fraction}e{'-' if point < 1 else '+'}{abs(point - 1):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{stripped}"
    whole = stripped[:point].ljust(point, "0")
    return f"{sign}{whole}.{stripped[point:]}" if stripped[point:] else f"{sign}{whole}"


def to_duration(value: Any) -> Duration:
    """`duration(value)`; releases that declare it of integers have no such conversion."""
    match value:
        case Duration():
            return value
        case str():
            return duration_from(value)
    raise _no_conversion(value, "google.protobuf.Duration")


def to_timestamp(value: Any) -> Timestamp:
    """`timestamp(value)`."""
    match value:
        case Timestamp():
            return value
        case str():
            return timestamp_from(value)
        case bool():
            raise _no_conversion(value, "google.protobuf.Timestamp")
        case int():
            return timestamp(int(value) * SECOND)
    raise _no_conversion(value, "google.protobuf.Timestamp")


def _no_conversion(value: Any, kind: str) -> ValueError:
    return ValueError(f"type conversion error from '{type_name(value)}' to '{kind}'")


CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "bool": to_bool,
    "bytes": to_bytes,
    "double": to_double,
    "duration": to_duration,
    "dyn": lambda value: value,
    "int": to_int,
    "string": to_string,
    "timestamp": to_timestamp,
    "type": lambda value: TypeValue(type_name(value)),
    "uint": to_uint,
}
