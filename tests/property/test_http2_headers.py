"""Headers are what hpack makes of them, those too that are looked up without it."""

from __future__ import annotations

from hpack import Decoder, Encoder, HPACKError
from hypothesis import example, given
from hypothesis import strategies as st

from dranode.driver.kubelet.http2_connection import HeadersCame, HTTP2Connection
from dranode.driver.kubelet.http2_frames import END_HEADERS, HEADERS, PREFACE, HTTP2Error, frame_bytes

SETTINGS = 4
names = st.sampled_from([":path", ":method", "te", "grpc-timeout", "user-agent", "x"])
values = st.sampled_from(["POST", "/a/b", "trailers", "1S", "2S", "y" * 300])
blocks = st.one_of(
    st.lists(st.tuples(names, values), max_size=40),
    st.binary(max_size=40),
)


@given(st.lists(blocks, max_size=8))
@example([b"\x82\x20"]).via("a table's size, which only the beginning of a block may have")
def test_headers_are_those_of_hpack(came: list[list[tuple[str, str]] | bytes]) -> None:
    encoder, decoder = Encoder(), Decoder()
    connection = HTTP2Connection()
    connection.receive(PREFACE + frame_bytes(SETTINGS, 0, 0, b""))
    for number, each in enumerate(came):
        block = each if isinstance(each, bytes) else encoder.encode(each)
        sent = frame_bytes(HEADERS, END_HEADERS, 2 * number + 1, block)
        try:
            expected = {bytes(name): bytes(value) for name, value in decoder.decode(block, raw=True)}
        except (HPACKError, IndexError, TypeError, UnicodeDecodeError):
            try:
                connection.receive(sent)
            except HTTP2Error:
                return
            raise AssertionError(f"{block!r} was taken") from None
        (event,) = connection.receive(sent)
        assert isinstance(event, HeadersCame)
        assert event.headers == expected
