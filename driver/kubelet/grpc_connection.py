"""One caller of the gRPC server: its socket, what it has not taken yet, and the answers that go on."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from dranode.driver.kubelet.http2 import Ended, HungUpError, Request, ServerConnection

ONCE: Final = select.EPOLLIN | select.EPOLLONESHOT
"""The events of a socket that one thread at a time is to be given."""
_READ: Final = 1 << 16
# A peer that takes nothing of what it is sent is none.
_MAX_UNSENT: Final = 8 << 20


class GrpcConnection:
    """One peer. Any thread may read and say something; the kernel names it to one thread at a time (EPOLLONESHOT).

    Attributes:
        sock: its socket, which does not block.
        streams: the answers with many messages that go on, by the number of their HTTP/2 stream.
    """

    def __init__(self, sock: socket.socket, poll: select.epoll) -> None:
        """Take a socket over, of which `poll` is to tell; nothing is sent before `begin`."""
        self.sock = sock
        self.streams: dict[int, AnswerStream] = {}
        self._poll = poll
        self._http2 = ServerConnection()
        self._lock = threading.Lock()
        # What is read first is taken in first.
        self._reading = threading.Lock()
        self._unsent = bytearray()
        self._closed = False

    def begin(self) -> None:
        """Have the first bytes sent, and what comes read."""
        self._poll.register(self.sock, ONCE)
        self.say(lambda _: None)

    def read(self) -> list[Request | Ended]:
        """Take in what has come.

        Raises:
            HungUpError: the connection is over.
            OSError: the same, or nothing has come.
        """
        with self._reading:
            data = self.sock.recv(_READ)
            if not data:
                raise HungUpError("its peer has hung up")
            with self._lock:
                try:
                    return self._http2.receive(data)
                finally:
                    self._send()

    def stream(self, number: int, encode: Callable[[Any], bytes]) -> AnswerStream:
        """Begin an answer that may have many messages, each of which `encode` makes bytes of."""
        stream = self.streams[number] = AnswerStream(self, number, encode)
        return stream

    def wait_again(self) -> None:
        """Let the next thread be given what comes."""
        with self._lock:
            if not self._closed:
                self._poll.modify(self.sock, ONCE | select.EPOLLOUT if self._unsent else ONCE)

    def say(self, what: Callable[[ServerConnection], None]) -> None:
        """Have something said, and send it as far as the peer takes it."""
        with self._lock:
            if not self._closed:
                what(self._http2)
                self._send()

    def waits(self, stream: int) -> bool:
        """Return whether something of an answer is still to be taken by the peer."""
        with self._lock:
            return bool(self._unsent) or self._http2.waits(stream)

    def open(self, stream: int) -> bool:
        """Return whether somebody still waits for an answer."""
        with self._lock:
            return not self._closed and self._http2.open(stream)

    @property
    def busy(self) -> bool:
        """Return whether anything is still to be answered or sent."""
        with self._lock:
            return bool(self._http2.calls or self._unsent)

    def go_on(self) -> None:
        """Send more of what waits."""
        with self._lock:
            self._send()

    def _send(self) -> None:
        self._unsent += self._http2.outgoing()
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                try:
                    del self._unsent[: self.sock.send(self._unsent)]
                except (BrokenPipeError, ConnectionResetError):
                    # The reading thread sees the broken connection too.
                    self._unsent.clear()
        if len(self._unsent) > _MAX_UNSENT:
            self._unsent.clear()
            self.sock.shutdown(socket.SHUT_RDWR)
        if self._unsent:
            self._poll.modify(self.sock, ONCE | select.EPOLLOUT)

    def close(self) -> bool:
        """Hang up; what is said from now on goes nowhere. False if it was hung up already."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            self._unsent.clear()
            self._poll.unregister(self.sock)
            self.sock.close()
            return True


class AnswerStream:
    """An answer that may have many messages, as `methods.Stream` says. Any thread may use it."""

    def __init__(self, connection: GrpcConnection, number: int, encode: Callable[[Any], bytes]) -> None:
        """Answer on a connection, on the HTTP/2 stream of that number."""
        self._connection = connection
        self._number = number
        self._encode = encode
        self.gone: Callable[[], None] = lambda: None

    def send(self, message: Any) -> None:
        """Send a message; to a caller who has gone nothing is sent."""
        self._connection.say(lambda http2: http2.send(self._number, self._encode(message)))

    def finish(self) -> None:
        """End the answer."""
        self._connection.streams.pop(self._number, None)
        self._connection.say(lambda http2: http2.finish(self._number))

    @property
    def behind(self) -> bool:
        """Return whether the caller has not taken yet what it was sent."""
        return self._connection.waits(self._number)
