"""The device health service: what is said, how often, and how long a message may be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dranode.driver.core.claims.health import DeviceHealth, Health
from dranode.driver.kubelet import health as health_module
from dranode.driver.kubelet.health import HealthService
from dranode.proto import drahealth_v1_pb2 as api
from tests.fakes.waiting import PATIENCE


class Context:
    """kubelet's end of a stream: it may hang up."""

    def __init__(self) -> None:
        self.active = True
        self.callbacks: list[Callable[[], None]] = []

    def is_active(self) -> bool:
        return self.active

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        return True

    def hang_up(self) -> None:
        self.active = False
        for callback in self.callbacks:
            callback()


def stream(health: HealthService, context: Context) -> Iterator[Any]:
    return iter(health._watcher(api)(None, context))


def messages(text: str) -> str:
    health = HealthService("node", [DeviceHealth("d", Health.UNHEALTHY, text)])
    return str(next(stream(health, Context())).devices[0].message)


@pytest.mark.parametrize("text", ["", "short", "a" * 1024, "ü" * 512])
def test_a_message_of_1024_bytes_is_said_whole(text: str) -> None:
    assert messages(text) == text


@pytest.mark.parametrize("text", ["a" * 1025, "ü" * 513, "a" + "ü" * 700, "\U0001f4a1" * 300])
def test_a_longer_message_is_cut_by_bytes_where_a_character_ends(text: str) -> None:
    said = messages(text)
    assert len(said.encode()) <= 1024
    assert len(said.encode()) > 1024 - 8
    assert said.endswith("...")
    assert text.startswith(said.removesuffix("..."))


def test_half_a_surrogate_pair_does_not_end_the_stream() -> None:
    assert messages("bad \ud800 text") == "bad ? text"


def test_everything_is_said_again_within_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    assert health_module._REPEAT < health_module._LEASE / 2
    monkeypatch.setattr(health_module, "_REPEAT", 0.01)
    health = HealthService("node", [DeviceHealth("d", Health.HEALTHY)])
    reports = stream(health, Context())
    assert [next(reports).devices[0].device.device_name for _ in range(3)] == ["d"] * 3


def test_a_stream_that_ends_makes_no_other_stream_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "_REPEAT", 30)
    health = HealthService("node", [DeviceHealth("d", Health.HEALTHY)])
    staying, leaving = Context(), Context()
    said: list[Any] = []
    reports = stream(health, staying)
    said.append(next(reports))
    thread = threading.Thread(target=lambda: said.extend(reports))
    thread.start()
    other = stream(health, leaving)
    next(other)
    leaving.hang_up()
    assert next(other, None) is None
    assert len(said) == 1
    health.report([DeviceHealth("d", Health.UNHEALTHY)])
    health.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    # The change may have been said before the end; nothing was said because of the other stream.
    assert [report.devices[0].health for report in said] in ([1], [1, 2])
