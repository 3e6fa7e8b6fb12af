"""What a connection makes of frames that h2's client would never send, and of those that it seldom sends (RFC 9113)."""

from __future__ import annotations

import pytest
from hpack import Decoder
from hyperframe.frame import Frame

from dranode.driver.kubelet.http2_connection import (
    MAX_STREAMS,
    DataCame,
    HeadersCame,
    HTTP2Connection,
    HTTP2Event,
    StreamCut,
)
from dranode.driver.kubelet.http2_frames import PREFACE, ErrorCode, HTTP2Error, literal

# Types of frames (RFC 9113, section 6).
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
# Flags; END_STREAM and ACK are the same bit in different frames.
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame as it travels, right or wrong."""
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3), kind, flags, stream.to_bytes(4), payload)


BEGIN = PREFACE + frame(SETTINGS, 0, 0, b"")
BLOCK = literal(b"a", b"b")
HEAD = frame(HEADERS, END_HEADERS, 1, BLOCK)


def setting(number: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, number.to_bytes(2) + value.to_bytes(4))


def said(connection: HTTP2Connection) -> list[tuple[int | None, int, bytes]]:
    """Type, stream and payload of the frames that it has to say."""
    data, frames = memoryview(connection.outgoing()), []
    while data:
        each, size = Frame.parse_frame_header(data[:9])
        each.parse_body(data[9 : 9 + size])
        frames.append((each.type, each.stream_id, each.serialize_body()))
        data = data[9 + size :]
    return frames


def begun() -> HTTP2Connection:
    connection = HTTP2Connection()
    connection.receive(BEGIN)
    said(connection)
    return connection


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"X" * 9, ErrorCode.PROTOCOL_ERROR),
        (PREFACE + frame(PING, 0, 0, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (PREFACE + frame(SETTINGS, ACK, 0, b""), ErrorCode.PROTOCOL_ERROR),
    ],
    ids=["preface", "no settings", "acknowledged settings"],
)
def test_what_does_not_begin_as_a_client_does_is_refused(data: bytes, code: int) -> None:
    with pytest.raises(HTTP2Error) as refused:
        HTTP2Connection().receive(data)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(DATA, 0, 0, b"a"), ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, b"a"), ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, b"a" * 16_385), ErrorCode.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS, 2, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 0, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xff" * 20), ErrorCode.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\3abc"[:3]), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b""), ErrorCode.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS | PRIORITIZED, 1, b"abcd"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 3, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (
            frame(HEADERS, 0, 1, b"a" * 16_000) + frame(CONTINUATION, 0, 1, b"a" * 16_000) * 4,
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK) + frame(DATA, 0, 1, b"a"), ErrorCode.STREAM_CLOSED),
        (frame(RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (HEAD + frame(RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.PROTOCOL_ERROR),
        (setting(2, 2), ErrorCode.PROTOCOL_ERROR),
        (setting(4, 1 << 31), ErrorCode.FLOW_CONTROL_ERROR),
        (
            HEAD + frame(WINDOW_UPDATE, 0, 1, (0x7FFF0000).to_bytes(4)) + setting(4, 1 << 30),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (setting(5, 16_383), ErrorCode.PROTOCOL_ERROR),
        (setting(5, 1 << 24), ErrorCode.PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 3, (1).to_bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, (0x7FFFFFFF).to_bytes(4)), ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_what_is_not_allowed_ends_the_connection_with_its_code(data: bytes, code: int) -> None:
    connection = begun()
    with pytest.raises(HTTP2Error) as refused:
        connection.receive(data)
    assert refused.value.code == code
    last = said(connection)[-1]
    assert (last[0], int.from_bytes(last[2][4:])) == (GOAWAY, code)


def test_windows_are_enlarged_before_they_are_used_up() -> None:
    connection = begun()
    connection.receive(HEAD + frame(DATA, 0, 1, b"a" * 16_384))
    assert said(connection) == []
    connection.receive(frame(DATA, 0, 1, b"a" * 16_384))
    more = (32_768).to_bytes(4)
    assert said(connection) == [(WINDOW_UPDATE, 0, more), (WINDOW_UPDATE, 1, more)]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_frames_come_whole_however_they_are_cut(size: int) -> None:
    padded = frame(HEADERS, END_HEADERS | PADDED | PRIORITIZED, 1, b"\2" + bytes(5) + BLOCK + bytes(2))
    split = frame(HEADERS, END_STREAM, 3, BLOCK[:1]) + frame(CONTINUATION, 0, 3, BLOCK[1:2])
    data = BEGIN + padded + frame(PRIORITY, 0, 9, bytes(5)) + frame(99, 0, 5, b"later") + split
    data += frame(CONTINUATION, END_HEADERS, 3, BLOCK[2:]) + frame(DATA, PADDED | END_STREAM, 1, b"\3xyz" + bytes(3))
    connection, events = HTTP2Connection(), list[HTTP2Event]()
    for at in range(0, len(data), size):
        events += connection.receive(data[at : at + size])
    assert events == [
        HeadersCame(1, {b"a": b"b"}, first=True, ended=False),
        HeadersCame(3, {b"a": b"b"}, first=True, ended=True),
        DataCame(1, b"xyz", ended=True),
    ]


def test_padding_counts_as_what_was_sent() -> None:
    connection = begun()
    connection.receive(HEAD + frame(DATA, PADDED, 1, b"\xff" + bytes(255)) * 127)
    assert said(connection) == []
    connection.receive(frame(DATA, PADDED, 1, b"\xff" + bytes(255)))
    assert [kind for kind, _, _ in said(connection)] == [WINDOW_UPDATE, WINDOW_UPDATE]


def test_what_comes_on_a_stream_that_was_given_up_is_passed_over() -> None:
    connection = begun()
    connection.receive(HEAD)
    connection.reset(1, ErrorCode.REFUSED_STREAM)
    late = frame(DATA, 0, 1, b"a") + frame(WINDOW_UPDATE, 0, 1, (1).to_bytes(4)) + frame(HEADERS, END_HEADERS, 1, BLOCK)
    assert connection.receive(late) == []
    assert connection.receive(frame(RST_STREAM, 0, 1, (8).to_bytes(4))) == [StreamCut(1, 8)]
    connection.send_data(1, bytearray(b"to nobody"))
    assert [kind for kind, _, _ in said(connection)] == [RST_STREAM]


def test_headers_that_a_refused_stream_brought_are_known_to_later_ones() -> None:
    """Each end's table of headers follows what was sent, taken or not (RFC 7541, section 2.2)."""
    connection = begun()
    remembered = b"\x40\1a\1b"
    for number in range(MAX_STREAMS):
        connection.receive(frame(HEADERS, END_HEADERS, 2 * number + 1, BLOCK))
    assert connection.receive(frame(HEADERS, END_HEADERS, 999, remembered)) == []
    assert said(connection) == [(RST_STREAM, 999, ErrorCode.REFUSED_STREAM.to_bytes(4))]
    connection.forget(1)
    (event,) = connection.receive(frame(HEADERS, END_HEADERS, 1001, b"\xbe"))
    assert event == HeadersCame(1001, {b"a": b"b"}, first=True, ended=False)


def test_larger_frames_are_sent_to_a_peer_that_takes_them() -> None:
    connection = begun()
    connection.receive(setting(5, 20_000) + HEAD)
    said(connection)
    data = bytearray(20_000)
    connection.send_data(1, data, end=True)
    assert connection.outgoing() == frame(DATA, END_STREAM, 1, bytes(20_000))
    assert not data


def test_a_window_that_was_made_smaller_lets_nothing_go_until_it_has_grown() -> None:
    connection = begun()
    connection.receive(HEAD)
    data = bytearray(200)
    connection.send_data(1, data[:100])
    connection.receive(setting(4, 50))
    said(connection)
    connection.send_data(1, data)
    assert said(connection) == []
    connection.receive(frame(WINDOW_UPDATE, 0, 1, (60).to_bytes(4)))
    connection.send_data(1, data)
    assert [len(payload) for _, _, payload in said(connection)] == [10]


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 300, 12_000])
def test_a_packed_header_is_what_hpack_reads(size: int) -> None:
    packed = literal(b"grpc-message", b"x" * size)
    assert [tuple(each) for each in Decoder().decode(packed, raw=True)] == [(b"grpc-message", b"x" * size)]
