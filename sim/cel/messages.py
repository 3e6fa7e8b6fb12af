"""The messages of `google.protobuf` that cel-go knows: their fields, and the values that they stand for.

Source: cel-go (common/types: provider.go, pb/type.go, ConvertToNative of each value), protobuf's well-known types.
Where several members of `google.protobuf.Value` are set, Go takes any of them, and this module the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dranode.sim.cel import stored, wire
from dranode.sim.cel.known import KnownToCEL
from dranode.sim.cel.times import any_moment
from dranode.sim.cel.types import (
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
    list_of,
    map_of,
)
from dranode.sim.cel.values import (
    INT64,
    SECOND,
    Duration,
    MessageValue,
    Timestamp,
    UInt,
    map_key,
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
    kept: stored.Convert


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
        """The value of a message with these fields.

        Raises:
            ValueError: a field cannot keep its value, or there is no such value.
        """
        return self.value({name: self.fields[name].kept(value) for name, value in given.items()})


# --- what messages stand for ---


def _duration(given: Mapping[str, Any]) -> Duration:
    """A duration that is too long is the longest one."""
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


def _any(given: Mapping[str, Any], depth: int = 0) -> Any:
    """The message within."""
    wire.check_depth(depth)
    name = str(given.get("type_url", "")).rpartition("/")[2]
    raw = given.get("value", b"")
    if name == f"{_PREFIX}Any":
        return _any(wire.scalar_fields(raw, _WIRE[name]), depth + 1)
    if name in _JSON:
        return _JSON[name](raw, depth)
    if name not in _WIRE:
        raise ValueError(f"unsupported conversion to ref.Val: (*dynamicpb.MessageKind) of '{name}'")
    return MESSAGES[name].value(wire.scalar_fields(raw, _WIRE[name]))


# --- JSON in protobuf's wire format ---


def _read_value(raw: bytes, depth: int) -> Any:
    """A `google.protobuf.Value`; one member is there, and messages that are written in parts are joined."""
    wire.check_depth(depth)
    member, value, parts = 0, None, b""
    for record in wire.records(raw):
        field = _WIRE[f"{_PREFIX}Value"].get(record.number)
        if field is None or field.written != record.written:
            continue
        parts = parts + record.value if record.number == member and field.name in _JSON else record.value
        member = record.number
        value = _JSON[field.name](parts, depth + 1) if field.name in _JSON else field.made(record.value)
    return None if member == _NULL_MEMBER else value


def _read_list(raw: bytes, depth: int) -> list[Any]:
    return [_read_value(one.value, depth + 1) for one in wire.records(raw) if one[:2] == (1, wire.BYTES[0])]


def _read_struct(raw: bytes, depth: int) -> dict[Any, Any]:
    entries = [wire.scalar_fields(one.value, _ENTRY) for one in wire.records(raw) if one[:2] == (1, wire.BYTES[0])]
    return {map_key(one.get("key", "")): _read_value(one.get("value", b""), depth + 1) for one in entries}


_NULL_MEMBER: Final = 1
_ENTRY: Final = {1: wire.WireField("key", *wire.STRING), 2: wire.WireField("value", *wire.BYTES)}
_JSON: Final[Mapping[str, Callable[[bytes, int], Any]]] = {
    f"{_PREFIX}ListValue": _read_list,
    f"{_PREFIX}Struct": _read_struct,
    f"{_PREFIX}Value": _read_value,
}


# --- the messages ---


def _wrapper(kind: CELType, kept: stored.Convert, zero: Any) -> MessageKind:
    fields = {"value": MessageField(kind, kept)}
    return MessageKind(replace(kind, nullable=True), fields, lambda given: given.get("value", zero))


_int64, _uint64, _bool, _bytes = stored.plain(int), stored.plain(UInt), stored.plain(bool), stored.plain(bytes)
_int32: Final = stored.plain(int, _INT32)
_OBJECT: Final = map_of(STRING, DYN)
_TIMES: Final = {"seconds": MessageField(INT, _int64), "nanos": MessageField(INT, _int32)}
_VALUES: Final = {"values": MessageField(list_of(DYN), stored.json_list)}
_MEMBERS: Final = {
    "null_value": MessageField(INT, _int32),
    "number_value": MessageField(DOUBLE, stored.double_value),
    "string_value": MessageField(STRING, stored.text_value),
    "bool_value": MessageField(BOOL, _bool),
    "struct_value": MessageField(_OBJECT, lambda value: stored.json_object(stored.optional_contents(value))),
    "list_value": MessageField(list_of(DYN), stored.list_or_fields),
}
MESSAGES: Final[Mapping[str, MessageKind]] = {
    "google.protobuf.BoolValue": _wrapper(BOOL, _bool, zero=False),
    "google.protobuf.BytesValue": _wrapper(BYTES, _bytes, b""),
    "google.protobuf.DoubleValue": _wrapper(DOUBLE, stored.double_value, 0.0),
    "google.protobuf.FloatValue": _wrapper(DOUBLE, stored.single_value, 0.0),
    "google.protobuf.Int32Value": _wrapper(INT, _int32, 0),
    "google.protobuf.Int64Value": _wrapper(INT, _int64, 0),
    "google.protobuf.StringValue": _wrapper(STRING, stored.text_value, ""),
    "google.protobuf.UInt32Value": _wrapper(UINT, stored.plain(UInt, _UINT32), UInt(0)),
    "google.protobuf.UInt64Value": _wrapper(UINT, _uint64, UInt(0)),
    "google.protobuf.Duration": MessageKind(DURATION, _TIMES, _duration),
    "google.protobuf.Timestamp": MessageKind(TIMESTAMP, _TIMES, _timestamp),
    "google.protobuf.Any": MessageKind(
        ANY, {"type_url": MessageField(STRING, stored.text_value), "value": MessageField(BYTES, _bytes)}, _any
    ),
    "google.protobuf.Empty": MessageKind(EMPTY, {}, lambda _: MessageValue(EMPTY.name)),
    "google.protobuf.ListValue": MessageKind(list_of(DYN), _VALUES, lambda given: given.get("values", [])),
    "google.protobuf.Struct": MessageKind(
        _OBJECT, {"fields": MessageField(_OBJECT, stored.json_object)}, lambda given: given.get("fields", {})
    ),
    "google.protobuf.Value": MessageKind(DYN, _MEMBERS, _value),
}
CONSTANTS: Final = {"google.protobuf.NullValue.NULL_VALUE": 0}


def _wire(*fields: tuple[str, wire.WireScalar]) -> Mapping[int, wire.WireField]:
    return {number: wire.WireField(name, *how) for number, (name, how) in enumerate(fields, 1)}


_WRITTEN_TIMES: Final = _wire(("seconds", wire.INT64), ("nanos", wire.INT32))
_WRITTEN_VALUES: Final = {
    "BoolValue": wire.BOOL,
    "BytesValue": wire.BYTES,
    "DoubleValue": wire.DOUBLE,
    "FloatValue": wire.FLOAT,
    "Int32Value": wire.INT32,
    "Int64Value": wire.INT64,
    "StringValue": wire.STRING,
    "UInt32Value": wire.UINT32,
    "UInt64Value": wire.UINT64,
}
_WIRE: Final[Mapping[str, Mapping[int, wire.WireField]]] = {
    **{f"{_PREFIX}{name}": _wire(("value", how)) for name, how in _WRITTEN_VALUES.items()},
    f"{_PREFIX}Any": _wire(("type_url", wire.STRING), ("value", wire.BYTES)),
    f"{_PREFIX}Duration": _WRITTEN_TIMES,
    f"{_PREFIX}Empty": {},
    f"{_PREFIX}Timestamp": _WRITTEN_TIMES,
    f"{_PREFIX}Value": _wire(
        ("null_value", wire.INT32),
        ("number_value", wire.DOUBLE),
        ("string_value", wire.STRING),
        ("bool_value", wire.BOOL),
        (f"{_PREFIX}Struct", wire.BYTES),
        (f"{_PREFIX}ListValue", wire.BYTES),
    ),
}


def messages(device: CELType, fields: Mapping[str, CELType], known: KnownToCEL) -> Mapping[str, MessageKind]:
    """Every name that a message can be made of, as far as the compiler minds: some cannot be made."""
    kept = {name: MessageField(kind, stored.optional_contents) for name, kind in fields.items()}
    unmade = {
        device.name: MessageKind(device, kept, _unknown(device.name)),
        NULL.name: MessageKind(NULL, {}, _unknown(NULL.name)),
        "duration": MessageKind(DURATION, _TIMES, _unknown("duration")),
        "timestamp": MessageKind(TIMESTAMP, _TIMES, _unknown("timestamp")),
        **({"list": MessageKind(list_of(DYN), _VALUES, _unknown("list"))} if known.cel_go_29 else {}),
    }
    return {**MESSAGES, **unmade}
