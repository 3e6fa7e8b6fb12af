"""HTTP/1.1 as an API server speaks it: one request at a time on a socket that is kept.

A driver reads a claim for every pod that starts. The standard library's client needs six times the CPU, most of it to
parse headers like those of a mail. A body may have all forms of RFC 9112: a length, chunks, or everything until the
connection closes.
"""

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

_MAX_HEADERS: Final = 64 << 10
_MAX_CHUNK_LINE: Final = 1 << 10
# An API server takes no request above 3 MiB, and etcd stores 1.5 MiB; a list of one node's slices has a few of those.
MAX_BODY: Final = 32 << 20
_READ: Final = 64 << 10
_NO_BODY: Final = frozenset({204, 304})
_VERSION: Final = b"HTTP/1."
# As many as Go's client takes (net/http, max1xxResponses).
_MAX_ANNOUNCEMENTS: Final = 5
_SWITCHING_PROTOCOLS: Final = 101


def seconds_left(deadline: float) -> float:
    """Return the seconds until a time of `time.monotonic`.

    Raises:
        TimeoutError: the time is over.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class BrokenError(Exception):
    """The connection ended, or the answer is not HTTP.

    Attributes:
        untouched: whether nothing came back, so the server may have closed the connection before it saw the request.
    """

    def __init__(self, reason: str, *, untouched: bool = False) -> None:
        super().__init__(reason)
        self.untouched = untouched


class Head(msgspec.Struct, frozen=True):
    """An answer's status line and headers.

    Attributes:
        status: the HTTP status.
        headers: by name in lower case; if a name is repeated, the last one.
    """

    status: int
    headers: Mapping[str, str]

    @property
    def keeps(self) -> bool:
        """Return whether the connection can be used again after the body."""
        return self.headers.get("connection", "").lower() != "close"


class Connected(Protocol):
    """A connected socket, as far as a channel needs it."""

    def settimeout(self, seconds: float, /) -> None:
        """Set how long each of `send` and `recv` may take."""

    def send(self, data: Any, /) -> int:
        """Send data; how much of it was sent."""

    def recv(self, most: int, /) -> bytes:
        """Return what came, empty at the end."""

    def fileno(self) -> int:
        """Return the number of the connection's file."""

    def shutdown(self, how: int, /) -> None:
        """End the connection for its reader, from any thread."""

    def close(self) -> None:
        """Close the connection."""


class Channel:
    """One connection to a server. It belongs to one thread at a time; any thread may call `shutdown`.

    A request has one deadline for all of its parts (sending, 1xx answers, headers, body, trailers), so a server that
    sends a byte now and then cannot hold a thread for longer.
    """

    def __init__(self, connected: Connected) -> None:
        """Use a connected socket, which is closed with the channel."""
        self._socket = connected
        self._buffer = bytearray()
        self._came = False
        self._deadline = 0.0
        self.reusable = True

    def allow(self, seconds: float) -> None:
        """Set the deadline for all further reading and sending."""
        self._deadline = time.monotonic() + seconds

    def idle(self) -> bool:
        """Return whether nothing has come since the last answer; if the server has closed it, the end has come."""
        if self._buffer:
            return False
        # If something can be read now, it is the end of the connection or an answer without a request. Both make the
        # connection unusable.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def request(self, request: bytes, seconds: float) -> Head:
        """Send a request, and return the head of its answer; both may take `seconds` in all.

        Raises:
            BrokenError: the connection ended, or the answer is not HTTP.
            TimeoutError: the answer did not come in time.
        """
        self.send(request, seconds)
        return self.answer()

    def send(self, request: bytes, seconds: float) -> None:
        """Send a request, head and body; it and its answer may take `seconds` in all.

        Raises:
            BrokenError: the connection ended.
            TimeoutError: the request was not sent in time.
        """
        # Until the whole answer has been read, the connection cannot be used for another request.
        self.reusable = self._came = False
        self.allow(seconds)
        unsent = memoryview(request)
        try:
            while unsent:
                self._socket.settimeout(seconds_left(self._deadline))
                unsent = unsent[self._socket.send(unsent) :]
        except TimeoutError:
            raise
        except OSError as error:
            raise BrokenError(_reason(error), untouched=True) from error

    def answer(self) -> Head:
        """Return the head of the answer to the request that was sent.

        Raises:
            BrokenError: the connection ended, or the answer is not HTTP.
            TimeoutError: the answer did not come in time.
        """
        # 1xx answers come before the real one, for example 103 Early Hints.
        for _ in range(_MAX_ANNOUNCEMENTS + 1):
            head = self._head()
            if head.status == _SWITCHING_PROTOCOLS:
                raise BrokenError("the answer switches to another protocol")
            if head.status >= 200:  # noqa: PLR2004 - where the statuses of answers begin
                return head
        raise BrokenError(f"more than {_MAX_ANNOUNCEMENTS} answers with status 1xx came, and no final one")

    def body(self, head: Head, most: int | None = MAX_BODY) -> Iterator[bytes]:
        """Yield the answer's body as it comes; afterwards the connection may be used again.

        Args:
            head: the answer's head.
            most: the largest size that is accepted, in bytes; None for any.

        Raises:
            BrokenError: the connection ended in the middle, or the body is larger.
            TimeoutError: it did not come in time.
        """
        size = 0
        for piece in self._pieces(head):
            size += len(piece)
            if most is not None and size > most:
                raise BrokenError(f"the answer is larger than {most} bytes")
            yield piece

    def _pieces(self, head: Head) -> Iterator[bytes]:
        # The order is that of RFC 9112, section 6.3: a status without a body first, then chunks, whatever the length
        # says, then the length, then the end of the connection.
        coding = head.headers.get("transfer-encoding", "").lower()
        if head.status in _NO_BODY:
            self.reusable = head.keeps
        elif coding == "chunked":
            yield from self._chunks()
            self.reusable = head.keeps
        elif coding:
            raise BrokenError(f"the answer has the transfer encoding {coding[:40]!r}, which is not chunked")
        elif "content-length" in head.headers:
            yield from self._exactly(_length(head.headers["content-length"], 10))
            self.reusable = head.keeps
        else:
            yield from self._rest()

    def shutdown(self) -> None:
        """Let the reader see the end at once, from any thread."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _fill(self) -> None:
        try:
            self._socket.settimeout(seconds_left(self._deadline))
            came = self._socket.recv(_READ)
        except (TimeoutError, ssl.SSLError) as error:
            # A server that ends TLS without a close_notify has only closed the connection.
            if isinstance(error, ssl.SSLEOFError):
                raise BrokenError("the server closed the connection", untouched=not self._came) from error
            raise
        except OSError as error:
            raise BrokenError(_reason(error), untouched=not self._came) from error
        if not came:
            raise BrokenError("the server closed the connection", untouched=not self._came)
        self._buffer += came
        self._came = True

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _until(self, end: bytes, most: int) -> bytes:
        """Return what comes before `end`; both are taken out of the buffer."""
        while (at := self._buffer.find(end)) < 0:
            if len(self._buffer) > most:
                raise BrokenError(f"the answer has a head or a chunk's length of more than {most} bytes")
            self._fill()
        return self._take(at + len(end))[:at]

    def _head(self) -> Head:
        # Checked at once, because servers of other protocols never send the end of a head.
        while len(self._buffer) < len(_VERSION):
            self._fill()
        begins = bytes(self._buffer[:40])
        first, *lines = self._until(b"\r\n\r\n" if begins.startswith(_VERSION) else b"", _MAX_HEADERS).split(b"\r\n")
        version, _, rest = first.partition(b" ")
        status = rest[:3]
        if not status.isdigit():
            raise BrokenError(f"the answer is not HTTP/1: it begins with {begins!r}")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            # Names are compared without regard to case (RFC 9110, section 5.1). Latin-1 decodes any byte, so that a
            # proxy's strange header does not cause an error.
            headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        if version == b"HTTP/1.0":
            # HTTP/1.0 closes the connection after each answer.
            headers.setdefault("connection", "close")
        return Head(int(status), headers)

    def _exactly(self, count: int) -> Iterator[bytes]:
        while count:
            if not self._buffer:
                self._fill()
            piece = self._take(min(count, len(self._buffer)))
            count -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._until(b"\r\n", _MAX_CHUNK_LINE)
            # Extensions of a chunk stand after its length, and can be ignored (RFC 9112, section 7.1.1).
            length = _length(line.partition(b";")[0].decode("latin-1"), 16)
            yield from self._exactly(length)
            if not length:
                break
            if self._until(b"\r\n", _MAX_CHUNK_LINE):
                raise BrokenError("a chunk of the answer is longer than it says")
        # Trailers are read to find the end of the answer, and dropped (section 7.1.2).
        trailers = 0
        while trailer := self._until(b"\r\n", _MAX_HEADERS):
            trailers += len(trailer)
            if trailers > _MAX_HEADERS:
                raise BrokenError(f"the answer has more than {_MAX_HEADERS} bytes of trailers")

    def _rest(self) -> Iterator[bytes]:
        while True:
            if self._buffer:
                yield self._take(len(self._buffer))
            try:
                self._fill()
            except BrokenError:
                return


def _length(text: str, base: int) -> int:
    text = text.strip()
    # int() alone takes signs, spaces and underscores.
    if not text.isalnum():
        raise BrokenError(f"the answer's length is {text[:40]!r}")
    try:
        return int(text, base)
    except ValueError:
        raise BrokenError(f"the answer's length is {text[:40]!r}") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# The carrier of requests to an API server, as `Client` needs it.


class Outgoing(msgspec.Struct, frozen=True):
    """A request on its way.

    Attributes:
        method: the HTTP method.
        path: path and query.
        headers: the headers, without those of authentication.
        seconds: how long the request may take, from connecting to the end of the answer; in a stream, how long the
            head and then each line may take.
        body: the body to send.
        stream: whether the caller reads the answer's body.
        most: the largest answer that is accepted, or the largest line of a stream, in bytes.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    seconds: float
    body: bytes | None = None
    stream: bool = False
    most: int = MAX_BODY


class Wire(Protocol):
    """The carrier of requests."""

    def send(self, outgoing: Outgoing) -> Any:
        """Send a request; an answer with `status`, `headers` and `data`.

        Raises:
            UnreachableError: there is no answer.
        """


@runtime_checkable
class Begins(Protocol):
    """A carrier that can send further requests before it waits for an answer."""

    def begin(self, outgoing: Outgoing) -> Callable[[], Any] | None:
        """Send a request that only reads; returns what waits for its answer, or None if the request was not sent.

        Raises:
            UnreachableError: the credentials cannot be read.
        """
