"""One gRPC call with one answer, over a unix socket that is dialled for it, for what asks kubelet now and then.

A connection for each call needs no thread that looks after it, and meets a kubelet that was restarted like any other.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from dranode.driver.kubelet.grpc_values import (
    PREFIX_BYTES,
    RPCError,
    Status,
    decoded_reason,
    with_length,
    without_length,
)

_CONFIG: Final = H2Configuration(client_side=True, header_encoding=None)
_STREAM: Final = 1
_READ: Final = 1 << 18


def call(path: Path, method: str, message: bytes, *, seconds: float, limit: int) -> bytes:
    """Return the answer to one call.

    Args:
        path: the server's socket.
        method: `/<service>/<method>`.
        message: the request.
        seconds: for all of it.
        limit: the bytes that an answer may have.

    Raises:
        RPCError: the server refuses, or gives no answer within `seconds` or `limit`, or none that can be understood.
    """
    ends = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.settimeout(seconds)
            sock.connect(os.fspath(path))
            return _Call(sock, ends, limit).ask(method, message, seconds)
        except TimeoutError as error:
            raise RPCError(Status.DEADLINE_EXCEEDED, f"no answer within {seconds:g} s") from error
        except OSError as error:
            raise RPCError(Status.UNAVAILABLE, error.strerror or str(error)) from error
        except ProtocolError as error:
            raise RPCError(Status.INTERNAL, f"the answer is no HTTP/2: {error}") from error


class _Call:
    """The call's end of its connection."""

    def __init__(self, sock: socket.socket, ends: float, limit: int) -> None:
        self._sock = sock
        self._ends = ends
        self._limit = limit
        self._http2 = H2Connection(_CONFIG)
        self._answer = bytearray()
        self._unsent = b""
        self._head: dict[bytes, bytes] = {}
        self._over = False

    def ask(self, method: str, message: bytes, seconds: float) -> bytes:
        """Ask, and return the answer.

        Raises:
            RPCError: there is none.
            OSError: the connection fails, or time is up.
            ProtocolError: what comes is no HTTP/2.
        """
        self._http2.initiate_connection()
        headers = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"grpc-timeout", b"%dm" % (seconds * 1000)),
        )
        self._http2.send_headers(_STREAM, headers)
        self._unsent = with_length(message)
        self._send()
        while not self._over:
            self._sock.settimeout(max(self._ends - time.monotonic(), 1e-3))
            data = self._sock.recv(_READ)
            if not data:
                raise RPCError(Status.UNAVAILABLE, "the connection was closed before the answer")
            for event in self._http2.receive_data(data):
                self._happened(event)
            if time.monotonic() > self._ends:
                raise TimeoutError
            self._send()
        status = int(self._head.get(b"grpc-status", b"%d" % Status.UNKNOWN))
        if status != Status.OK:
            reason = decoded_reason(self._head.get(b"grpc-message", b"")) or f"it ends with gRPC's status {status}"
            raise RPCError(status, reason)
        return without_length(self._answer)

    def _send(self) -> None:
        while self._unsent:
            window = self._http2.local_flow_control_window(_STREAM)
            size = min(len(self._unsent), window, self._http2.max_outbound_frame_size)
            if size <= 0:
                break
            self._http2.send_data(_STREAM, self._unsent[:size], end_stream=size == len(self._unsent))
            self._unsent = self._unsent[size:]
        self._sock.sendall(self._http2.data_to_send())

    def _happened(self, event: Event) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                self._head |= dict(event.headers)
            case DataReceived():
                self._http2.acknowledge_received_data(event.flow_controlled_length, _STREAM)
                self._answer += event.data
                if len(self._answer) > self._limit + PREFIX_BYTES:
                    raise RPCError(Status.RESOURCE_EXHAUSTED, f"an answer may have {self._limit} bytes, and more came")
            case StreamEnded():
                self._over = True
            case StreamReset() | ConnectionTerminated() if not self._over:
                raise RPCError(Status.UNAVAILABLE, f"the call was cut off ({event.error_code})")
            case WindowUpdated() | RemoteSettingsChanged():
                pass  # `_send` looks at the windows as they are
