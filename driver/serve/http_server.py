"""Serves HTTP to many in one thread, with limits on clients and time, so that no connection keeps the others waiting.

Any peer that reaches the pod's address can connect, and kubelet kills a driver whose probes are not answered. So a
request has a time by which all of it is there, however its bytes come; connections are few, and one too many costs the
oldest of the peer that has most of them, never the newest: kubelet's has its request with it. What probes ask is
answered by this thread itself; a page that takes time is made by another one.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Final

import msgspec

from dranode.driver.process.threads import Fatal, OwnedThread
from dranode.driver.serve.http import MAX_HEAD, Make, answer, head_of, path_of

log = logging.getLogger(__name__)

# As many as Prometheus, kubelet and a few people need; each takes a descriptor, of which the ledger needs some too.
MAX_CONNECTIONS: Final = 32
# From the connection to the last byte of the request, and from there to the last byte of the answer.
_ASK_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 10.0
# Where the process has no descriptor left, none comes back sooner for being asked for all the time.
_NO_DESCRIPTOR_SECONDS: Final = 0.1


class _Connection(msgspec.Struct, eq=False):
    """A client that has connected.

    Attributes:
        sock: its socket.
        peer: its address.
        ends: by when it is hung up on.
        received: what it has asked so far.
        answer: what it has still to take; None before it has asked.
    """

    sock: socket.socket
    peer: str
    ends: float
    received: bytearray = msgspec.field(default_factory=bytearray)
    answer: memoryview | None = None


class HTTPPages:
    """Serves pages on a socket that listens already."""

    def __init__(
        self,
        listener: socket.socket,
        pages: Mapping[str, Make],
        fatal: Fatal,
        *,
        slow: frozenset[str] = frozenset(),
        name: str = "http",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to serve; the socket is closed by `stop`.

        Args:
            listener: the socket.
            pages: path -> page.
            fatal: ends the process with a sentence.
            slow: the paths whose pages take time to make; the others wait for nothing.
            name: of the thread.
            clock: seconds, never going back.
        """
        self._listener = listener
        self._pages = pages
        self._slow = slow
        self._clock = clock
        # In the order of their coming.
        self._connections: dict[_Connection, None] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._stopping = False
        self._orders: SimpleQueue[tuple[_Connection, bytes] | None] = SimpleQueue()
        self._made: deque[tuple[_Connection, bytes]] = deque()
        self._thread = OwnedThread(name, self._serve, fatal)
        self._maker = OwnedThread(f"{name}-slow", self._make, fatal) if slow else None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Answer from now on."""
        self._listener.setblocking(False)  # noqa: FBT003 - socket's signature
        self._woken.setblocking(False)  # noqa: FBT003 - socket's signature
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        if self._maker is not None:
            self._maker.start()
        log.info("listening http=%s:%d pages=%s", self._listener.getsockname()[0], self.port, ",".join(self._pages))

    def stop(self) -> None:
        """Stop answering."""
        self._stopping = True
        self._orders.put(None)
        self._wake.send(b"\0")
        for thread in (self._thread, self._maker):
            if thread is not None and thread.is_alive():
                thread.join()
        for connection in tuple(self._connections):
            self._hang_up(connection)
        for each in (self._listener, self._wake, self._woken, self._selector):
            each.close()

    def _serve(self) -> None:
        while not self._stopping:
            ends = min((each.ends for each in self._connections), default=None)
            patience = None if ends is None else max(0.0, ends - self._clock())
            for key, _ in self._selector.select(patience):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._take_made()
                elif key.data in self._connections:
                    self._go_on(key.data)
            now = self._clock()
            for late in [each for each in self._connections if each.ends <= now]:
                log.debug("http client=%s: hung up on for being slow", late.peer)
                self._hang_up(late)

    def _accept(self) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            crowds = Counter(each.peer for each in self._connections)
            self._hang_up(max(self._connections, key=lambda each: crowds[each.peer]))
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client hung up before it was accepted
        except OSError as error:
            log.warning("http=%s: no connection can be accepted: %s", self.port, error.strerror)
            time.sleep(_NO_DESCRIPTOR_SECONDS)
            return
        sock.setblocking(False)  # noqa: FBT003 - socket's signature
        connection = _Connection(sock, str(address[0]), self._clock() + _ASK_SECONDS)
        self._connections[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)
        # Mostly the request is there already, and then no later connection can delay it.
        self._go_on(connection)

    def _go_on(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._receive(connection)
            else:
                self._send(connection, connection.answer)
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("http client=%s: %s", connection.peer, error)
            self._hang_up(connection)

    def _receive(self, connection: _Connection) -> None:
        data = connection.sock.recv(MAX_HEAD)
        if not data:
            self._hang_up(connection)
            return
        connection.received += data
        head = head_of(connection.received)
        if head is None:
            return
        connection.ends = self._clock() + _ANSWER_SECONDS
        if path_of(head) in self._slow:
            self._selector.unregister(connection.sock)
            self._orders.put((connection, head))
        else:
            self._answer(connection, answer(head, connection.peer, self._pages))

    def _answer(self, connection: _Connection, data: bytes) -> None:
        connection.answer = memoryview(data)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.sock)
        self._selector.register(connection.sock, selectors.EVENT_WRITE, connection)
        self._go_on(connection)

    def _send(self, connection: _Connection, data: memoryview) -> None:
        connection.answer = data[connection.sock.send(data) :]
        if not connection.answer:
            # A kernel that closes a socket with bytes unread resets the connection, and the answer may be lost by it.
            connection.sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(BlockingIOError):
                connection.sock.recv(MAX_HEAD)
            self._hang_up(connection)

    def _hang_up(self, connection: _Connection) -> None:
        del self._connections[connection]
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.sock)
        connection.sock.close()

    # --- pages that take time ---

    def _make(self) -> None:
        while (order := self._orders.get()) is not None:
            connection, head = order
            # The page of a connection that was closed meanwhile is not made.
            if connection in self._connections and not self._stopping:
                self._made.append((connection, answer(head, connection.peer, self._pages)))
                self._wake.send(b"\0")

    def _take_made(self) -> None:
        self._woken.recv(MAX_HEAD)
        while self._made:
            connection, data = self._made.popleft()
            if connection in self._connections:
                self._answer(connection, data)
