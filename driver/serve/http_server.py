"""Serves HTTP to many clients in one thread, with limits, so that no connection keeps the others waiting.

Any peer that reaches the pod's address can connect, and kubelet kills a driver whose probes are not answered. So a
whole request has to arrive within a few seconds. If there are too many connections, the oldest one of the peer with
most connections is closed, never the newest, because kubelet's probes send their request at once. This thread answers
probes itself; pages that take time are made by another thread.
"""

import contextlib
import logging
import os
import re
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from queue import SimpleQueue
from typing import Final

import msgspec

from dranode.api.errors import DranodeError, UsageError, in_words
from dranode.driver.process.threads import Fatal, OwnedThread

log = logging.getLogger(__name__)


# Requests and answers: pages by path, one request and one answer for each connection. The pages contain nothing secret
# and change nothing, so there is no TLS. The DaemonSet serves them on the pod's address; the default is the loopback
# interface.

# Requests of Prometheus and kubelet have a few hundred bytes.
MAX_HEAD: Final = 16 * 1024
_ORIGIN: Final = re.compile(r"\A(?:https?://[^/]*)?/*", re.IGNORECASE)
_PLAIN: Final = "text/plain; charset=utf-8"


class Page(msgspec.Struct, frozen=True):
    """The answer to a path."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _PLAIN


# Returns the page of a path for an Accept header.
Make = Callable[[str], Page]


def verdict(problems: Iterable[str], ok: str) -> Page:
    """Return the page of a probe: 200 with the word `ok`, or 503 with the problems, one sentence per line."""
    lines = tuple(problems)
    if not lines:
        return Page(f"{ok}\n".encode())
    return Page("".join(f"{line}\n" for line in lines).encode(), HTTPStatus.SERVICE_UNAVAILABLE)


def head_of(received: bytes | bytearray) -> bytes | None:
    """Return the request line and the headers once they are complete, or too long; None until then."""
    # RFC 9112 (section 2.2) lets a server accept lines that end with LF alone.
    ends = [start + len(end) for end in (b"\r\n\r\n", b"\n\n") if (start := received.find(end)) >= 0]
    if ends:
        return bytes(received[: min(ends)])
    return bytes(received[:MAX_HEAD]) if len(received) >= MAX_HEAD else None


def path_of(head: bytes) -> str:
    """Return the requested path without its query, and without the origin that clients of a proxy send (RFC 9112)."""
    words = head.partition(b"\n")[0].split()
    return _ORIGIN.sub("/", words[1].partition(b"?")[0].decode("latin-1"), count=1) if len(words) > 1 else ""


def answer(head: bytes, client: str, pages: Mapping[str, Make]) -> bytes:
    """Return the whole answer to a request; the connection is closed after it."""
    handler = _Exchange(head, client, pages)
    return handler.wfile.getvalue()


class _Exchange(BaseHTTPRequestHandler):
    """One request in memory, without a socket."""

    server_version = "dranode"
    sys_version = ""
    # Otherwise http.server would answer a request without a version as HTTP/0.9, without a status line.
    default_request_version = "HTTP/1.0"
    wfile: BytesIO
    raw_requestline: bytes

    def __init__(self, head: bytes, client: str, pages: Mapping[str, Make]) -> None:
        self.rfile, self.wfile = BytesIO(head), BytesIO()
        self.client_address = (client, 0)
        self._pages = pages
        if len(head) >= MAX_HEAD:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self.handle_one_request()

    def do_GET(self) -> None:
        page = self._page()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET  # noqa: N815 - http.server looks for this name

    def _page(self) -> Page:
        path = path_of(self.raw_requestline)
        make = self._pages.get(path)
        if make is None:
            paths = ", ".join(self._pages)
            return Page(f"there is no {path}; there is {paths}\n".encode(errors="replace"), HTTPStatus.NOT_FOUND)
        try:
            return make(self.headers.get("Accept", ""))
        except Exception as error:
            log.exception("page=%s failed", path)
            return Page(
                f"{path} failed: {in_words(error)}\n".encode(errors="replace"), HTTPStatus.INTERNAL_SERVER_ERROR
            )

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log only at debug level, because probes come every few seconds."""
        log.debug("http client=%s %s", self.client_address[0], format % args)


# Enough for Prometheus, kubelet and a few people. Each takes a file descriptor, and the ledger needs some too.
MAX_CONNECTIONS: Final = 32
# From the connection to the last byte of the request, and from there to the last byte of the answer.
_ASK_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 10.0
# How long to wait if the process has no file descriptor left: select would return at once all the time.
_NO_DESCRIPTOR_SECONDS: Final = 0.1


class _Connection(msgspec.Struct, eq=False):
    """A client that has connected.

    Attributes:
        sock: its socket.
        peer: its address.
        deadline: when it is closed at the latest.
        received: what it has sent so far.
        answer: the rest of the answer; None while the request is not complete.
    """

    sock: socket.socket
    peer: str
    deadline: float
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
            pages: the functions that return the pages, by path.
            fatal: ends the process with a sentence.
            slow: the paths whose pages take time, so that another thread makes them.
            name: the name of the thread.
            clock: returns seconds and never goes back.
        """
        self._listener = listener
        self._pages = pages
        self._slow = slow
        self._clock = clock
        # The oldest first.
        self._connections: dict[_Connection, None] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._stopping = False
        # Whether the lack of file descriptors was logged.
        self._starved = False
        self._orders: SimpleQueue[tuple[_Connection, bytes] | None] = SimpleQueue()
        self._made: deque[tuple[_Connection, bytes]] = deque()
        self._thread = OwnedThread(name, self._serve, fatal)
        self._maker = OwnedThread(f"{name}-slow", self._make, fatal) if slow else None

    @property
    def port(self) -> int:
        """Return the port of the socket."""
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
        for file in (self._listener, self._wake, self._woken, self._selector):
            file.close()

    def _serve(self) -> None:
        while not self._stopping:
            deadline = min((connection.deadline for connection in self._connections), default=None)
            timeout = None if deadline is None else max(0.0, deadline - self._clock())
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._send_made()
                # An earlier event of the same round may have closed it.
                elif key.data in self._connections:
                    self._go_on(key.data)
            now = self._clock()
            for late in [connection for connection in self._connections if connection.deadline <= now]:
                log.debug("http client=%s: closed, because it was too slow", late.peer)
                self._hang_up(late)

    def _accept(self) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            counts = Counter(connection.peer for connection in self._connections)
            # `max` returns the first of equals, which is the oldest connection of this peer.
            self._hang_up(max(self._connections, key=lambda connection: counts[connection.peer]))
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client hung up before it was accepted
        except OSError as error:
            if not self._starved:
                log.warning("http=%s: no connection can be accepted: %s", self.port, error.strerror)
            self._starved = True
            time.sleep(_NO_DESCRIPTOR_SECONDS)
            return
        self._starved = False
        sock.setblocking(False)  # noqa: FBT003 - socket's signature
        connection = _Connection(sock, str(address[0]), self._clock() + _ASK_SECONDS)
        self._connections[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)
        # Usually the request has arrived already. Answered now, it cannot be delayed by later connections.
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
        connection.deadline = self._clock() + _ANSWER_SECONDS
        if path_of(head) in self._slow:
            # Not watched until the page is made: a client that hangs up would make the selector return at once all the
            # time.
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
            # If a socket with unread bytes is closed, the kernel resets the connection, and the client may lose the
            # answer.
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

    def _send_made(self) -> None:
        self._woken.recv(MAX_HEAD)
        while self._made:
            # The connection may have been closed between the check in `_make` and now, by this thread.
            connection, data = self._made.popleft()
            if connection in self._connections:
                self._answer(connection, data)


# The address of probes and metrics. It is bound before anything else, so that a start with a taken port fails at once.

NONE: Final = "none"
_ADDRESS: Final = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*)):([0-9]{1,5})", re.ASCII)
_MAX_PORT: Final = 65535
# A client that finds this queue full tries again after a second, which is all the time that a probe has by default.
_QUEUE: Final = 1024


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[IPv6]:PORT`, `:PORT` or `[::]:PORT` (all addresses), an option's value.

    Raises:
        UsageError: the text has another form.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise UsageError(f'{option} must be HOST:PORT, [IPv6]:PORT or {NONE}, not "{text}"')
    return match[1] or match[2] or "", int(match[3])


def bind_address(text: str, option: str = "--http-address") -> socket.socket | None:
    """Return a socket that listens on the address in an option; None for `none`. Port 0 means any free port.

    Raises:
        UsageError: the text is not an address.
        DranodeError: the address cannot be bound; says why.
    """
    if text == NONE:
        return None
    host, port = parse_address(text, option)
    try:
        # As bytes if possible: for a text, Python loads its codec for international names.
        name = host.encode() if host.isascii() else host
        family = socket.getaddrinfo(name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        everywhere = host in ("", "::") and socket.has_dualstack_ipv6()
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if everywhere else family, backlog=_QUEUE, dualstack_ipv6=everywhere
        )
    except (OSError, UnicodeError) as error:
        # The text of an OSError names the address once more, so the reason is taken from its number. A name that does
        # not resolve has no number, and a text that cannot be a name (`a..b`) is a UnicodeError.
        reason: str | None = "it is not a host name"
        if isinstance(error, OSError):
            reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise DranodeError(
            f"cannot listen on the HTTP address {text}: {reason}; "
            f"choose another with {option}, or {NONE} for no such address"
        ) from error
