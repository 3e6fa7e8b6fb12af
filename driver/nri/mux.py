"""NRI's connection multiplexer: several byte streams over one socket. No I/O.

A frame is an 8-byte header (connection id, payload length, both unsigned 32-bit big-endian) and its payload
(containerd/nri, pkg/net/multiplex). Frames mean nothing beyond that: a message may span frames and a frame may hold
several messages. Frames of a connection that is not open are dropped; empty frames are legal.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from dranode.driver.core.api.errors import DranodeError

PLUGIN_CONNECTION: Final = 1
"""The connection on which the runtime calls the plug-in."""

RUNTIME_CONNECTION: Final = 2
"""The connection on which the plug-in calls the runtime."""

# NRI up to 0.6 sends a whole message, of up to 16 MiB and its 10-byte header, as one frame.
MAX_FRAME: Final = (16 << 20) + 10

_HEADER: Final = struct.Struct(">II")


class ProtocolError(DranodeError):
    """The runtime's byte stream makes no sense; only a new connection helps."""


class Chunk(msgspec.Struct, frozen=True):
    """Bytes that arrived on one connection."""

    connection: int
    data: bytes


def frame(connection: int, payload: bytes) -> bytes:
    """One frame."""
    return _HEADER.pack(connection, len(payload)) + payload


class Demultiplexer:
    """Takes what comes from the socket, in pieces of any size, and says which bytes belong to which connection."""

    def __init__(self, connections: frozenset[int] = frozenset((PLUGIN_CONNECTION, RUNTIME_CONNECTION))) -> None:
        self._open = connections
        self._header = b""
        self._connection = 0
        self._remaining = 0

    @property
    def inside_frame(self) -> bool:
        """Return whether the stream would be cut short if it ended here."""
        return bool(self._header) or self._remaining > 0

    def receive_data(self, data: bytes) -> list[Chunk]:
        """The payload in `data`, in order, without that of connections that are not open.

        Raises:
            ProtocolError: a frame is longer than `MAX_FRAME`.
        """
        chunks: list[Chunk] = []
        at = 0
        while at < len(data):
            if self._remaining:
                piece = data[at : at + self._remaining]
                self._remaining -= len(piece)
                at += len(piece)
                if self._connection in self._open:
                    chunks.append(Chunk(self._connection, piece))
                continue
            missing = _HEADER.size - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == _HEADER.size:
                self._connection, self._remaining = _HEADER.unpack(self._header)
                self._header = b""
                if self._remaining > MAX_FRAME:
                    raise ProtocolError(
                        f"the runtime announced an NRI frame of {self._remaining} bytes on connection "
                        f"{self._connection}, and the limit is {MAX_FRAME}: this is not the NRI protocol"
                    )
        return chunks
