"""HTTP/2's frames (RFC 9113, sections 4, 6 and 7): bytes in, whole frames out, and the other way. No I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

from hpack.hpack import encode_integer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""
MAX_SIZE: Final = 16_384
"""How many bytes the payload of a frame may have, as long as nobody has asked for more."""
MAX_NUMBER: Final = (1 << 31) - 1
"""The highest stream, and the largest window."""

# Types of frames.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
# Flags; END_STREAM and ACK are the same bit in different frames.
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
# Error codes.
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 9, 11

_HEAD: Final = 9
# Before a length stands one bit, which says whether the text is packed itself (RFC 7541, section 5.2).
_LENGTH_BITS: Final = 7
# Payloads that have one size alone.
_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
# What belongs to the connection (stream 0) or to a stream; any other frame may be of either.
_OF_CONNECTION: Final = frozenset((SETTINGS, PING, GOAWAY))
_OF_STREAM: Final = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION))


class HTTP2Error(Exception):
    """What the peer sends is no HTTP/2, or not allowed now.

    Attributes:
        code: the error code for a GOAWAY frame.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Frame(NamedTuple):
    """A frame that has come whole."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """Cuts what comes into frames."""

    def __init__(self, preface: bytes) -> None:
        """Expect these bytes first, then the settings."""
        self._preface = preface
        self._settled = False
        self._came = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in what has come."""
        self._came += data

    def next(self) -> Frame | None:
        """The next frame; None until it has come whole.

        Raises:
            HTTP2Error: it cannot be one.
        """
        came = self._came
        if self._preface and not self._prefaced():
            return None
        if len(came) < _HEAD:
            return None
        size, kind, flags = int.from_bytes(came[:3]), came[3], came[4]
        stream = int.from_bytes(came[5:_HEAD]) & MAX_NUMBER
        self._check(kind, flags, stream, size)
        if len(came) < _HEAD + size:
            return None
        payload = bytes(came[_HEAD : _HEAD + size])
        del came[: _HEAD + size]
        self._settled = True
        return Frame(kind, flags, stream, payload)

    def _prefaced(self) -> bool:
        size = min(len(self._came), len(self._preface))
        if self._came[:size] != self._preface[:size]:
            raise HTTP2Error(PROTOCOL_ERROR, "the first bytes are not those of an HTTP/2 client")
        self._preface = self._preface[size:]
        del self._came[:size]
        return not self._preface

    def _check(self, kind: int, flags: int, stream: int, size: int) -> None:
        if size > MAX_SIZE or size != _SIZES.get(kind, size):
            raise HTTP2Error(FRAME_SIZE_ERROR, f"a frame of type {kind} has {size} bytes")
        if not self._settled and (kind != SETTINGS or flags & ACK):
            raise HTTP2Error(PROTOCOL_ERROR, f"the first frame is of type {kind}, not the settings")
        if kind in (_OF_CONNECTION if stream else _OF_STREAM):
            raise HTTP2Error(PROTOCOL_ERROR, f"a frame of type {kind} comes on stream {stream}")


def encoded_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame as it travels."""
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3), kind, flags, stream.to_bytes(4), payload)


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return a payload of data or headers without its padding.

    Raises:
        HTTP2Error: it is longer than the payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise HTTP2Error(PROTOCOL_ERROR, "a frame is padding alone")
    return payload[1 : len(payload) - payload[0]]


def header_block(flags: int, payload: bytes) -> bytes:
    """Return what a HEADERS frame has of packed headers.

    Raises:
        HTTP2Error: it is cut off.
    """
    block = unpadded(flags, payload)
    if not flags & PRIORITIZED:
        return block
    if len(block) < _SIZES[PRIORITY]:
        raise HTTP2Error(FRAME_SIZE_ERROR, f"headers with a priority have {len(block)} bytes")
    return block[_SIZES[PRIORITY] :]


def literal(name: bytes, value: bytes) -> bytes:
    """Pack a header so that neither end remembers it (RFC 7541, section 6.2.2)."""
    return b"\0" + _sized(name) + _sized(value)


def _sized(text: bytes) -> bytes:
    return bytes(encode_integer(len(text), _LENGTH_BITS)) + text
