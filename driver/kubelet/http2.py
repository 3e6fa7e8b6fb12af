"""gRPC on one HTTP/2 connection, the server's end: bytes in, requests out; answers in, bytes out. No I/O, no threads.

HTTP/2 itself (frames, headers, flow control, limits) is h2's; what is here is which stream is which call, and what of
an answer waits until its peer takes more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError
from hyperframe.frame import GoAwayFrame

from dranode.driver.kubelet.grpc_values import (
    MAX_MESSAGE,
    PREFIX_BYTES,
    RPCError,
    Status,
    encoded_reason,
    timeout,
    with_length,
    without_length,
)

# kubelet's requests are as gRPC's library makes them, and of their headers only those below are looked at.
_CONFIG: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)
_HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_UNSUPPORTED: Final = ((b":status", b"415"),)


class _Connection(H2Connection):
    # It remembers how streams have ended, for frames that cross; the thousands of its default are megabytes.
    MAX_CLOSED_STREAMS = 256


@dataclass(frozen=True, slots=True)
class Request:
    """A call that has come whole.

    Attributes:
        stream: the number by which it is answered.
        path: service and method.
        message: the message, or why there is none.
        timeout: how many seconds the caller waits; None for as long as it takes.
    """

    stream: int
    path: str
    message: bytes | RPCError
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that its caller has given up."""

    stream: int


@dataclass(slots=True)
class _Call:
    """One stream.

    Attributes:
        path: service and method; empty until they are known.
        timeout: as in `Request`.
        received: the request's bytes.
        begun: whether the answer's headers were sent.
        unsent: of the answer, what waits for the peer.
        status: the headers with which it ends after that; None while more may follow.
    """

    path: str
    timeout: float | None
    received: bytearray = field(default_factory=bytearray)
    begun: bool = False
    unsent: bytearray = field(default_factory=bytearray)
    status: tuple[tuple[bytes, bytes], ...] | None = None


class HungUpError(Exception):
    """The connection is over: its peer said so, or what it sends is no HTTP/2."""


class ServerConnection:
    """One connection. Not thread-safe."""

    def __init__(self) -> None:
        self._http2 = _Connection(_CONFIG)
        self._http2.initiate_connection()
        self._calls: dict[int, _Call] = {}
        # The last call that is taken, once no more are.
        self._last: int | None = None
        self._goodbye = b""

    def receive(self, data: bytes) -> list[Request | Ended]:
        """Take in what has come.

        Raises:
            HungUpError: nothing will follow; what `outgoing` has may still be sent.
        """
        try:
            events = self._http2.receive_data(data)
        except ProtocolError as error:
            self._calls.clear()
            raise HungUpError(f"{type(error).__name__}: {error}") from error
        # What was given up later in the same bytes can be answered no more.
        if any(isinstance(event, ConnectionTerminated) for event in events):
            self._calls.clear()
            raise HungUpError("its peer has ended it")
        ended = {event.stream_id for event in events if isinstance(event, StreamReset)}
        happened: list[Request | Ended] = [Ended(stream) for stream in ended if self._calls.pop(stream, None)]
        for event in events:
            request = self._happened(event, ended)
            if request is not None:
                happened.append(request)
        return happened

    def _happened(self, event: Event, ended: Container[int]) -> Request | None:
        match event:
            case RequestReceived(stream_id=stream) if stream not in ended:
                self._begun(stream, dict(event.headers))
            case DataReceived():
                self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self._grown(event.stream_id, event.data)
            case StreamEnded():
                return self._whole(event.stream_id)
            case WindowUpdated() | RemoteSettingsChanged():
                for stream in tuple(self._calls):
                    self._flush(stream)
        return None

    def _begun(self, stream: int, headers: dict[bytes, bytes]) -> None:
        if self._last is not None and stream > self._last:
            self._http2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
        elif not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self._http2.send_headers(stream, _UNSUPPORTED, end_stream=True)
        else:
            path = headers.get(b":path", b"").decode("latin-1")
            self._calls[stream] = _Call(path, timeout(headers.get(b"grpc-timeout")))

    def _grown(self, stream: int, data: bytes) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        call.received += data
        if len(call.received) > MAX_MESSAGE + PREFIX_BYTES:
            reason = f"a request may have {MAX_MESSAGE} bytes, and more came"
            self.finish(stream, Status.RESOURCE_EXHAUSTED, reason)
            self._calls.pop(stream, None)
            # One whose last bytes came with these is closed by its answer.
            with contextlib.suppress(StreamClosedError):
                self._http2.reset_stream(stream, ErrorCodes.NO_ERROR)

    def _whole(self, stream: int) -> Request | None:
        call = self._calls.get(stream)
        if call is None:
            return None
        message: bytes | RPCError
        try:
            message = without_length(call.received)
        except RPCError as error:
            message = error
        call.received.clear()
        return Request(stream, call.path, message, call.timeout)

    # --- answers; those to a call that is over are passed over ---

    def answer(self, stream: int, message: bytes) -> None:
        """Send the only message of an answer, and end it with status OK."""
        self.send(stream, message)
        self.finish(stream)

    def send(self, stream: int, message: bytes) -> None:
        """Send a message of an answer that may have more."""
        call = self._calls.get(stream)
        if call is None or call.status is not None:
            return
        if not call.begun:
            self._http2.send_headers(stream, _HEAD)
            call.begun = True
        call.unsent += with_length(message)
        self._flush(stream)

    def finish(self, stream: int, status: int = Status.OK, reason: str = "") -> None:
        """End an answer with a gRPC status and its message; what of the answer still waits is sent first."""
        call = self._calls.get(stream)
        if call is None or call.status is not None:
            return
        told = ((b"grpc-message", encoded_reason(reason)),) if reason else ()
        # An answer without a message is its end alone.
        call.status = (*(() if call.begun else _HEAD), (b"grpc-status", b"%d" % status), *told)
        self._flush(stream)

    def _flush(self, stream: int) -> None:
        call = self._calls[stream]
        while call.unsent:
            size = min(
                len(call.unsent), self._http2.local_flow_control_window(stream), self._http2.max_outbound_frame_size
            )
            if size <= 0:
                return
            self._http2.send_data(stream, bytes(call.unsent[:size]))
            del call.unsent[:size]
        if call.status is not None:
            self._http2.send_headers(stream, call.status, end_stream=True)
            del self._calls[stream]

    def waits(self, stream: int) -> bool:
        """Whether the peer has not taken yet all that it was sent of this answer."""
        call = self._calls.get(stream)
        return call is not None and bool(call.unsent)

    def open(self, stream: int) -> bool:
        """Whether the caller still waits for this answer."""
        return stream in self._calls

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self._calls)

    def go_away(self) -> None:
        """Take no more calls (GOAWAY, RFC 9113, section 6.8); those that are open are answered.

        A caller may send later calls on another connection.
        """
        if self._last is None:
            self._last = self._http2.highest_inbound_stream_id
            # h2's own way closes the connection for what is still to be sent.
            frame = GoAwayFrame(0)
            frame.last_stream_id = self._last
            self._goodbye = frame.serialize()

    def outgoing(self) -> bytes:
        """Return the bytes to be sent, each once."""
        data, self._goodbye = self._http2.data_to_send() + self._goodbye, b""
        return data
