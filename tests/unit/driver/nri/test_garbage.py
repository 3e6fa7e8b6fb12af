"""Bytes that are not NRI: each kind is logged in one line without a traceback, and the next connection is served."""

import logging
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from dranode.driver.nri import ttrpc
from dranode.driver.nri.ttrpc import PLUGIN_CONNECTION, RUNTIME_CONNECTION, frame
from tests.fakes.nri import CallFailedError, container
from tests.fakes.nri_client import ENV, HELD, P1, Bench
from tests.fakes.waiting import eventually

_ATTEMPTS: Final = 12


def noise(seed: int) -> bytes:
    return random.Random(seed).randbytes(4096)


def a_stream(seed: int) -> bytes:
    """Noise in valid frames, so that ttrpc receives it."""
    return frame(PLUGIN_CONNECTION, noise(seed)) + frame(RUNTIME_CONNECTION, noise(seed + 1))


def an_answer(seed: int) -> bytes:
    """An answer to the plug-in's own call that cannot be decoded."""
    return ttrpc.encode_message(RUNTIME_CONNECTION, ttrpc.Message(1, ttrpc.MessageType.RESPONSE, 0, noise(seed)[:64]))


def a_long_frame(seed: int) -> bytes:
    return struct.pack(">II", PLUGIN_CONNECTION, (1 << 31) + seed)


@pytest.mark.parametrize("garbage", [noise, a_stream, an_answer, a_long_frame], ids=lambda each: each.__name__)
def test_a_connection_with_garbage_is_logged_in_one_line_and_the_next_is_served(
    bench: Bench, garbage: Callable[[int], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    bench.node.now = HELD
    bench.client.start()
    for seed in range(_ATTEMPTS):
        bench.accept().sock.sendall(garbage(seed))
    runtime = bench.accept()
    runtime.handshake()
    eventually(lambda: bench.client.synchronized)
    said = [record for record in caplog.records if record.levelno >= logging.INFO and "trying again" in record.message]
    assert 1 <= len(said) <= _ATTEMPTS
    # It is recognized as garbage at once, rather than given up after a time without anything useful.
    assert not [record.message for record in said if "has not answered" in record.message]
    assert not [record.message for record in caplog.records if record.exc_info or "\n" in record.message]


@dataclass
class Raw:
    """A message with these bytes."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self.data


@pytest.mark.parametrize(
    "method", ["Configure", "Synchronize", "CreateContainer", "UpdateContainer", "StopContainer", "StateChange", "No"]
)
def test_a_call_with_garbage_is_refused_without_a_traceback_on_the_same_connection(
    bench: Bench, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.node.now = HELD
    bench.client.start()
    runtime = bench.accept()
    runtime.handshake()
    for payload in (b"\xff" * 16, b"\x12\x02\xff\xfe", noise(1)[:200]):
        with pytest.raises(CallFailedError, match=r"does not decode|method No"):
            runtime.call(method, Raw(payload))
    assert runtime.create(container("g", "p1", ENV), P1).adjust.linux.resources.cpu.cpus == "2-3"
    assert not [record.message for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING]
