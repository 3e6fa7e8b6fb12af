"""The messages of `google.protobuf` in cel-go: their fields, and the CEL values to which they are converted.

Source: cel-go (common/types: provider.go, pb/type.go, ConvertToNative of each value), protobuf's well-known types.
Where several members of `google.protobuf.Value` are set, Go takes any of them, and this module the last.
"""

import base64
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dranode.sim.cel.declarations import (
    ANY,
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    EMPTY,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    CELType,
    KnownToCEL,
    list_of,
    map_of,
)
from dranode.sim.cel.values import (
    INT64,
    SECOND,
    CIDRValue,
    Duration,
    IPValue,
    MessageValue,
    OptionalValue,
    SemverValue,
    Timestamp,
    UInt,
    URLValue,
    any_moment,
    duration_text,
    key_value,
    look_at,
    map_key,
    timestamp_text,
    type_name,
)

# The integers that a double represents exactly. Others become text in JSON.
_SAFE: Final = range(-(1 << 53) + 1, 1 << 53)
# The number of bytes converted to text that count as one element.
_BYTES_LOOKED_AT: Final = 20
_GO_NAMES: Final = ("values", "Values")

Convert = Callable[[Any], Any]


def plain(kind: type, allowed: range | None = None) -> Convert:
    """Return a conversion that accepts only values of a type, within a range."""

    def stored(value: Any) -> Any:
        content = optional_contents(value)
        # A range looks one by one for what is no plain integer.
        if type(content) is not kind or (isinstance(content, int) and allowed and int(content) not in allowed):
            raise _no_conversion(content, kind.__name__)
        return content

    return stored


def optional_contents(value: Any) -> Any:
    """Return the value inside nested optional values."""
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
    """Return the nearest 32-bit number."""
    number = double_value(value)
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def json_list(value: Any) -> list[Any]:
    """Return a list of JSON values."""
    if not isinstance(value, list):
        raise _no_conversion(value, "google.protobuf.ListValue")
    look_at(len(value))
    return [json_value(element) for element in value]


def json_object(value: Any) -> dict[Any, Any]:
    """Return a JSON object."""
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
    """Return the JSON form of a value, which a message stores instead of it.

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


_PREFIX: Final = "google.protobuf."
_INT32: Final = range(-(1 << 31), 1 << 31)
_UINT32: Final = range(1 << 32)


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field.

    Attributes:
        kind: its type, as the checker has it.
        kept: what the message keeps of a value, which may be of any type where the checker could not tell.
    """

    kind: CELType
    kept: Convert


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A kind of message.

    Attributes:
        result: the type that an expression has which makes one.
        fields: those that it may have.
        value: makes the value from those of the fields that are given.
    """

    result: CELType
    fields: Mapping[str, MessageField]
    value: Callable[[Mapping[str, Any]], Any]

    def made(self, given: Mapping[str, Any]) -> Any:
        """Return the value of a message with these fields.

        Raises:
            ValueError: a field cannot keep its value, or there is no such value.
        """
        return self.value({name: self.fields[name].kept(value) for name, value in given.items()})


# --- values of messages ---


def _duration(given: Mapping[str, Any]) -> Duration:
    """Return a duration; one that is too long becomes the longest."""
    seconds = given.get("seconds", 0)
    total = seconds * SECOND + given.get("nanos", 0)
    if seconds * SECOND in INT64 and total in INT64:
        return Duration(total)
    return Duration(INT64[0] if seconds < 0 else INT64[-1])


def _timestamp(given: Mapping[str, Any]) -> Timestamp:
    """Any any_moment, also one that no text can say."""
    return any_moment(given.get("seconds", 0) * SECOND + given.get("nanos", 0))


def _value(given: Mapping[str, Any]) -> Any:
    *_, (name, value) = ("null_value", None), *given.items()
    return None if name == "null_value" else value


def _unknown(name: str) -> Callable[[Mapping[str, Any]], Any]:
    def value(_: Mapping[str, Any]) -> Any:
        raise ValueError(f"unknown type '{name}'")

    return value


def _any(_: Mapping[str, Any]) -> Any:
    """Refuse what Kubernetes would unpack: a message that is written as bytes, which no selector needs.

    Raises:
        ValueError: always.
    """
    raise ValueError("this simulator does not unpack google.protobuf.Any")


# --- the messages ---


def _wrapper(kind: CELType, kept: Convert, zero: Any) -> MessageKind:
    fields = {"value": MessageField(kind, kept)}
    return MessageKind(replace(kind, nullable=True), fields, lambda given: given.get("value", zero))


_int64, _uint64, _bool, _bytes = plain(int), plain(UInt), plain(bool), plain(bytes)
_int32: Final = plain(int, _INT32)
_OBJECT: Final = map_of(STRING, DYN)
_TIMES: Final = {"seconds": MessageField(INT, _int64), "nanos": MessageField(INT, _int32)}
_VALUES: Final = {"values": MessageField(list_of(DYN), json_list)}
_MEMBERS: Final = {
    "null_value": MessageField(INT, _int32),
    "number_value": MessageField(DOUBLE, double_value),
    "string_value": MessageField(STRING, text_value),
    "bool_value": MessageField(BOOL, _bool),
    "struct_value": MessageField(_OBJECT, lambda value: json_object(optional_contents(value))),
    "list_value": MessageField(list_of(DYN), list_or_fields),
}
MESSAGES: Final[Mapping[str, MessageKind]] = {
    "google.protobuf.BoolValue": _wrapper(BOOL, _bool, zero=False),
    "google.protobuf.BytesValue": _wrapper(BYTES, _bytes, b""),
    "google.protobuf.DoubleValue": _wrapper(DOUBLE, double_value, 0.0),
    "google.protobuf.FloatValue": _wrapper(DOUBLE, single_value, 0.0),
    "google.protobuf.Int32Value": _wrapper(INT, _int32, 0),
    "google.protobuf.Int64Value": _wrapper(INT, _int64, 0),
    "google.protobuf.StringValue": _wrapper(STRING, text_value, ""),
    "google.protobuf.UInt32Value": _wrapper(UINT, plain(UInt, _UINT32), UInt(0)),
    "google.protobuf.UInt64Value": _wrapper(UINT, _uint64, UInt(0)),
    "google.protobuf.Duration": MessageKind(DURATION, _TIMES, _duration),
    "google.protobuf.Timestamp": MessageKind(TIMESTAMP, _TIMES, _timestamp),
    "google.protobuf.Any": MessageKind(
        ANY, {"type_url": MessageField(STRING, text_value), "value": MessageField(BYTES, _bytes)}, _any
    ),
    "google.protobuf.Empty": MessageKind(EMPTY, {}, lambda _: MessageValue(EMPTY.name)),
    "google.protobuf.ListValue": MessageKind(list_of(DYN), _VALUES, lambda given: given.get("values", [])),
    "google.protobuf.Struct": MessageKind(
        _OBJECT, {"fields": MessageField(_OBJECT, json_object)}, lambda given: given.get("fields", {})
    ),
    "google.protobuf.Value": MessageKind(DYN, _MEMBERS, _value),
}
CONSTANTS: Final = {"google.protobuf.NullValue.NULL_VALUE": 0}


def messages(device: CELType, fields: Mapping[str, CELType], known: KnownToCEL) -> Mapping[str, MessageKind]:
    """Every name that a message can be made of, as far as the compiler minds: some cannot be made."""
    kept = {name: MessageField(kind, optional_contents) for name, kind in fields.items()}
    unmade = {
        device.name: MessageKind(device, kept, _unknown(device.name)),
        NULL.name: MessageKind(NULL, {}, _unknown(NULL.name)),
        "duration": MessageKind(DURATION, _TIMES, _unknown("duration")),
        "timestamp": MessageKind(TIMESTAMP, _TIMES, _unknown("timestamp")),
        **({"list": MessageKind(list_of(DYN), _VALUES, _unknown("list"))} if known.cel_go_29 else {}),
    }
    return {**MESSAGES, **unmade}
