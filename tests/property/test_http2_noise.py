"""Whatever bytes come to the server, its connection goes on or ends; it meets no error of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from dranode.driver.kubelet.grpc_values import with_length
from dranode.driver.kubelet.http2 import HungUpError, Request, ServerConnection

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b"), (":authority", "localhost")]
PREFACE = 24

calls = st.tuples(
    st.sampled_from(["application/grpc", "text/plain"]),
    st.binary(max_size=20),
    st.booleans(),
    st.sampled_from(["", "reset", "ping", "window"]),
)
changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 8), st.binary(max_size=12)), max_size=4)


def spoken(asked: Iterable[tuple[str, bytes, bool, str]]) -> bytearray:
    """What a client sends that makes these calls: content type, message, whether it ends, and what follows."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for kind, message, ends, then in asked:
        stream = client.get_next_available_stream_id()
        client.send_headers(stream, [*HEADERS, ("content-type", kind)])
        client.send_data(stream, with_length(message), end_stream=ends)
        if then == "reset":
            client.reset_stream(stream)
        elif then == "ping":
            client.ping(b"12345678")
        elif then == "window":
            client.increment_flow_control_window(100)
    return bytearray(client.data_to_send())


@given(st.lists(calls, max_size=6), changes, st.integers(1, 200))
def test_a_connection_goes_on_or_ends(
    asked: list[tuple[str, bytes, bool, str]], changed: list[tuple[int, int, bytes]], size: int
) -> None:
    data = spoken(asked)
    for place, length, instead in changed:
        at = min(PREFACE + place, len(data))
        data[at : at + length] = instead
    server = ServerConnection()
    with contextlib.suppress(HungUpError):
        for begin in range(0, len(data), size):
            for event in server.receive(bytes(data[begin : begin + size])):
                if isinstance(event, Request):
                    server.answer(event.stream, b"answer")
            server.outgoing()
    server.go_away()
    server.outgoing()
