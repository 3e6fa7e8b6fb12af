"""ttrpc, as far as NRI needs it: unary calls in both directions. No I/O.

A message is a 10-byte header (length of the data and stream id, unsigned 32-bit big-endian, then type and flags, one
byte each) and its data, a protobuf `Request` or `Response` (containerd/ttrpc, PROTOCOL.md).
"""

import struct
from enum import IntEnum
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from dranode.api.errors import DranodeError
from dranode.proto import ttrpc_pb2

# NRI's connection multiplexer: several byte streams over one socket. A frame is an 8-byte header (connection id and
# payload length, both unsigned 32-bit big-endian) and its payload (containerd/nri, pkg/net/multiplex). Frames do not
# delimit messages: a message may span frames, and a frame may have several messages. Frames of a connection that is
# not open are dropped, and empty frames are legal.

PLUGIN_CONNECTION: Final = 1
"""The connection on which the runtime calls the plug-in."""

RUNTIME_CONNECTION: Final = 2
"""The connection on which the plug-in calls the runtime."""

_OPEN: Final = (PLUGIN_CONNECTION, RUNTIME_CONNECTION)

# NRI up to 0.6 sends a whole message, of up to 16 MiB and its 10-byte header, as one frame.
MAX_FRAME: Final = (16 << 20) + 10

_FRAME_HEADER: Final = struct.Struct(">II")


class ProtocolError(DranodeError):
    """The runtime's byte stream is not valid; only a new connection helps."""


class Chunk(msgspec.Struct, frozen=True):
    """Bytes that arrived on one connection."""

    connection: int
    data: bytes


def frame(connection: int, payload: bytes) -> bytes:
    """Return one frame."""
    return _FRAME_HEADER.pack(connection, len(payload)) + payload


class Demultiplexer:
    """Sorts the bytes of the socket, in pieces of any size, by connection."""

    def __init__(self) -> None:
        self._header = b""
        self._connection = 0
        self._remaining = 0

    @property
    def inside_frame(self) -> bool:
        """Return whether the stream would be cut short if it ended here."""
        return bool(self._header) or self._remaining > 0

    def receive_data(self, data: bytes) -> list[Chunk]:
        """Return the payload in `data`, in order, without that of connections that are not open.

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
                # The payload of an unknown connection is skipped, as the Go implementation does.
                if self._connection in _OPEN:
                    chunks.append(Chunk(self._connection, piece))
                continue
            missing = _FRAME_HEADER.size - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == _FRAME_HEADER.size:
                self._connection, self._remaining = _FRAME_HEADER.unpack(self._header)
                self._header = b""
                if self._remaining > MAX_FRAME:
                    raise ProtocolError(
                        f"the runtime announced an NRI frame of {self._remaining} bytes on connection "
                        f"{self._connection}, and the limit is {MAX_FRAME}: this is not the NRI protocol"
                    )
        return chunks


# The protocol's limit, which newer peers enforce. Older runtimes send more, which has to be accepted.
MAX_SENT: Final = 4 << 20
MAX_RECEIVED: Final = 16 << 20

_HEADER: Final = struct.Struct(">IIBB")


class MessageType(IntEnum):
    """The types of messages; unknown types are ignored."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class StatusCode(IntEnum):
    """The gRPC status codes that are used here."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12


class Message(msgspec.Struct, frozen=True):
    """One ttrpc message."""

    stream: int
    type: int
    flags: int
    data: bytes


class Call(msgspec.Struct, frozen=True):
    """A request."""

    service: str
    method: str
    payload: bytes


class Response(msgspec.Struct, frozen=True):
    """A response: a payload, or a status code other than 0 with a text."""

    payload: bytes = b""
    code: int = 0
    message: str = ""


class Decoder:
    """Makes whole messages of one connection's bytes, which come in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def inside_message(self) -> bool:
        """Return whether a message would be cut short if the stream ended here."""
        return bool(self._buffer)

    def receive_data(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now.

        Raises:
            ProtocolError: a message is longer than `MAX_RECEIVED`.
        """
        self._buffer += data
        messages: list[Message] = []
        at = 0
        # One piece may end in the middle of a message and have several before that.
        while len(self._buffer) - at >= _HEADER.size:
            length, stream, kind, flags = _HEADER.unpack_from(self._buffer, at)
            # Without a limit, four damaged bytes could make this process wait for, and keep, up to 4 GiB.
            if length > MAX_RECEIVED:
                raise ProtocolError(
                    f"the runtime announced a ttrpc message of {length} bytes, and the limit is {MAX_RECEIVED}: "
                    "this is not the NRI protocol"
                )
            end = at + _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(Message(stream, kind, flags, bytes(self._buffer[at + _HEADER.size : end])))
            at = end
        del self._buffer[:at]
        return messages


def encode_message(connection: int, message: Message) -> bytes:
    """Encode a message for the socket: header and data as two frames, only one if there is no data.

    Go's side reads a frame into a buffer of 4,096 bytes and fails on a larger one, unless it has asked for that size.
    It asks for the size of the data once it has read the header.
    """
    header = frame(connection, _HEADER.pack(len(message.data), message.stream, message.type, message.flags))
    return header + frame(connection, message.data) if message.data else header


def request(stream: int, call: Call) -> Message:
    """Return the message that makes a call."""
    body = ttrpc_pb2.Request(service=call.service, method=call.method, payload=call.payload)
    return Message(stream, MessageType.REQUEST, 0, body.SerializeToString())


def response(stream: int, answer: Response) -> Message:
    """Return the message that answers the call on `stream`. An answer that is too large becomes an error."""
    body = ttrpc_pb2.Response(payload=answer.payload)
    if answer.code:
        body.status.code = answer.code
        body.status.message = answer.message
    data = body.SerializeToString()
    # The runtime would close the connection if the message were too large. An error fails only this call.
    if len(data) > MAX_SENT:
        text = f"the answer has {len(data)} bytes, and ttrpc's limit is {MAX_SENT}"
        return response(stream, Response(code=StatusCode.RESOURCE_EXHAUSTED, message=text))
    return Message(stream, MessageType.RESPONSE, 0, data)


def read_request(message: Message) -> Call | None:
    """Return the call in a request; None if its data does not decode."""
    try:
        body = ttrpc_pb2.Request.FromString(message.data)
    except DecodeError:
        return None
    return Call(body.service, body.method, body.payload)


def read_response(message: Message) -> Response:
    """Return the response in a message.

    Raises:
        ProtocolError: its data does not decode.
    """
    try:
        body = ttrpc_pb2.Response.FromString(message.data)
    except DecodeError as error:
        raise ProtocolError(f"the runtime's answer on stream {message.stream} does not decode: {error}") from error
    return Response(body.payload, body.status.code, body.status.message)
