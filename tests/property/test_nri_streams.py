"""Chunking changes nothing, and whatever arrives, a session yields events or one protocol error."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dranode.api.cpuset import CPUSet
from dranode.driver.nri import ttrpc
from dranode.driver.nri.events import CreateRequest, NRIEvent, StopRequest, SynchronizeRequest, UpdateRequest
from dranode.driver.nri.session import Session
from dranode.driver.nri.ttrpc import PLUGIN_CONNECTION, Demultiplexer, ProtocolError, frame
from dranode.driver.pinning.containers import Resources
from tests.fakes.nri import Wire

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "nri-frames.json").read_text())
CAPTURED = {
    version: b"".join(bytes.fromhex(row["frame_hex"]) for row in rows if row.get("dir") == "runtime->plugin")
    for version, rows in VECTORS["nri_versions"].items()
}


def play(pieces: list[bytes]) -> tuple[list[NRIEvent], dict[int, ttrpc.Response]]:
    """Everything that a session yields and answers when the stream arrives in these pieces.

    The order of answers may differ: events are answered at once, requests when they were decided.
    """
    session = Session("pin", "10")
    session.register()
    session.update_containers([])
    events: list[NRIEvent] = []
    for piece in pieces:
        for event in session.receive_data(piece):
            events.append(event)
            match event:
                case SynchronizeRequest():
                    session.synchronize(event)
                case CreateRequest():
                    session.adjust(event, Resources(CPUSet((1,))))
                case UpdateRequest() | StopRequest():
                    session.update(event)
                case _:
                    pass
    wire = Wire()
    wire.receive_data(session.data_to_send())
    return events, wire.answers


def cut(data: bytes, at: list[int]) -> list[bytes]:
    marks = [0, *sorted(min(mark, len(data)) for mark in at), len(data)]
    return [data[start:end] for start, end in pairwise(marks)]


@given(version=st.sampled_from(sorted(CAPTURED)), at=st.lists(st.integers(0, 2000), max_size=12))
def test_any_chunking_of_a_captured_stream_gives_the_same_events_and_answers(version: str, at: list[int]) -> None:
    data = CAPTURED[version]
    assert play(cut(data, at)) == play([data])


def test_a_stream_that_comes_byte_by_byte_gives_the_same_events_and_answers() -> None:
    for data in CAPTURED.values():
        assert play([bytes((byte,)) for byte in data]) == play([data])


messages = st.builds(
    ttrpc.Message, st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 255), st.binary(max_size=300)
)


@given(sent=st.lists(messages, max_size=6), sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_messages_are_reassembled_from_any_frames_and_chunks(sent: list[ttrpc.Message], sizes: list[int]) -> None:
    stream = b"".join(
        chunk.data for one in sent for chunk in Demultiplexer().receive_data(ttrpc.encode_message(1, one))
    )
    framed, at, turn = b"", 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        framed += frame(PLUGIN_CONNECTION, stream[at : at + size]) + frame(9, b"other")
        at, turn = at + size, turn + 1
    demultiplexer, decoder = Demultiplexer(), ttrpc.Decoder()
    received = []
    for piece in cut(framed, [7 * size for size in sizes]):
        for chunk in demultiplexer.receive_data(piece):
            received += decoder.receive_data(chunk.data)
    assert received == sent
    assert not demultiplexer.inside_frame
    assert not decoder.inside_message


def one_error_at_most(pieces: list[bytes]) -> int:
    session = Session("pin", "10")
    session.register()
    errors = 0
    for piece in pieces:
        try:
            session.receive_data(piece)
        except ProtocolError:
            errors += 1
    try:
        session.receive_end()
    except ProtocolError:
        errors += 1
    session.receive_end()
    return errors


@given(garbage=st.binary(max_size=200), at=st.lists(st.integers(0, 200), max_size=4))
def test_garbage_causes_at_most_one_protocol_error(garbage: bytes, at: list[int]) -> None:
    assert one_error_at_most(cut(garbage, at)) <= 1


@given(version=st.sampled_from(sorted(CAPTURED)), end=st.integers(0, 2000), garbage=st.binary(max_size=60))
def test_garbage_after_good_frames_causes_at_most_one_protocol_error(version: str, end: int, garbage: bytes) -> None:
    assert one_error_at_most([CAPTURED[version][:end], garbage]) <= 1


@given(version=st.sampled_from(sorted(CAPTURED)), end=st.integers(1, 2000))
def test_truncation_within_a_message_causes_one_protocol_error(version: str, end: int) -> None:
    data = CAPTURED[version][:end]
    whole = 0
    while whole < len(data):
        whole += 8 + int.from_bytes(data[whole + 4 : whole + 8].ljust(4, b"\0"), "big")
    # Every captured message is one frame.
    assert one_error_at_most([data]) == (0 if whole == len(data) else 1)
