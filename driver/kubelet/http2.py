"""gRPC on one HTTP/2 connection, the server's end: bytes in, requests out; answers in, bytes out. No I/O, no threads.

`http2_connection` carries headers and bytes of streams; what is here is which stream is which call, and what of an
answer waits until its peer takes more.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

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
from dranode.driver.kubelet.http2_connection import (
    DataCame,
    GoneAway,
    HeadersCame,
    HTTP2Connection,
    HTTP2Event,
    StreamCut,
)
from dranode.driver.kubelet.http2_frames import ErrorCode, HTTP2Error, literal

# `:status: 200` (RFC 7541, appendix A, entry 8), and what else an answer begins with.
_HEAD: Final = b"\x88" + literal(b"content-type", b"application/grpc")
_UNSUPPORTED: Final = literal(b":status", b"415")
_OK: Final = literal(b"grpc-status", b"0")


class Request(NamedTuple):
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


class Ended(NamedTuple):
    """A call that its caller has given up."""

    stream: int


class _Call:
    """One stream.

    Attributes:
        path: service and method; empty until they are known.
        timeout: as in `Request`.
        received: the request's bytes.
        begun: whether the answer's headers were sent.
        unsent: of the answer, what waits for the peer.
        status: the headers, packed, with which it ends after that; None while more may follow.
    """

    __slots__ = ("begun", "path", "received", "status", "timeout", "unsent")

    def __init__(self, path: str, timeout: float | None) -> None:
        self.path, self.timeout = path, timeout
        self.received, self.unsent = bytearray(), bytearray()
        self.begun = False
        self.status: bytes | None = None


class HungUpError(Exception):
    """The connection is over: its peer said so, or what it sends is no HTTP/2."""


class ServerConnection:
    """One connection. Not thread-safe."""

    def __init__(self) -> None:
        self._http2 = HTTP2Connection()
        self._calls: dict[int, _Call] = {}
        # The last call that is taken, once no more are.
        self._last: int | None = None

    def receive(self, data: bytes) -> list[Request | Ended]:
        """Take in what has come.

        Raises:
            HungUpError: nothing will follow; what `outgoing` has may still be sent.
        """
        try:
            events = self._http2.receive(data)
        except HTTP2Error as error:
            self._calls.clear()
            raise HungUpError(str(error)) from error
        # What was given up later in the same bytes can be answered no more.
        if any(isinstance(event, GoneAway) for event in events):
            self._calls.clear()
            raise HungUpError("its peer has ended it")
        ended = {event.stream for event in events if isinstance(event, StreamCut)}
        happened: list[Request | Ended] = [Ended(stream) for stream in ended if self._calls.pop(stream, None)]
        for event in events:
            request = self._happened(event, ended)
            if request is not None:
                happened.append(request)
        for stream in [stream for stream, call in self._calls.items() if call.unsent]:
            self._flush(stream)
        return happened

    def _happened(self, event: HTTP2Event, ended: Container[int]) -> Request | None:
        match event:
            case HeadersCame(stream, headers, first, whole):
                if first and stream not in ended:
                    self._begun(stream, headers)
            case DataCame(stream, data, whole):
                self._grown(stream, data)
            case _:
                return None
        return self._whole(stream) if whole else None

    def _begun(self, stream: int, headers: dict[bytes, bytes]) -> None:
        if self._last is not None and stream > self._last:
            self._http2.reset(stream, ErrorCode.REFUSED_STREAM)
        elif not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self._http2.send_headers(stream, _UNSUPPORTED, end=True)
            self._http2.forget(stream)
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
            self._http2.reset(stream, ErrorCode.NO_ERROR)

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
        trailers = literal(b"grpc-status", b"%d" % status) if status else _OK
        if reason:
            trailers += literal(b"grpc-message", encoded_reason(reason))
        # An answer without a message is its end alone.
        call.status = trailers if call.begun else _HEAD + trailers
        self._flush(stream)

    def _flush(self, stream: int) -> None:
        call = self._calls[stream]
        self._http2.send_data(stream, call.unsent)
        if not call.unsent and call.status is not None:
            self._http2.send_headers(stream, call.status, end=True)
            self._http2.forget(stream)
            del self._calls[stream]

    def waits(self, stream: int) -> bool:
        """Return whether the peer has not taken yet all that it was sent of this answer."""
        call = self._calls.get(stream)
        return call is not None and bool(call.unsent)

    def open(self, stream: int) -> bool:
        """Return whether the caller still waits for this answer."""
        return stream in self._calls

    @property
    def calls(self) -> int:
        """Return how many calls are open."""
        return len(self._calls)

    def go_away(self) -> None:
        """Take no more calls (GOAWAY, RFC 9113, section 6.8); those that are open are answered.

        A caller may send later calls on another connection.
        """
        if self._last is None:
            self._last = self._http2.highest
            self._http2.go_away(self._last)

    def outgoing(self) -> bytes:
        """Return the bytes to be sent, each once."""
        return self._http2.outgoing()
