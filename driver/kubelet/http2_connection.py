"""One HTTP/2 connection (RFC 9113), as far as gRPC on a unix socket needs it: bytes in, events out. No I/O, no threads.

Header compression is hpack's, and rare frames are hyperframe's (`http2_frames`). What violates the protocol ends the
connection: its peer is on this machine and connects again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from hpack import Decoder, HPACKError
from hyperframe.frame import (
    ContinuationFrame,
    Frame,
    GoAwayFrame,
    PingFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from dranode.driver.kubelet.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_SIZE,
    PREFACE,
    DataPart,
    ErrorCode,
    FrameReader,
    HeadersPart,
    HTTP2Error,
    frame_bytes,
)
from dranode.driver.kubelet.http2_windows import Windows

MAX_STREAMS: Final = 100
"""How many streams a client may have open at once."""

_MAX_ANY_SIZE: Final = (1 << 24) - 1
# Of packed headers, in however many frames; unpacked they may have as much.
_MAX_BLOCK: Final = 1 << 16
# Headers that are looked up and not unpacked: those of any call, and too few to make much of a few bytes.
_MAX_LOOKED_UP: Final = 32
_INDEXED: Final = 0x80
_TABLE_SIZE: Final = 0x20


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
        # Headers that go on in the next frame: the frame that began them, and what has come of them.
        self._block: tuple[HeadersPart, bytearray] | None = None
        self._windows = Windows()
        self._max_size = MAX_SIZE
        self._out = bytearray(PREFACE if client else b"")
        own = {SettingsFrame.ENABLE_PUSH: 0} if client else {SettingsFrame.MAX_CONCURRENT_STREAMS: MAX_STREAMS}
        self._say(SettingsFrame(0, own))

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
                frame, size = came
                event = self._happened(frame, size)
                if event is not None:
                    events.append(event)
        except HTTP2Error as error:
            self.go_away(self.highest, error.code)
            raise
        return events

    def _happened(self, frame: Frame | DataPart | HeadersPart, size: int) -> HTTP2Event | None:
        self._check_unbroken(frame)
        match frame:
            case DataPart():
                return self._data(frame, size)
            case HeadersPart():
                return self._headers_begun(frame)
            case ContinuationFrame():
                return self._headers_continued(frame)
            case RstStreamFrame():
                return self._cut(frame)
            case GoAwayFrame():
                return GoneAway(frame.error_code)
            case WindowUpdateFrame():
                self._grown(frame)
            case SettingsFrame():
                self._set(frame)
            case PingFrame() if "ACK" not in frame.flags:
                self._say(PingFrame(0, frame.opaque_data, flags=("ACK",)))
            case PushPromiseFrame():
                raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, f"a stream is promised on stream {frame.stream_id}")
            case _:
                pass  # a priority, or a frame of a later version
        return None

    def _check_unbroken(self, frame: Frame | DataPart | HeadersPart) -> None:
        if self._block is None:
            return
        stream = self._block[0].stream_id
        if not isinstance(frame, ContinuationFrame) or frame.stream_id != stream:
            raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, f"the headers of stream {stream} break off")

    def _headers_begun(self, came: HeadersPart) -> HTTP2Event | None:
        if came.whole:
            return self._headers(came, came.data)
        self._block = came, bytearray(came.data)
        return None

    def _headers_continued(self, came: ContinuationFrame) -> HTTP2Event | None:
        if self._block is None:
            raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, "headers go on that were not begun")
        begun, block = self._block
        block += came.data
        if len(block) > _MAX_BLOCK:
            raise HTTP2Error(ErrorCode.ENHANCE_YOUR_CALM, f"headers have more than {_MAX_BLOCK} bytes")
        if "END_HEADERS" not in came.flags:
            return None
        self._block = None
        return self._headers(begun, bytes(block))

    def _headers(self, begun: HeadersPart, block: bytes) -> HTTP2Event | None:
        # Unpacked in any case: what the table of headers has depends on all that came.
        try:
            headers = self._unpacked(block)
        except (HPACKError, IndexError, TypeError, UnicodeDecodeError) as error:
            raise HTTP2Error(ErrorCode.COMPRESSION_ERROR, f"{type(error).__name__}: {error}") from error
        stream = begun.stream_id
        first = not self._client and stream > self.highest
        if first and not self._accepted(stream):
            return None
        self._check_begun(stream)
        if not self._windows.receives(stream):
            return None  # it was given up meanwhile
        if begun.ended:
            self._windows.end_receiving(stream)
        return HeadersCame(stream, headers, first, begun.ended)

    def _unpacked(self, block: bytes) -> dict[bytes, bytes]:
        """Return the headers of a block; a call after the first begins with headers that both ends remember."""
        known: list[tuple[bytes, bytes]] = []
        table = self._decoder.header_table
        for byte in block[:_MAX_LOOKED_UP]:
            if byte <= _INDEXED or byte == 0xFF:  # noqa: PLR2004 - a longer number follows
                break
            known.append(table.get_by_index(byte - _INDEXED))
        rest = block[len(known) :]
        if rest and rest[0] & 0xE0 == _TABLE_SIZE:
            known, rest = [], block  # which only the beginning of a block may have
        if rest:
            known += self._decoder.decode(rest, raw=True)
        return {bytes(name): bytes(value) for name, value in known}

    def _accepted(self, stream: int) -> bool:
        """Return whether a stream that a client begins is taken."""
        if not stream % 2:
            raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, f"stream {stream} is not a client's to begin")
        if len(self._windows) < MAX_STREAMS:
            self.begin(stream)
            return True
        self.highest = stream
        self.reset(stream, ErrorCode.REFUSED_STREAM)
        return False

    def _check_begun(self, stream: int) -> None:
        if stream > self.highest or not stream % 2:
            raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, f"stream {stream} was never begun")

    def _data(self, came: DataPart, size: int) -> HTTP2Event | None:
        stream = came.stream_id
        self._check_begun(stream)
        # Padding counts too (section 6.9.1).
        self._spend(0, size)
        if not self._windows.receives(stream):
            if self._windows.sends(stream):
                raise HTTP2Error(ErrorCode.STREAM_CLOSED, f"stream {stream} goes on after its end")
            return None  # it was given up meanwhile
        self._spend(stream, size)
        if came.ended:
            self._windows.end_receiving(stream)
        return DataCame(*came)

    def _spend(self, stream: int, size: int) -> None:
        more = self._windows.spend(stream, size)
        if more:
            self._say(WindowUpdateFrame(stream, more))

    def _cut(self, came: RstStreamFrame) -> HTTP2Event | None:
        self._check_begun(came.stream_id)
        self.forget(came.stream_id)
        return StreamCut(came.stream_id, came.error_code)

    def _grown(self, came: WindowUpdateFrame) -> None:
        if came.stream_id:
            self._check_begun(came.stream_id)
        self._windows.grow(came.stream_id, came.window_increment)

    def _set(self, came: SettingsFrame) -> None:
        if "ACK" in came.flags:
            return
        settings: Mapping[int, int] = came.settings
        if SettingsFrame.INITIAL_WINDOW_SIZE in settings:
            self._windows.begin_with(settings[SettingsFrame.INITIAL_WINDOW_SIZE])
        self._max_size = settings.get(SettingsFrame.MAX_FRAME_SIZE, self._max_size)
        if not MAX_SIZE <= self._max_size <= _MAX_ANY_SIZE:
            raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, f"frames are to have {self._max_size} bytes")
        if settings.get(SettingsFrame.ENABLE_PUSH, 0) > 1:
            raise HTTP2Error(ErrorCode.PROTOCOL_ERROR, "pushing is neither 0 nor 1")
        self._say(SettingsFrame(0, flags=("ACK",)))

    # --- what is sent ---

    def begin(self, stream: int) -> None:
        """Let a stream be open at both ends."""
        self.highest = stream
        self._windows.begin(stream)

    def send_headers(self, stream: int, block: bytes, *, end: bool = False) -> None:
        """Send headers that are packed already and fit into a frame; `end`: nothing follows on the stream."""
        self._out += frame_bytes(HEADERS, END_HEADERS | END_STREAM if end else END_HEADERS, stream, block)
        if end:
            self._windows.end_sending(stream)

    def send_data(self, stream: int, data: bytearray, *, end: bool = False) -> None:
        """Send as much of the data as the peer takes now, and take it out; `end`: nothing follows on the stream."""
        while data and (size := min(len(data), self._windows.room(stream), self._max_size)) > 0:
            last = end and size == len(data)
            self._out += frame_bytes(DATA, END_STREAM if last else 0, stream, bytes(data[:size]))
            del data[:size]
            self._windows.sent(stream, size)
            if last:
                self._windows.end_sending(stream)

    def reset(self, stream: int, code: ErrorCode) -> None:
        """Give a stream up."""
        self._say(RstStreamFrame(stream, code))
        self.forget(stream)

    def forget(self, stream: int) -> None:
        """Send nothing more on a stream, and pass over what still comes on it."""
        self._windows.forget(stream)

    def go_away(self, last: int, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Say that no stream after `last` is taken (section 6.8)."""
        self._say(GoAwayFrame(0, last, code))

    def _say(self, frame: Frame) -> None:
        self._out += frame.serialize()

    def outgoing(self) -> bytes:
        """Return the bytes to be sent, each once."""
        data = bytes(self._out)
        self._out.clear()
        return data
