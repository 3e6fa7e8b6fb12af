"""Reads protobuf's wire format, in which a `google.protobuf.Any` keeps another message.

Source: protobuf's encoding; google.golang.org/protobuf (protowire, impl), which says what is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from dranode.sim.cel.errors import CELCancelledError
from dranode.sim.cel.values import UInt, look_at

_VARINT, _FIXED64, _LENGTH, _GROUP, _END, _FIXED32 = range(6)
_VARINT_BYTES: Final = 10
_LAST_NUMBER: Final = (1 << 29) - 1
_MASK: Final = (1 << 64) - 1
# Go reads 10,000 levels.
_MAX_DEPTH: Final = 100


WireScalar: TypeAlias = tuple[int, Callable[[Any], Any]]


class WireField(NamedTuple):
    """A field: its name, how it is written, and what is made of what was read."""

    name: str
    written: int
    made: Callable[[Any], Any]


class WireRecord(NamedTuple):
    """A field as it was read."""

    number: int
    written: int
    value: Any


def scalar_fields(raw: bytes, fields: Mapping[int, WireField]) -> dict[str, Any]:
    """The values of the fields by name; what stands there last counts, and fields that are unknown do not.

    Raises:
        ValueError: it is no message.
    """
    given: dict[str, Any] = {}
    for record in records(raw):
        field = fields.get(record.number)
        if field is not None and field.written == record.written:
            given.pop(field.name, None)
            given[field.name] = field.made(record.value)
    return given


def records(raw: bytes) -> Iterator[WireRecord]:
    """The fields in the order in which they are written, without groups."""
    at = 0
    while at < len(raw):
        look_at(1)
        tag, at = _varint(raw, at)
        number, written = tag >> 3, tag & 7
        if not 1 <= number <= _LAST_NUMBER:
            raise _damaged()
        value, at = _value(raw, at, number, written, 0)
        if written != _GROUP:
            yield WireRecord(number, written, value)


def _value(raw: bytes, at: int, number: int, written: int, depth: int) -> tuple[Any, int]:
    if written == _VARINT:
        return _varint(raw, at)
    if written == _GROUP:
        return None, _after_group(raw, at, number, depth)
    if written == _LENGTH:
        length, at = _varint(raw, at)
    else:
        length = {_FIXED64: 8, _FIXED32: 4}.get(written, -1)
    if length < 0 or at + length > len(raw):
        raise _damaged()
    return raw[at : at + length], at + length


def _after_group(raw: bytes, at: int, number: int, depth: int) -> int:
    check_depth(depth)
    while True:
        tag, at = _varint(raw, at)
        if tag & 7 == _END:
            if tag >> 3 != number:
                raise _damaged()
            return at
        _, at = _value(raw, at, tag >> 3, tag & 7, depth + 1)


def check_depth(depth: int) -> None:
    """Refuse messages within messages within messages.

    Raises:
        CELCancelledError: they are more than are read here.
    """
    if depth > _MAX_DEPTH:
        raise CELCancelledError(f"operation cancelled: a message within more than {_MAX_DEPTH} others")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES):
        if at + index >= len(raw):
            break
        byte = raw[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 1 << 7:
            if value > _MASK:
                break
            return value, at + index + 1
    raise _damaged()


def _damaged() -> ValueError:
    return ValueError("anypb.UnmarshalNew() failed: proto: cannot parse invalid wire-format data")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError("anypb.UnmarshalNew() failed: string field contains invalid UTF-8") from error


def _signed(bits: int) -> Callable[[int], int]:
    half = 1 << (bits - 1)
    return lambda raw: (raw + half) % (2 * half) - half


BOOL: Final[WireScalar] = (_VARINT, bool)
INT32: Final[WireScalar] = (_VARINT, _signed(32))
INT64: Final[WireScalar] = (_VARINT, _signed(64))
UINT32: Final[WireScalar] = (_VARINT, lambda raw: UInt(raw % (1 << 32)))
UINT64: Final[WireScalar] = (_VARINT, UInt)
DOUBLE: Final[WireScalar] = (_FIXED64, lambda raw: float(struct.unpack("<d", raw)[0]))
FLOAT: Final[WireScalar] = (_FIXED32, lambda raw: float(struct.unpack("<f", raw)[0]))
STRING: Final[WireScalar] = (_LENGTH, _text)
BYTES: Final[WireScalar] = (_LENGTH, lambda raw: raw)
