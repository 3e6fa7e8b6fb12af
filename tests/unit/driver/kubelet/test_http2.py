"""One connection of the server without a socket: h2's client at the other end, and bytes that no client sends."""

from __future__ import annotations

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, PingAckReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes

from dranode.driver.kubelet.grpc_values import MAX_MESSAGE, RPCError, with_length, without_length
from dranode.driver.kubelet.http2 import Ended, HungUpError, Request, ServerConnection

HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/v1.DRAPlugin/NodePrepareResources",
    ":authority": "localhost",
    "content-type": "application/grpc",
    "te": "trailers",
}


class Pair:
    """A client and the server's end, with nothing in between."""

    def __init__(self, window: int | None = None) -> None:
        self.server = ServerConnection()
        self.client = H2Connection(H2Configuration(client_side=True))
        if window is not None:
            self.client.local_settings = type(self.client.local_settings)(
                client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window}
            )
        self.client.initiate_connection()
        self.events: list[Event] = []
        self.happened: list[Request | Ended] = []
        self.flow()

    def flow(self) -> list[Request | Ended]:
        """Carry bytes both ways until there are none; what the server made of them."""
        seen: list[Request | Ended] = []
        while True:
            there = self.client.data_to_send()
            seen += self.server.receive(there) if there else []
            back = self.server.outgoing()
            self.events += self.client.receive_data(back) if back else []
            if not (there or back):
                return seen

    def ask(self, message: bytes = b"", headers: dict[str, str] | None = None, *, end: bool = True) -> int:
        stream = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, list((HEADERS | (headers or {})).items()))
        data = with_length(message)
        self.flow()
        while data:
            size = min(self.client.local_flow_control_window(stream), 16384, len(data))
            assert size, "the server gives the client nothing to send"
            self.client.send_data(stream, data[:size])
            data = data[size:]
            self.happened += self.flow()
        if end:
            self.client.end_stream(stream)
            self.happened += self.flow()
        return stream

    def headers(self, stream: int) -> dict[str, str]:
        """What the client was sent in headers and trailers."""
        blocks = [
            event.headers
            for event in self.events
            if isinstance(event, (ResponseReceived, TrailersReceived)) and event.stream_id == stream
        ]
        return {str(name): str(value) for block in blocks for name, value in decoded(block)}

    def data(self, stream: int) -> bytes:
        return b"".join(
            event.data for event in self.events if isinstance(event, DataReceived) and event.stream_id == stream
        )

    def ended(self, stream: int) -> bool:
        return any(isinstance(event, StreamEnded) and event.stream_id == stream for event in self.events)

    def resets(self, stream: int) -> list[int]:
        return [
            int(event.error_code or 0)
            for event in self.events
            if isinstance(event, StreamReset) and event.stream_id == stream
        ]


def decoded(block: object) -> list[tuple[str, str]]:
    pairs: list[tuple[bytes | str, bytes | str]] = list(block)  # type: ignore[call-overload]
    return [tuple(part.decode() if isinstance(part, bytes) else part for part in pair) for pair in pairs]  # type: ignore[misc]


def test_a_call_comes_whole_and_is_answered() -> None:
    pair = Pair()
    stream = pair.ask(b"question", {"grpc-timeout": "45S"})
    assert pair.happened == [Request(stream, HEADERS[":path"], b"question", 45.0)]
    pair.server.answer(stream, b"answer")
    pair.flow()
    assert pair.headers(stream) == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    assert without_length(pair.data(stream)) == b"answer"
    assert pair.ended(stream)
    assert not pair.server.calls


def test_a_refusal_is_headers_alone() -> None:
    pair = Pair()
    stream = pair.ask()
    pair.server.finish(stream, 14, "nobody is für it: 100 %")
    pair.flow()
    assert pair.headers(stream)["grpc-status"] == "14"
    assert pair.headers(stream)["grpc-message"] == "nobody is f%C3%BCr it: 100 %25"
    assert pair.data(stream) == b""
    assert pair.ended(stream)


def test_a_request_larger_than_all_windows_comes_whole() -> None:
    pair = Pair()
    message = bytes(range(256)) * 4096
    pair.ask(message)
    (request,) = pair.happened
    assert isinstance(request, Request)
    assert request.message == message


@pytest.mark.parametrize("window", [1, 1000, 1 << 20])
def test_an_answer_waits_for_its_caller_to_take_more(window: int) -> None:
    pair = Pair(window)
    stream = pair.ask()
    pair.server.answer(stream, b"x" * 100_000)
    pair.flow()
    taken = len(pair.data(stream))
    assert taken == min(window, 65535)
    assert pair.server.waits(stream)
    while pair.server.open(stream):
        pair.client.increment_flow_control_window(50_000)
        pair.client.increment_flow_control_window(50_000, stream)
        pair.flow()
    assert without_length(pair.data(stream)) == b"x" * 100_000
    assert pair.ended(stream)


def test_a_window_that_grows_by_settings_lets_an_answer_go_on() -> None:
    pair = Pair(10)
    stream = pair.ask()
    pair.server.answer(stream, b"x" * 100)
    pair.flow()
    assert pair.server.waits(stream)
    pair.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    pair.flow()
    assert without_length(pair.data(stream)) == b"x" * 100


def test_a_request_above_the_limit_is_refused_before_it_has_come() -> None:
    pair = Pair()
    with pytest.raises(StreamClosedError):
        pair.ask(b"x" * (MAX_MESSAGE + 100_000))
    stream = 1
    assert pair.headers(stream)["grpc-status"] == "8"
    assert "a request may have 4194304 bytes" in pair.headers(stream)["grpc-message"]
    assert pair.happened == []
    # What of it was on its way harms nobody else.
    other = pair.ask(b"next")
    assert pair.happened == [Request(other, HEADERS[":path"], b"next", None)]


def test_a_request_above_the_limit_that_ends_with_the_same_bytes_is_refused() -> None:
    pair = Pair()
    stream = pair.ask(b"x" * (MAX_MESSAGE - 10), end=False)
    pair.client.send_data(stream, b"x" * 100, end_stream=True)
    assert pair.flow() == []
    assert pair.headers(stream)["grpc-status"] == "8"
    assert not pair.server.calls


def test_a_call_that_is_taken_back_is_known_and_answered_no_more() -> None:
    pair = Pair()
    stream = pair.ask()
    pair.client.reset_stream(stream, ErrorCodes.CANCEL)
    assert pair.flow() == [Ended(stream)]
    pair.server.answer(stream, b"too late")
    pair.server.send(stream, b"too late")
    assert pair.server.outgoing() == b""
    assert not pair.server.open(stream)


@pytest.mark.parametrize("kind", ["application/grpc", "text/plain"])
def test_a_call_that_is_taken_back_in_the_same_bytes_is_none(kind: str) -> None:
    pair = Pair()
    for _ in range(300):
        stream = pair.client.get_next_available_stream_id()
        pair.client.send_headers(stream, list((HEADERS | {"content-type": kind}).items()))
        pair.client.send_data(stream, with_length(b"x"), end_stream=True)
        pair.client.reset_stream(stream, ErrorCodes.CANCEL)
    assert pair.flow() == []
    assert not pair.server.calls
    pair.ask(b"next")
    assert len(pair.happened) == 1


def test_a_call_taken_back_while_its_answer_waits_is_forgotten() -> None:
    pair = Pair(5)
    stream = pair.ask()
    pair.server.answer(stream, b"x" * 100)
    pair.flow()
    pair.client.increment_flow_control_window(50)
    pair.client.reset_stream(stream)
    pair.flow()
    assert not pair.server.calls


@pytest.mark.parametrize(
    ("data", "status"), [(b"", 13), (b"\0\0\0\0\5abc", 13), (with_length(b"a") * 2, 13), (b"\1\0\0\0\1a", 12)]
)
def test_what_is_not_one_plain_message_is_reported(data: bytes, status: int) -> None:
    pair = Pair()
    stream = pair.client.get_next_available_stream_id()
    pair.client.send_headers(stream, list(HEADERS.items()))
    pair.client.send_data(stream, data, end_stream=True)
    (request,) = pair.flow()
    assert isinstance(request, Request)
    assert isinstance(request.message, RPCError)
    assert request.message.status == status


@pytest.mark.parametrize("end", [True, False])
def test_what_is_not_grpc_is_unsupported(*, end: bool) -> None:
    pair = Pair()
    stream = pair.client.get_next_available_stream_id()
    pair.client.send_headers(stream, list((HEADERS | {"content-type": "application/json"}).items()), end_stream=end)
    pair.flow()
    assert pair.headers(stream) == {":status": "415"}
    assert pair.happened == []


def test_pings_are_answered() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    pair.flow()
    assert [event.ping_data for event in pair.events if isinstance(event, PingAckReceived)] == [b"12345678"]


def test_a_server_that_goes_away_answers_what_came_and_refuses_what_comes() -> None:
    pair = Pair()
    stream = pair.ask(b"before")
    pair.server.go_away()
    late = pair.client.get_next_available_stream_id()
    pair.client.send_headers(late, list(HEADERS.items()), end_stream=True)
    assert pair.server.receive(pair.client.data_to_send()) == []
    pair.server.answer(stream, b"answer")
    # h2's own client takes nothing after a farewell, so its bytes are looked at.
    frames = list(split(pair.server.outgoing()))
    assert (7, 0, (stream).to_bytes(4, "big") + bytes(4)) in frames
    assert (3, late, int(ErrorCodes.REFUSED_STREAM).to_bytes(4, "big")) in frames
    assert (0, stream, with_length(b"answer")) in frames
    assert not pair.server.calls


def split(data: bytes) -> list[tuple[int, int, bytes]]:
    """Type, stream and payload of every frame (RFC 9113, section 4.1)."""
    frames = []
    while data:
        size = int.from_bytes(data[:3], "big")
        frames.append((data[3], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return frames


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
        b"\xff" * 64,
        PREFACE + SETTINGS + b"\0\0\5\1\4\0\0\0\1\xff\xff\xff\xff\xff",
        PREFACE + SETTINGS + b"\0\0\4\0\0\0\0\0\1abcd",
        PREFACE + SETTINGS + b"\0\0\4\10\0\0\0\0\0\0\0\0\0",
    ],
    ids=["http1", "tls", "noise", "headers", "data-without-call", "window-of-0"],
)
def test_what_is_no_http2_ends_the_connection_and_nothing_else(data: bytes) -> None:
    server = ServerConnection()
    with pytest.raises(HungUpError):
        server.receive(data)
    server.finish(1)
    server.outgoing()
    assert not server.calls


def test_a_call_that_is_open_when_its_peer_sends_noise_is_over() -> None:
    pair = Pair()
    stream = pair.ask()
    with pytest.raises(HungUpError):
        pair.server.receive(b"\0\0\4\0\0\0\0\0\7abcd")
    pair.server.answer(stream, b"to nobody")
    assert not pair.server.open(stream)


def test_a_peer_that_says_goodbye_is_gone() -> None:
    pair = Pair()
    stream = pair.ask()
    pair.client.close_connection()
    with pytest.raises(HungUpError, match="its peer has ended it"):
        pair.flow()
    pair.server.answer(stream, b"to nobody")
    assert not pair.server.open(stream)


def test_headers_that_grow_when_they_are_unpacked_are_refused() -> None:
    # One entry of 4,000 bytes goes into the table, and then a byte for each time that it is named again.
    block = b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 12_000
    first, rest = block[:16000], block[16000:]
    data = len(first).to_bytes(3, "big") + b"\1\0\0\0\0\1" + first
    data += len(rest).to_bytes(3, "big") + b"\x09\4\0\0\0\1" + rest
    with pytest.raises(HungUpError, match="Oversized"):
        Pair().server.receive(data)
