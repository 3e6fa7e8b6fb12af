"""One gRPC call with one answer, over a unix socket that is dialled for it, for what asks kubelet now and then.

A connection for each call needs no thread that looks after it, and meets a kubelet that was restarted like any other.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

from dranode.driver.kubelet.grpc_values import (
    PREFIX_BYTES,
    RPCError,
    Status,
    decoded_reason,
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
from dranode.driver.kubelet.http2_frames import HTTP2Error, literal

# `:method: POST` and `:scheme: http` (RFC 7541, appendix A, entries 3 and 6).
_PSEUDO: Final = b"\x83\x86" + literal(b":authority", b"localhost")
_HEAD: Final = literal(b"te", b"trailers") + literal(b"content-type", b"application/grpc")
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
        except HTTP2Error as error:
            raise RPCError(Status.INTERNAL, f"the answer is no HTTP/2: {error}") from error


class _Call:
    """The call's end of its connection."""

    def __init__(self, sock: socket.socket, ends: float, limit: int) -> None:
        self._sock = sock
        self._ends = ends
        self._limit = limit
        self._http2 = HTTP2Connection(client=True)
        self._answer = bytearray()
        self._unsent = bytearray()
        self._head: dict[bytes, bytes] = {}
        self._over = False

    def ask(self, method: str, message: bytes, seconds: float) -> bytes:
        """Ask, and return the answer.

        Raises:
            RPCError: there is none.
            OSError: the connection fails, or time is up.
            HTTP2Error: what comes is no HTTP/2.
        """
        self._http2.begin(_STREAM)
        pseudo = _PSEUDO + literal(b":path", method.encode())
        patience = literal(b"grpc-timeout", b"%dm" % (seconds * 1000))
        self._http2.send_headers(_STREAM, pseudo + _HEAD + patience)
        self._unsent += with_length(message)
        self._send()
        while not self._over:
            self._sock.settimeout(max(self._ends - time.monotonic(), 1e-3))
            data = self._sock.recv(_READ)
            if not data:
                raise RPCError(Status.UNAVAILABLE, "the connection was closed before the answer")
            for event in self._http2.receive(data):
                self._happened(event)
            if time.monotonic() > self._ends:
                raise TimeoutError
            self._send()
        stated = self._head.get(b"grpc-status", b"%d" % Status.UNKNOWN)
        if not stated.isdigit():
            raise RPCError(
                Status.INTERNAL, f"the answer's grpc-status is no number: {stated.decode(errors='replace')!r}"
            )
        status = int(stated)
        if status != Status.OK:
            reason = decoded_reason(self._head.get(b"grpc-message", b"")) or f"it ends with gRPC's status {status}"
            raise RPCError(status, reason)
        return without_length(self._answer)

    def _send(self) -> None:
        self._http2.send_data(_STREAM, self._unsent, end=True)
        self._sock.sendall(self._http2.outgoing())

    def _happened(self, event: HTTP2Event) -> None:
        match event:
            case HeadersCame(headers=headers, ended=ended):
                self._head |= headers
                self._over = ended
            case DataCame(data=data, ended=ended):
                self._answer += data
                self._over = ended
                if len(self._answer) > self._limit + PREFIX_BYTES:
                    raise RPCError(Status.RESOURCE_EXHAUSTED, f"an answer may have {self._limit} bytes, and more came")
            case StreamCut(code=code) | GoneAway(code=code) if not self._over:
                raise RPCError(Status.UNAVAILABLE, f"the call was cut off ({code})")
