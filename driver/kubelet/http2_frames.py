"""HTTP/2's frames (RFC 9113, sections 4, 6 and 7): bytes in, whole frames out, and back. No I/O.

Headers and data, which every call consists of, are cut and put together here, in a fifth of the time; all others, and
what is padded or has a priority, are hyperframe's.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from hpack.hpack import encode_integer
from hyperframe.exceptions import HyperframeError, InvalidFrameError
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""
MAX_SIZE: Final = 16_384
"""How many bytes the payload of a frame may have, as long as nobody has asked for more."""

DATA: Final = 0
HEADERS: Final = 1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
"""Types and flags of the frames that are put together here (sections 6.1 and 6.2)."""

# The payload's length in three bytes, type, flags, stream (section 4.1).
_HEADER: Final = struct.Struct(">HBBBI")
_HEAD: Final = _HEADER.size
_RESERVED: Final = 0x7FFFFFFF
# Before a length stands one bit, which says whether the text is packed itself (RFC 7541, section 5.2).
_LENGTH_BITS: Final = 7


class ErrorCode(IntEnum):
    """The error codes of RST_STREAM and GOAWAY that are sent (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class HTTP2Error(Exception):
    """An error of the peer: what it sends is no HTTP/2, or not allowed now.

    Attributes:
        code: the error code for a GOAWAY frame.
    """

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class DataPart(NamedTuple):
    """A DATA frame without its padding; `ended` if nothing follows on the stream."""

    stream_id: int
    data: bytes
    ended: bool


class HeadersPart(NamedTuple):
    """A HEADERS frame, its block alone; `ended` if nothing follows on the stream, `whole` if the block is."""

    stream_id: int
    data: bytes
    ended: bool
    whole: bool


def frame_bytes(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame as it travels."""
    size = len(payload)
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


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

    def next(self) -> tuple[Frame | DataPart | HeadersPart, int] | None:
        """Return the next frame with the size of its payload; None until it has come whole.

        Raises:
            HTTP2Error: it cannot be one.
        """
        came = self._came
        if (self._preface and not self._prefaced()) or len(came) < _HEAD:
            return None
        high, low, kind, flags, stream = _HEADER.unpack_from(came)
        size = high << 8 | low
        if size > MAX_SIZE:
            raise HTTP2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
        if len(came) < _HEAD + size:
            return None
        frame: Frame | DataPart | HeadersPart
        stream &= _RESERVED
        if stream and kind == DATA and not flags & ~END_STREAM:
            frame = DataPart(stream, bytes(came[_HEAD : _HEAD + size]), bool(flags))
        elif stream and kind == HEADERS and not flags & ~(END_STREAM | END_HEADERS):
            payload = bytes(came[_HEAD : _HEAD + size])
            frame = HeadersPart(stream, payload, bool(flags & END_STREAM), bool(flags & END_HEADERS))
        else:
            frame = _parsed(bytes(came[: _HEAD + size]))
        if not self._settled and (not isinstance(frame, SettingsFrame) or "ACK" in frame.flags):
            raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, f"the first frame is a {type(frame).__name__}, not the settings")
        del came[: _HEAD + size]
        self._settled = True
        return frame, size

    def _prefaced(self) -> bool:
        size = min(len(self._came), len(self._preface))
        if self._came[:size] != self._preface[:size]:
            raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, "the first bytes are not those of an HTTP/2 client")
        self._preface = self._preface[size:]
        del self._came[:size]
        return not self._preface


def _parsed(data: bytes) -> Frame | DataPart | HeadersPart:
    """Return any frame.

    Raises:
        HTTP2Error: it cannot be one.
    """
    try:
        frame, _ = Frame.parse_frame_header(memoryview(data[:_HEAD]))
        frame.parse_body(memoryview(data[_HEAD:]))
    except HyperframeError as error:
        sized = isinstance(error, InvalidFrameError)
        raise HTTP2Error(ErrorCode.FRAME_SIZE_ERROR if sized else ErrorCode.PROTOCOL_ERROR, str(error)) from error
    match frame:
        case DataFrame():
            return DataPart(frame.stream_id, frame.data, "END_STREAM" in frame.flags)
        case HeadersFrame():
            return HeadersPart(frame.stream_id, frame.data, "END_STREAM" in frame.flags, "END_HEADERS" in frame.flags)
        case _:
            return frame


def literal(name: bytes, value: bytes) -> bytes:
    """Pack a header so that neither end remembers it (RFC 7541, section 6.2.2)."""
    return b"\0" + _sized(name) + _sized(value)


def _sized(text: bytes) -> bytes:
    return bytes(encode_integer(len(text), _LENGTH_BITS)) + text
