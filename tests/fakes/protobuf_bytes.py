"""Bytes that are protobuf's messages, or nearly: known and unknown fields of every wire type, cut and altered."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import strategies as st

_NUMBERS = st.integers(1, 6) | st.sampled_from((0, 15, 16, 2047, 2048, (1 << 29) - 1))


def _varint(number: int, padding: int = 0) -> bytes:
    pieces = bytearray()
    while number >= 128 or padding:
        padding -= number < 128
        pieces.append(number & 127 | 128)
        number >>= 7
    return bytes((*pieces, number))


_VARINTS = st.builds(_varint, st.integers(0, (1 << 64) - 1) | st.integers(0, 300), st.sampled_from((0, 0, 0, 1, 4, 9)))
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8).map(str.encode) | st.binary(max_size=4)


def _field(number: int, kind: int, padding: int, value: bytes) -> bytes:
    return _varint(number << 3 | kind, padding) + value


def _of(kind: int, values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(_field, _NUMBERS, st.just(kind), st.sampled_from((0, 0, 0, 0, 1, 5)), values)


def _with_length(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return values.map(lambda value: _varint(len(value)) + value)


def _longer(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    groups = st.builds(
        lambda number, within, end: _varint(number << 3 | 3) + within + _varint(end << 3 | 4),
        _NUMBERS,
        inner,
        _NUMBERS,
    )
    whole = st.builds(
        lambda number, within: _varint(number << 3 | 3) + within + _varint(number << 3 | 4), _NUMBERS, inner
    )
    one = _of(2, _with_length(inner)) | whole | groups
    return st.lists(one | inner, max_size=3).map(b"".join)


_FIELDS = st.one_of(
    _of(0, _VARINTS),
    _of(1, st.binary(min_size=8, max_size=8)),
    _of(2, _with_length(_TEXTS)),
    _of(5, st.binary(min_size=4, max_size=4)),
)
_WHOLE = st.recursive(st.lists(_FIELDS, max_size=4).map(b"".join), _longer, max_leaves=6)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(_WHOLE))
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


MESSAGES = _WHOLE | _damaged() | st.binary(max_size=12)


def read_by_protobuf(kind: type[Any], data: bytes) -> Any:
    """Return the message as protobuf reads it; None if it refuses it."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None
