"""Protobuf's wire format (protobuf.dev/programming-guides/encoding), for the few small messages that kubelet exchanges.

To load protobuf takes a tenth of a start until the first Prepare, and these messages have two levels of texts. What is
read is what protobuf reads, and what it refuses is refused: tests compare the two.
"""

from __future__ import annotations

from typing import Final

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
# The bytes of a 64-bit number, and those of a tag or a length, which have 32 bits.
_LONG: Final = 10
_SHORT: Final = 5
_MAX_LENGTH: Final = (1 << 31) - 1
_MAX_TAG: Final = (1 << 32) - 1
_MASK: Final = (1 << 64) - 1
# Levels of groups and messages, as protobuf has it.
_MAX_DEPTH: Final = 100


class MessageError(Exception):
    """The bytes are not the message that they should be."""


def fields(data: bytes, level: int = 0) -> list[tuple[int, int | bytes | None]]:
    """Return a message's fields in their order, each with its number.

    Args:
        data: the message.
        level: within how many others it is.

    Returns:
        For each the number, if it is a varint; the bytes, if it has a length; None for every other, which no message
        here has.

    Raises:
        MessageError: this is no message.
    """
    found: list[tuple[int, int | bytes | None]] = []
    at = 0
    while at < len(data):
        number, kind, at = _tag(data, at)
        # Within a group protobuf passes over it.
        if not number:
            raise MessageError("there is no field 0")
        value, at = _value(data, at, number, kind, level)
        found.append((number, value))
    return found


def utf8_text(value: bytes) -> str:
    """Return the text of a field.

    Raises:
        MessageError: it is no UTF-8.
    """
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MessageError("a text is no UTF-8") from error


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field that has a length: a text, or a message within the message."""
    return b"%b%b%b" % (_encoded(number << 3 | _BYTES), _encoded(len(value)), value)


def text_field(number: int, value: str) -> bytes:
    """Return a text; an empty one is not sent."""
    return bytes_field(number, value.encode()) if value else b""


def number_field(number: int, value: int) -> bytes:
    """Return a number that is not negative; zero is not sent."""
    return _encoded(number << 3 | _VARINT) + _encoded(value) if value else b""


def _encoded(number: int) -> bytes:
    if number < 1 << 7:
        return bytes((number,))
    pieces = bytearray()
    while number >= 1 << 7:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


def _decoded(data: bytes, at: int, most: int) -> tuple[int, int]:
    """Return a varint of at most so many bytes, and where it ends."""
    number = 0
    for place, byte in enumerate(data[at : at + most]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 1 << 7:
            return number, at + place + 1
    raise MessageError(f"the number at byte {at} of {len(data)} does not end")


def _tag(data: bytes, at: int) -> tuple[int, int, int]:
    tag, end = _decoded(data, at, _SHORT)
    if tag > _MAX_TAG:
        raise MessageError(f"there is no field {tag >> 3}, as byte {at} has it")
    return tag >> 3, tag & 7, end


def _value(data: bytes, at: int, number: int, kind: int, level: int) -> tuple[int | bytes | None, int]:
    """Return a field's value, and where it ends."""
    value: int | bytes | None = None
    if kind == _BYTES:
        length, begin = _decoded(data, at, _SHORT)
        at = begin + length
        value = data[begin:at]
        if length > _MAX_LENGTH:
            raise MessageError(f"field {number} claims {length} bytes, and may have {_MAX_LENGTH}")
    elif kind == _VARINT:
        value, at = _decoded(data, at, _LONG)
        value &= _MASK
    elif kind == _FIXED64:
        at += 8
    elif kind == _FIXED32:
        at += 4
    elif kind == _GROUP and level < _MAX_DEPTH:
        at = _after_group(data, at, number, level + 1)
    else:
        raise MessageError(f"field {number} has the wire type {kind}, which cannot be here")
    if at > len(data):
        raise MessageError(f"field {number} goes on after the {len(data)} bytes of its message")
    return value, at


def _after_group(data: bytes, at: int, group: int, level: int) -> int:
    while at < len(data):
        number, kind, at = _tag(data, at)
        if kind == _GROUP_END:
            if number != group:
                break
            return at
        _, at = _value(data, at, number, kind, level)
    raise MessageError(f"the group {group} does not end")
