"""The form in which fields of messages keep a value: a plain value of one type, or JSON.

Source: cel-go (common/types: ConvertToNative of each value), k8s.io/apiserver/pkg/cel.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any, Final

from dranode.sim.cel.times import duration_text, timestamp_text
from dranode.sim.cel.values import (
    CIDRValue,
    Duration,
    IPValue,
    MessageValue,
    OptionalValue,
    SemverValue,
    Timestamp,
    URLValue,
    key_value,
    look_at,
    map_key,
    type_name,
)

# Whole numbers that a double has exactly; JSON has others as text.
_SAFE: Final = range(-(1 << 53) + 1, 1 << 53)
# So many bytes that become text count as an element.
_BYTES_LOOKED_AT: Final = 20
_GO_NAMES: Final = ("values", "Values")

Convert = Callable[[Any], Any]


def plain(kind: type, allowed: range | None = None) -> Convert:
    """A conversion that keeps values of that type and no other, within the range."""

    def stored(value: Any) -> Any:
        given = optional_contents(value)
        # A range looks one by one for what is no plain integer.
        if type(given) is not kind or (isinstance(given, int) and allowed and int(given) not in allowed):
            raise _no_conversion(given, kind.__name__)
        return given

    return stored


def optional_contents(value: Any) -> Any:
    """The value within optional values."""
    while type(value) is OptionalValue:
        if not value.present:
            raise ValueError("optional.none() dereference")
        value = value.value
    return value


def _no_conversion(value: Any, name: str) -> ValueError:
    return ValueError(f"field type conversion error: type conversion error from '{type_name(value)}' to '{name}'")


def text_value(value: Any) -> str:
    """Kubernetes' own types are kept as their text; a quantity is refused here, whose format nobody has kept."""
    value = optional_contents(value)
    match value:
        case str():
            return value
        case IPValue():
            return str(value.address)
        case CIDRValue():
            return str(value.network)
        case SemverValue() | URLValue():
            return value.text
    raise _no_conversion(value, "string")


double_value: Final = plain(float)


def single_value(value: Any) -> float:
    """The nearest number of 32 bits."""
    number = double_value(value)
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def json_list(value: Any) -> list[Any]:
    """A list of JSON."""
    if not isinstance(value, list):
        raise _no_conversion(value, "google.protobuf.ListValue")
    look_at(len(value))
    return [json_value(one) for one in value]


def json_object(value: Any) -> dict[Any, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise _no_conversion(value, "google.protobuf.Struct")
    look_at(len(value))
    return {map_key(text_value(key_value(key))): json_value(one) for key, one in value.items()}


def list_or_fields(value: Any) -> list[Any]:
    """A list, or a map that has the message's one field by the name that it has in Go."""
    value = optional_contents(value)
    if isinstance(value, dict) and all(key in _GO_NAMES for key in value):
        return json_list([*value.values(), []][0])
    return json_list(value)


def json_value(value: Any) -> Any:
    """The value as JSON has it, which a message keeps in its place.

    Raises:
        ValueError: JSON has none.
    """
    value = optional_contents(value)
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    for type_, convert in _JSON_VALUES:
        if isinstance(value, type_):
            return convert(value)
    raise _no_conversion(value, "google.protobuf.Value")


def _base64(value: bytes) -> str:
    look_at(len(value) // _BYTES_LOOKED_AT)
    return base64.b64encode(value).decode()


_JSON_VALUES: Final[tuple[tuple[type, Convert], ...]] = (
    (int, lambda value: float(value) if int(value) in _SAFE else str(int(value))),
    (bytes, _base64),
    (Duration, duration_text),
    (Timestamp, timestamp_text),
    (list, json_list),
    (dict, json_object),
    (MessageValue, lambda _: {}),
)
