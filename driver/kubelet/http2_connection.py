"""One HTTP/2 connection (RFC 9113), as far as gRPC on a unix socket needs it: bytes in, events out. No I/O, no threads.

Header compression is hpack's. What violates the protocol ends the connection: its peer is on this machine and connects
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from hpack import Decoder, HPACKError

from dranode.driver.kubelet.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    MAX_NUMBER,
    MAX_SIZE,
    NO_ERROR,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Frame,
    FrameReader,
    HTTP2Error,
    encoded_frame,
    header_block,
    unpadded,
)
from dranode.driver.kubelet.http2_windows import Windows

MAX_STREAMS: Final = 100
"""How many streams a client may have open at once."""

# Settings (section 6.5.2).
_ENABLE_PUSH, _MAX_CONCURRENT, _INITIAL_WINDOW, _MAX_FRAME = 2, 3, 4, 5
_MAX_ANY_SIZE: Final = (1 << 24) - 1
# Of packed headers, in however many frames; unpacked they may have as much.
_MAX_BLOCK: Final = 1 << 16


class HeadersCame(NamedTuple):
    """Headers; `first` if they open their stream, `ended` if nothing follows on it."""

    stream: int
    headers: dict[bytes, bytes]
    first: bool
    ended: bool


class DataCame(NamedTuple):
    """Bytes of a stream; `ended` if nothing follows on it."""

    stream: int
    data: bytes
    ended: bool


class StreamCut(NamedTuple):
    """The peer has given a stream up, with this error code."""

    stream: int
    code: int


class GoneAway(NamedTuple):
    """The peer has ended the connection, with this error code."""

    code: int


HTTP2Event = HeadersCame | DataCame | StreamCut | GoneAway


class HTTP2Connection:
    """One end of a connection. Not thread-safe.

    Attributes:
        highest: the last stream that was begun.
    """

    def __init__(self, *, client: bool = False) -> None:
        """The first bytes to be sent are there at once."""
        self.highest = 0
        self._client = client
        self._frames = FrameReader(b"" if client else PREFACE)
        self._decoder = Decoder()
        # Headers that go on in the next frame: their stream, their flags and what has come of them.
        self._block: tuple[int, int, bytearray] | None = None
        self._windows = Windows()
        self._max_size = MAX_SIZE
        self._happened: dict[int, Callable[[Frame], HTTP2Event | None]] = {
            DATA: self._data,
            HEADERS: self._headers_begun,
            CONTINUATION: self._headers_continued,
            RST_STREAM: self._cut,
            SETTINGS: self._settings,
            PING: self._pinged,
            WINDOW_UPDATE: self._grown,
            GOAWAY: lambda came: GoneAway(int.from_bytes(came.payload[4:8])),
            PUSH_PROMISE: self._promised,
        }
        self._out = bytearray(PREFACE if client else b"")
        setting, value = (_ENABLE_PUSH, 0) if client else (_MAX_CONCURRENT, MAX_STREAMS)
        self._say(SETTINGS, 0, 0, setting.to_bytes(2) + value.to_bytes(4))

    # --- what comes ---

    def receive(self, data: bytes) -> list[HTTP2Event]:
        """Take in what has come.

        Raises:
            HTTP2Error: the connection is over; `outgoing` has a last word.
        """
        self._frames.feed(data)
        events: list[HTTP2Event] = []
        try:
            while (came := self._frames.next()) is not None:
                if self._block is not None and (came.kind, came.stream) != (CONTINUATION, self._block[0]):
                    raise HTTP2Error(PROTOCOL_ERROR, f"the headers of stream {self._block[0]} break off")  # noqa: TRY301
                take_in = self._happened.get(came.kind)
                # What is not there is a priority, or of a later version.
                event = take_in(came) if take_in is not None else None
                if event is not None:
                    events.append(event)
        except HTTP2Error as error:
            self.go_away(self.highest, error.code)
            raise
        return events

    def _headers_begun(self, came: Frame) -> HTTP2Event | None:
        block = header_block(came.flags, came.payload)
        if came.flags & END_HEADERS:
            return self._headers(came.stream, came.flags, block)
        self._block = came.stream, came.flags, bytearray(block)
        return None

    def _headers_continued(self, came: Frame) -> HTTP2Event | None:
        if self._block is None:
            raise HTTP2Error(PROTOCOL_ERROR, "headers go on that were not begun")
        stream, flags, block = self._block
        block += came.payload
        if len(block) > _MAX_BLOCK:
            raise HTTP2Error(ENHANCE_YOUR_CALM, f"headers have more than {_MAX_BLOCK} bytes")
        if not came.flags & END_HEADERS:
            return None
        self._block = None
        return self._headers(stream, flags, bytes(block))

    def _headers(self, stream: int, flags: int, block: bytes) -> HTTP2Event | None:
        # Unpacked in any case: what the table of headers has depends on all that came.
        try:
            headers = {bytes(name): bytes(value) for name, value in self._decoder.decode(block, raw=True)}
        except (HPACKError, IndexError, TypeError, UnicodeDecodeError) as error:
            raise HTTP2Error(COMPRESSION_ERROR, f"{type(error).__name__}: {error}") from error
        first = not self._client and stream > self.highest
        if first and not self._accepted(stream):
            return None
        self._check_begun(stream)
        if not self._windows.receives(stream):
            return None  # it was given up meanwhile
        ended = bool(flags & END_STREAM)
        if ended:
            self._windows.end_receiving(stream)
        return HeadersCame(stream, headers, first, ended)

    def _accepted(self, stream: int) -> bool:
        """Whether a stream that a client begins is taken."""
        if not stream % 2:
            raise HTTP2Error(PROTOCOL_ERROR, f"stream {stream} is not a client's to begin")
        if len(self._windows) < MAX_STREAMS:
            self.begin(stream)
            return True
        self.highest = stream
        self.reset(stream, REFUSED_STREAM)
        return False

    def _check_begun(self, stream: int) -> None:
        if stream > self.highest or not stream % 2:
            raise HTTP2Error(PROTOCOL_ERROR, f"stream {stream} was never begun")

    def _data(self, came: Frame) -> HTTP2Event | None:
        stream, size = came.stream, len(came.payload)
        self._check_begun(stream)
        data, ended = unpadded(came.flags, came.payload), bool(came.flags & END_STREAM)
        self._spend(0, size)
        if not self._windows.receives(stream):
            if self._windows.sends(stream):
                raise HTTP2Error(STREAM_CLOSED, f"stream {stream} goes on after its end")
            return None  # it was given up meanwhile
        self._spend(stream, size)
        if ended:
            self._windows.end_receiving(stream)
        return DataCame(stream, data, ended)

    def _spend(self, stream: int, size: int) -> None:
        more = self._windows.spend(stream, size)
        if more:
            self._say(WINDOW_UPDATE, 0, stream, more.to_bytes(4))

    def _cut(self, came: Frame) -> HTTP2Event | None:
        self._check_begun(came.stream)
        self.forget(came.stream)
        return StreamCut(came.stream, int.from_bytes(came.payload))

    def _promised(self, came: Frame) -> None:
        raise HTTP2Error(PROTOCOL_ERROR, f"a stream is promised on stream {came.stream}")

    def _pinged(self, came: Frame) -> None:
        if not came.flags & ACK:
            self._say(PING, ACK, 0, came.payload)

    def _grown(self, came: Frame) -> None:
        if came.stream:
            self._check_begun(came.stream)
        self._windows.grow(came.stream, int.from_bytes(came.payload) & MAX_NUMBER)

    def _settings(self, came: Frame) -> None:
        if came.flags & ACK:
            if came.payload:
                raise HTTP2Error(FRAME_SIZE_ERROR, "settings are acknowledged and set at once")
            return
        if len(came.payload) % 6:
            raise HTTP2Error(FRAME_SIZE_ERROR, f"settings have {len(came.payload)} bytes")
        for at in range(0, len(came.payload), 6):
            self._set(int.from_bytes(came.payload[at : at + 2]), int.from_bytes(came.payload[at + 2 : at + 6]))
        self._say(SETTINGS, ACK, 0, b"")

    def _set(self, setting: int, value: int) -> None:
        if setting == _INITIAL_WINDOW:
            self._windows.begin_with(value)
        elif setting == _MAX_FRAME:
            if not MAX_SIZE <= value <= _MAX_ANY_SIZE:
                raise HTTP2Error(PROTOCOL_ERROR, f"frames are to have {value} bytes")
            self._max_size = value
        elif setting == _ENABLE_PUSH and value > 1:
            raise HTTP2Error(PROTOCOL_ERROR, f"pushing is to be {value}")

    # --- what is sent ---

    def begin(self, stream: int) -> None:
        """Let a stream be open at both ends."""
        self.highest = stream
        self._windows.begin(stream)

    def send_headers(self, stream: int, block: bytes, *, end: bool = False) -> None:
        """Send headers that are packed already and fit into a frame; `end`: nothing follows on the stream."""
        self._say(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)
        if end:
            self._windows.end_sending(stream)

    def send_data(self, stream: int, data: bytearray, *, end: bool = False) -> None:
        """Send as much of the data as the peer takes now, and take it out; `end`: nothing follows on the stream."""
        while data and (size := min(len(data), self._windows.room(stream), self._max_size)) > 0:
            last = end and size == len(data)
            self._say(DATA, END_STREAM if last else 0, stream, bytes(data[:size]))
            del data[:size]
            self._windows.sent(stream, size)
            if last:
                self._windows.end_sending(stream)

    def reset(self, stream: int, code: int) -> None:
        """Give a stream up."""
        self._say(RST_STREAM, 0, stream, code.to_bytes(4))
        self.forget(stream)

    def forget(self, stream: int) -> None:
        """Send nothing more on a stream, and pass over what still comes on it."""
        self._windows.forget(stream)

    def go_away(self, last: int, code: int = NO_ERROR) -> None:
        """Say that no stream after `last` is taken (section 6.8)."""
        self._say(GOAWAY, 0, 0, last.to_bytes(4) + code.to_bytes(4))

    def _say(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._out += encoded_frame(kind, flags, stream, payload)

    def outgoing(self) -> bytes:
        """Return the bytes to be sent, each once."""
        data = bytes(self._out)
        self._out.clear()
        return data
