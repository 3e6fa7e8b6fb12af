"""Captured frames of four NRI versions, reproduced byte for byte."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.nri import ttrpc
from dranode.driver.nri.events import (
    Configured,
    CreateRequest,
    NRIEvent,
    PluginAccepted,
    StopRequest,
    SynchronizeRequest,
    UpdateRequest,
    UpdatesAnswered,
)
from dranode.driver.nri.session import Session
from dranode.driver.nri.ttrpc import PLUGIN_CONNECTION, RUNTIME_CONNECTION, Chunk, Demultiplexer, frame
from dranode.driver.pinning.containers import ContainerUpdate, Resources

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "nri-frames.json").read_text())["nri_versions"]
VERSIONS = pytest.mark.parametrize("version", VECTORS)
TO_PLUGIN, TO_RUNTIME = "runtime->plugin", "plugin->runtime"


def frames(version: str) -> list[dict[str, Any]]:
    return [row for row in VECTORS[version] if "dir" in row]


def before_the_unknown_method(version: str) -> list[dict[str, Any]]:
    """Everything before the last call of the capture, which our plug-in never makes."""
    rows = VECTORS[version]
    end = next(index for index, row in enumerate(rows) if row.get("note") == "unknown method")
    return [row for row in rows[:end] if "dir" in row]


def cpus(text: str) -> Resources:
    return Resources(CPUSet.parse(text))


def answer(session: Session, event: NRIEvent) -> None:
    """The answer of the plug-in in the capture."""
    match event:
        case SynchronizeRequest():
            session.synchronize(event)
        case CreateRequest():
            if event.container.id == "c2":
                session.refuse(event, "no cpus left")
            else:
                session.adjust(event, cpus("2-3"))
        case UpdateRequest():
            session.update(event, (ContainerUpdate(event.container.id, cpus("1")),))
        case StopRequest():
            session.update(event)
        case _:
            pass


@VERSIONS
def test_a_session_sends_the_frames_that_were_captured(version: str) -> None:
    session = Session("pin", "10", events=0x7FF)
    ours = {PluginAccepted: 0, UpdatesAnswered: 0}
    sent = b""
    session.register()
    for row in before_the_unknown_method(version):
        if row["dir"] == TO_PLUGIN:
            for event in session.receive_data(bytes.fromhex(row["frame_hex"])):
                answer(session, event)
                if type(event) in ours:
                    ours[type(event)] += 1
            continue
        sent += session.data_to_send()
        if not sent and row["conn"] == RUNTIME_CONNECTION:
            session.update_containers(_unsolicited(row))
            sent += session.data_to_send()
        expected = bytes.fromhex(row["frame_hex"])
        if b"\x12\x04Nope" in expected:
            sent = sent[len(expected) :]
            break
        assert sent[: len(expected)].hex() == expected.hex()
        sent = sent[len(expected) :]
    assert ours == {PluginAccepted: 1, UpdatesAnswered: 2}


def _unsolicited(row: dict[str, Any]) -> tuple[ContainerUpdate, ...]:
    """The capture's two UpdateContainers: one for container x, one without CPUs for container fail."""
    length = struct.unpack(">I", bytes.fromhex(row["frame_hex"])[8:12])[0]
    return (ContainerUpdate("x", cpus("0-1")),) if length == 0x42 else (ContainerUpdate("fail", Resources()),)


@VERSIONS
def test_the_error_reply_at_the_end_of_the_capture_is_reproduced(version: str) -> None:
    session = Session("pin", "10", events=0x7FF)
    request, header, body = (bytes.fromhex(row["frame_hex"]) for row in frames(version)[-3:])
    (event,) = session.receive_data(request)
    answer(session, event)
    assert session.data_to_send() == header + body


@VERSIONS
def test_every_captured_frame_survives_decoding_and_framing(version: str) -> None:
    for direction in (TO_PLUGIN, TO_RUNTIME):
        decoders = {PLUGIN_CONNECTION: ttrpc.Decoder(), RUNTIME_CONNECTION: ttrpc.Decoder()}
        demultiplexer = Demultiplexer()
        captured = {PLUGIN_CONNECTION: b"", RUNTIME_CONNECTION: b""}
        again = {PLUGIN_CONNECTION: b"", RUNTIME_CONNECTION: b""}
        for row in frames(version):
            if row["dir"] != direction:
                continue
            data = bytes.fromhex(row["frame_hex"])
            chunks = demultiplexer.receive_data(data)
            assert b"".join(frame(chunk.connection, chunk.data) for chunk in chunks) == data
            for chunk in chunks:
                captured[chunk.connection] += chunk.data
                for message in decoders[chunk.connection].receive_data(chunk.data):
                    whole = Demultiplexer().receive_data(ttrpc.encode_message(chunk.connection, message))
                    again[chunk.connection] += b"".join(piece.data for piece in whole)
        assert again == captured


def test_the_runtime_is_recognized_with_its_nri_version() -> None:
    runtimes = {}
    for version in VECTORS:
        session = Session("pin", "10")
        for row in frames(version)[:4]:
            if row["dir"] == TO_PLUGIN:
                for event in session.receive_data(bytes.fromhex(row["frame_hex"])):
                    if isinstance(event, Configured):
                        runtimes[version] = (event.runtime.name, event.runtime.nri)
    assert runtimes == {
        "0.6.1": ("fakert", ""),
        "0.8.0": ("fakert", ""),
        "0.11.0": ("fakert", ""),
        "0.12.2": ("fakert", "v0.12.2"),
    }


def test_header_and_payload_are_sent_as_two_frames() -> None:
    message = ttrpc.Message(3, ttrpc.MessageType.RESPONSE, 0, b"x" * 10_000)
    chunks = Demultiplexer().receive_data(ttrpc.encode_message(PLUGIN_CONNECTION, message))
    assert [len(chunk.data) for chunk in chunks] == [10, 10_000]
    empty = ttrpc.encode_message(PLUGIN_CONNECTION, ttrpc.Message(3, ttrpc.MessageType.RESPONSE, 0, b""))
    assert empty.hex() == "000000010000000a" + "00000000000000030200"


def test_frames_of_other_connections_and_empty_frames_are_ignored() -> None:
    data = frame(7, b"not ours") + frame(1, b"") + frame(0, b"reserved") + frame(2, b"ours")
    assert Demultiplexer().receive_data(data) == [Chunk(2, b"ours")]
