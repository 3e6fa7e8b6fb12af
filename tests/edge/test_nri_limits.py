"""The limits of the NRI byte stream: 16 MiB in, 4 MiB out, and what happens beyond them."""

import struct

import pytest

from dranode.driver.nri import ttrpc
from dranode.driver.nri.events import SynchronizeRequest
from dranode.driver.nri.session import Session
from dranode.driver.nri.ttrpc import MAX_FRAME, PLUGIN_CONNECTION, Demultiplexer, ProtocolError, frame
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.nri import PLUGIN, container, pod

MIB = 1 << 20


def synchronize_of(size: int) -> bytes:
    """A Synchronize whose ttrpc message has exactly `size` bytes, as one frame, as NRI up to 0.6 sends it."""
    body = nri.SynchronizeRequest(pods=[pod("p1")], containers=[container("c1", "p1")])
    body.containers[0].env.append("A=")
    while True:
        data = ttrpc.request(1, ttrpc.Call(PLUGIN, "Synchronize", body.SerializeToString())).data
        if len(data) == size:
            return frame(PLUGIN_CONNECTION, struct.pack(">IIBB", size, 1, 1, 0) + data)
        body.containers[0].env[0] += "x" * (size - len(data)) if len(data) < size else ""
        if len(data) > size:
            body.containers[0].env[0] = body.containers[0].env[0][: size - len(data)]


def test_a_synchronize_of_16_mib_in_one_frame_is_accepted() -> None:
    session = Session("pin", "10")
    data = synchronize_of(16 * MIB)
    assert len(data) == 8 + MAX_FRAME
    events = [event for at in range(0, len(data), 1 << 18) for event in session.receive_data(data[at : at + (1 << 18)])]
    assert [type(event) for event in events] == [SynchronizeRequest]


def test_a_frame_beyond_the_limit_is_refused_before_its_payload_arrives() -> None:
    with pytest.raises(ProtocolError, match="16777227 bytes on connection 1, and the limit is 16777226"):
        Demultiplexer().receive_data(struct.pack(">II", 1, MAX_FRAME + 1))


def test_a_message_beyond_16_mib_is_refused_before_its_data_arrives() -> None:
    with pytest.raises(ProtocolError, match="a ttrpc message of 16777217 bytes, and the limit is 16777216"):
        ttrpc.Decoder().receive_data(struct.pack(">IIBB", 16 * MIB + 1, 1, 1, 0))
