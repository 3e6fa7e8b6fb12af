"""HTTP/1.1 as an API server speaks it: one request at a time on a socket that is kept.

A driver reads a claim on the way of every pod. The standard library's client takes six times the CPU of what is done
here, most of it for reading headers as those of a mail. What is read is what RFC 9112 lets a server send: a length,
chunks, or all until the connection closes.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

_MAX_HEADERS: Final = 64 << 10
_MAX_CHUNK_LINE: Final = 1 << 10
_READ: Final = 64 << 10
_NO_BODY: Final = frozenset({204, 304})


class BrokenError(Exception):
    """The connection ended, or what came on it is not HTTP.

    Attributes:
        untouched: nothing came back, so that the server may have closed the connection before it saw the request.
    """

    def __init__(self, reason: str, *, untouched: bool = False) -> None:
        super().__init__(reason)
        self.untouched = untouched


class Head(msgspec.Struct, frozen=True):
    """An answer's status line and headers.

    Attributes:
        status: the HTTP status.
        headers: by name in lower case; of several of one name the last.
    """

    status: int
    headers: Mapping[str, str]

    @property
    def keeps(self) -> bool:
        """Return whether the connection can be used again after the body."""
        return self.headers.get("connection", "").lower() != "close"


class Channel:
    """One connection to a server. It belongs to one thread at a time; `shutdown` may come from any."""

    def __init__(self, connected: socket.socket) -> None:
        """Speak on a connected socket, which is closed with the channel."""
        self._socket = connected
        self._buffer = bytearray()
        self._came = False
        self.reusable = True

    def idle(self) -> bool:
        """Return whether nothing has come since the last answer; a server that has closed the connection says so."""
        if self._buffer:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def request(self, request: bytes, seconds: float) -> Head:
        """Send a request; the head of its answer: `send` and `answer`."""
        self.send(request, seconds)
        return self.answer(seconds)

    def send(self, request: bytes, seconds: float) -> None:
        """Send a request.

        Args:
            request: head and body.
            seconds: how long the server may take to let it through.

        Raises:
            BrokenError: the connection ended.
            TimeoutError: it did not go through in time.
        """
        self.reusable = self._came = False
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(request)
        except TimeoutError:
            raise
        except OSError as error:
            raise BrokenError(_reason(error), untouched=True) from error

    def answer(self, seconds: float) -> Head:
        """Return the head of the answer to what was sent; the server may take `seconds` for each part.

        Raises:
            BrokenError: the connection ended, or the answer is not HTTP.
            TimeoutError: nothing came in time.
        """
        self._socket.settimeout(seconds)
        while True:
            head = self._head()
            # 100 and its like announce the answer that follows.
            if head.status >= 200:  # noqa: PLR2004 - where the statuses of answers begin
                return head

    def body(self, head: Head) -> Iterator[bytes]:
        """The answer's body, piece by piece as it comes; afterwards the connection may be used again.

        Raises:
            BrokenError: the connection ended in the middle.
            TimeoutError: nothing came in time.
        """
        if head.status in _NO_BODY:
            self.reusable = head.keeps
        elif head.headers.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
            self.reusable = head.keeps
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
            came = self._socket.recv(_READ)
        except (TimeoutError, ssl.SSLError) as error:
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
        """Return what stands before `end`, which is taken too."""
        while (at := self._buffer.find(end)) < 0:
            if len(self._buffer) > most:
                raise BrokenError(f"the answer has a head or a chunk's length of more than {most} bytes")
            self._fill()
        return self._take(at + len(end))[:at]

    def _head(self) -> Head:
        first, *lines = self._until(b"\r\n\r\n", _MAX_HEADERS).split(b"\r\n")
        version, _, rest = first.partition(b" ")
        status = rest[:3]
        if not version.startswith(b"HTTP/1.") or not status.isdigit():
            raise BrokenError(f"the answer is not HTTP/1: it begins with {first[:40]!r}")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        if version == b"HTTP/1.0":
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
            length = _length(line.partition(b";")[0].decode("latin-1"), 16)
            yield from self._exactly(length)
            if not length:
                break
            if self._until(b"\r\n", _MAX_CHUNK_LINE):
                raise BrokenError("a chunk of the answer is longer than it says")
        while self._until(b"\r\n", _MAX_HEADERS):
            pass  # trailers

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
