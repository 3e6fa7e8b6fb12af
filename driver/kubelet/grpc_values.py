"""Encodes and decodes gRPC over HTTP/2: messages after their length, statuses, timeouts (gRPC's PROTOCOL-HTTP2.md).

Values alone; `http2` carries them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final
from urllib.parse import quote, unquote

# A byte that says whether it is compressed, and four of length.
PREFIX_BYTES: Final = 5
# Of a message that anybody sends; gRPC's own default.
MAX_MESSAGE: Final = 4 << 20
# A status message travels in a header, and clients take 8 KiB of those.
_MAX_REASON: Final = 1000
# What prints in ASCII, but for the percent sign.
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_DIGITS: Final = 8


class Status(IntEnum):
    """The statuses that are used here, by the numbers of gRPC's status codes (statuscodes.md)."""

    OK = 0
    UNKNOWN = 2
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RPCError(Exception):
    """A call that ends with another status than OK.

    Attributes:
        status: gRPC's number; one that `Status` does not have is possible.
        reason: the status message.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def with_length(message: bytes) -> bytes:
    """Return a message as it travels: a zero byte (not compressed), four bytes of length (big-endian), the message."""
    return b"\0%b%b" % (len(message).to_bytes(4), message)


def without_length(data: bytes | bytearray) -> bytes:
    """Return the only message of a call, from the form that `with_length` gives it.

    Raises:
        RPCError: INTERNAL if there is none or more than one, UNIMPLEMENTED if it is compressed.
    """
    if len(data) < PREFIX_BYTES or len(data) != PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES]):
        raise RPCError(Status.INTERNAL, f"{len(data)} bytes came, which are not one whole message")
    if data[0]:
        raise RPCError(Status.UNIMPLEMENTED, "the message is compressed, and only identity is understood here")
    return bytes(data[PREFIX_BYTES:])


def encoded_reason(reason: str) -> bytes:
    """Return a status message as a header carries it: percent-encoded UTF-8, cut after 1,000 characters."""
    return quote(reason[:_MAX_REASON], safe=_PLAIN, errors="replace").encode()


def decoded_reason(header: bytes) -> str:
    """Return the status message of a header; what is no UTF-8 is replaced."""
    return unquote(header.decode("latin-1"), errors="replace")


def timeout(header: bytes | None) -> float | None:
    """Return the seconds of a `grpc-timeout` header; None without one, or if it is malformed.

    Its form is one to eight digits and a unit: H, M, S, m, u or n (hours to nanoseconds).
    """
    text = (header or b"").decode("latin-1")
    digits, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        return None
    return int(digits) * _UNITS[unit]
