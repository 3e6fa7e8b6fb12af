"""A gRPC server on unix sockets, for what kubelet asks: a few threads that each read and answer.

The thread to which the kernel gives a call answers it: to hand it over would take two more switches and some hundred
microseconds. One more thread than may answer reads on meanwhile, so that whoever gives up or hangs up is noticed.

grpcio's server takes 17 wake-ups a second to do nothing, three times the CPU for an exchange, and a third of the
driver's memory and of its start (ARCHITECTURE.md has the figures).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dranode.driver.core.api.errors import in_words
from dranode.driver.kubelet.grpc_connection import ONCE, GrpcConnection
from dranode.driver.kubelet.grpc_values import RPCError, Status
from dranode.driver.kubelet.http2 import Ended, HungUpError, Request, ServerConnection
from dranode.driver.kubelet.methods import Method, Unary
from dranode.driver.kubelet.protobuf_wire import MessageError
from dranode.driver.process.answering import Answering
from dranode.driver.process.threads import Fatal, OwnedThread

log = logging.getLogger(__name__)

# Decisions are made one at a time, so a few threads carry all calls.
_ANSWERING: Final = 4
# For threads whose calls outlast a stop's grace.
_JOIN_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.01
_BACKLOG: Final = 128
# Where the process has no descriptor left, none comes back sooner for being asked for all the time.
_NO_DESCRIPTOR_SECONDS: Final = 0.1


class GrpcServer:
    """Serves methods on any number of sockets."""

    def __init__(self, name: str, method: Callable[[str], Method | None], fatal: Fatal) -> None:
        """Prepare to serve.

        Args:
            name: begins the names of the threads.
            method: gives the method of a path, `/<service>/<method>`; None if there is none.
            fatal: ends the process with a sentence.
        """
        self._method = method
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[int, GrpcConnection] = {}
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        # Calls that wait for a thread, of which `_busy` are answering; as many as are written here come to take them.
        self._requests: deque[tuple[GrpcConnection, Request, float]] = deque()
        self._more = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self._poll.register(self._more, select.EPOLLIN)
        self._turns = threading.Lock()
        self._busy = 0
        self._over = False
        self._threads = [OwnedThread(f"{name}-rpc-{n}", self._work, fatal) for n in range(_ANSWERING + 1)]

    def listen(self, path: Path) -> None:
        """Make a socket of mode 0600 and listen on it.

        Raises:
            OSError: it cannot be made, for one because a file lies there already.
        """
        listener = socket.socket(socket.AF_UNIX)
        try:
            # The mode must be right from the first moment.
            mask = os.umask(0o177)
            try:
                listener.bind(os.fspath(path))
            finally:
                os.umask(mask)
            listener.listen(_BACKLOG)
            listener.setblocking(False)  # noqa: FBT003 - socket's signature
            self._poll.register(listener, ONCE)
        except OSError:
            listener.close()
            raise
        self._listeners[listener.fileno()] = listener

    def start(self) -> None:
        """Start the threads that read and answer; what arrived on the sockets before is answered too."""
        for thread in self._threads:
            thread.start()

    def stop(self, grace: float) -> None:
        """Take no more calls, answer those that came, for `grace` seconds at most, and hang up.

        Callers that are connected are sent a GOAWAY frame (RFC 9113, section 6.8). The files of the sockets stay.
        """
        ends = time.monotonic() + grace
        for listener in self._listeners.values():
            self._poll.unregister(listener)
        if self._threads[0].ident is not None:
            for connection in tuple(self._connections.values()):
                connection.say(ServerConnection.go_away)
            while any(each.busy for each in tuple(self._connections.values())) and time.monotonic() < ends:
                time.sleep(_LOOK_SECONDS)
            for connection in tuple(self._connections.values()):
                self._hang_up(connection)
        self._over = True
        os.eventfd_write(self._wake, 1)
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._close()

    def _close(self) -> None:
        """Close what the threads wait at, unless one of them still answers somebody who was hung up on."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN_SECONDS)
        if not any(thread.is_alive() for thread in self._threads):
            self._poll.close()
            os.close(self._wake)
            os.close(self._more)

    # --- what each thread does ---

    def _work(self) -> None:
        while not self._over:
            for number, happened in self._poll.poll(None, 1):
                if number in self._listeners:
                    self._accept(self._listeners[number])
                elif connection := self._connections.get(number):
                    self._go_on(connection, happened)
                elif number == self._more:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._more)
                self._answer_some()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            pass  # the client hung up before it was accepted
        except OSError as error:
            log.warning("socket=%s: no connection can be accepted: %s", listener.getsockname(), error.strerror)
            time.sleep(_NO_DESCRIPTOR_SECONDS)
        else:
            sock.setblocking(False)  # noqa: FBT003 - socket's signature
            self._connections[sock.fileno()] = connection = GrpcConnection(sock, self._poll)
            connection.begin()
        with contextlib.suppress(OSError):
            self._poll.modify(listener, ONCE)  # unless no more are accepted

    def _go_on(self, connection: GrpcConnection, happened: int) -> None:
        try:
            if happened & select.EPOLLOUT:
                connection.go_on()
            if happened & ~select.EPOLLOUT:
                for event in connection.read():
                    self._take(connection, event)
        except BlockingIOError:
            pass
        except (HungUpError, OSError) as error:
            log.debug("connection=%d: %s", connection.sock.fileno(), error)
            self._hang_up(connection)
        except Exception:
            # Whatever a peer sends costs it its own connection alone.
            log.exception("connection=%d: hung up on", connection.sock.fileno())
            self._hang_up(connection)
        connection.wait_again()

    def _take(self, connection: GrpcConnection, event: Request | Ended) -> None:
        if isinstance(event, Request):
            self._requests.append((connection, event, time.monotonic()))
        elif stream := connection.streams.pop(event.stream, None):
            stream.gone()

    def _hang_up(self, connection: GrpcConnection) -> None:
        number = connection.sock.fileno()
        # Its number is another one's as soon as it is closed.
        if self._connections.get(number) is connection:
            del self._connections[number]
        if connection.close():
            # Another thread may begin or end one meanwhile.
            for stream in tuple(connection.streams.values()):
                stream.gone()

    def _answer_some(self) -> None:
        """Answer calls until none waits, or until as many threads do so as may."""
        while asked := self._next():
            connection, request, came = asked
            try:
                # A caller whose request waits behind others may hang up meanwhile.
                if connection.open(request.stream):
                    with Answering():
                        self._answer(connection, request, came)
            finally:
                with self._turns:
                    self._busy -= 1

    def _next(self) -> tuple[GrpcConnection, Request, float] | None:
        with self._turns:
            if not self._requests or self._busy == _ANSWERING:
                return None
            self._busy += 1
            asked = self._requests.popleft()
            if self._requests and self._busy < _ANSWERING:
                os.eventfd_write(self._more, 1)
            return asked

    def _answer(self, connection: GrpcConnection, request: Request, came: float) -> None:
        try:
            answer = self._answered(connection, request, came)
        except RPCError as error:
            status, reason = error.status, error.reason
            connection.say(lambda http2: http2.finish(request.stream, status, reason))
        except Exception as error:
            log.exception("method=%s: no answer", request.path)
            sentence = f"an error inside the driver: {in_words(error)}"
            connection.say(lambda http2: http2.finish(request.stream, Status.UNKNOWN, sentence))
        else:
            if answer is not None:
                connection.say(lambda http2: http2.answer(request.stream, answer))

    def _answered(self, connection: GrpcConnection, request: Request, came: float) -> bytes | None:
        """Return the answer of a unary method; None if a stream was begun instead.

        Raises:
            RPCError: there is none, and why.
        """
        method = self._method(request.path)
        if method is None:
            raise RPCError(Status.UNIMPLEMENTED, f"there is no method {request.path}")
        if isinstance(request.message, RPCError):
            raise request.message
        if request.timeout is not None and time.monotonic() - came > request.timeout:
            raise RPCError(Status.DEADLINE_EXCEEDED, "the call waited for others until its caller had given up")
        try:
            message = method.decode(request.message)
        except MessageError as error:
            log.error("method=%s: a gRPC message cannot be read: %s", request.path, error)  # noqa: TRY400 - it says all
            raise RPCError(Status.INTERNAL, f"the message cannot be read: {error}") from error
        if isinstance(method, Unary):
            return method.encode(method.handle(message, lambda: connection.open(request.stream)))
        stream = connection.stream(request.stream, method.encode)
        method.handle(message, stream)
        # The caller may have gone before the stream was registered to be notified of it.
        if not connection.open(request.stream):
            stream.gone()
        return None
