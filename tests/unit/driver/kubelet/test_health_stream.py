"""The device health service: what is said, how often, and how long a message may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from dranode.driver.core.claims.health import DeviceHealth, Health
from dranode.driver.kubelet import health as health_module
from dranode.driver.kubelet.grpc_values import RPCError, Status
from dranode.driver.kubelet.health import MAX_STREAMS, HealthService
from dranode.driver.kubelet.methods import Streaming
from dranode.proto import drahealth_v1_pb2 as api
from tests.fakes.waiting import PATIENCE

PATH = "/v1.DRAResourceHealth/NodeWatchResources"


class Caller:
    """kubelet's end of a stream: it may be slow, and hang up."""

    def __init__(self) -> None:
        self.gone: Callable[[], None] = lambda: None
        self.behind = False
        self.said: SimpleQueue[Any] = SimpleQueue()

    def send(self, message: Any) -> None:
        self.said.put(api.NodeWatchResourcesResponse.FromString(message))

    def finish(self) -> None:
        self.said.put(None)

    def next(self) -> Any:
        return self.said.get(timeout=PATIENCE)


@pytest.fixture
def health() -> Iterator[HealthService]:
    health = HealthService("node", pytest.fail, [DeviceHealth("d", Health.HEALTHY)])
    yield health
    health.stop()


def watching(health: HealthService, caller: Caller | None = None) -> Caller:
    method = health.methods()[PATH]
    assert isinstance(method, Streaming)
    caller = caller or Caller()
    method.handle(method.decode(api.NodeWatchResourcesRequest().SerializeToString()), caller)
    return caller


def messages(text: str) -> str:
    health = HealthService("node", pytest.fail, [DeviceHealth("d", Health.UNHEALTHY, text)])
    said = watching(health).next()
    health.stop()
    return str(said.devices[0].message)


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


def test_everything_is_said_again_within_the_lease(health: HealthService, monkeypatch: pytest.MonkeyPatch) -> None:
    assert health_module._REPEAT < health_module._LEASE / 2
    monkeypatch.setattr(health_module, "_REPEAT", 0.01)
    caller = watching(health)
    assert [caller.next().devices[0].device.device_name for _ in range(3)] == ["d"] * 3


def test_a_stream_that_ends_makes_no_other_stream_speak(health: HealthService) -> None:
    staying, leaving = watching(health), watching(health)
    assert [staying.next().devices[0].health, leaving.next().devices[0].health] == [1, 1]
    leaving.gone()
    health.report([DeviceHealth("d", Health.UNHEALTHY)])
    assert staying.next().devices[0].health == 2
    health.stop()
    assert staying.next() is None
    assert leaving.said.empty()


def test_a_caller_who_does_not_listen_gets_the_newest_when_it_does(
    health: HealthService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "_BEHIND", 0.01)
    slow, quick = Caller(), watching(health)
    slow.behind = True
    watching(health, slow)
    quick.next()
    for state in (Health.UNHEALTHY, Health.HEALTHY, Health.UNHEALTHY):
        health.report([DeviceHealth("d", state)])
        quick.next()
    assert slow.said.empty()
    slow.behind = False
    assert slow.next().devices[0].health == 2


def test_streams_beyond_what_is_kept_are_refused_until_one_ends(health: HealthService) -> None:
    callers = [watching(health) for _ in range(MAX_STREAMS)]
    with pytest.raises(RPCError, match="16 health streams are open already") as refused:
        watching(health)
    assert refused.value.status is Status.RESOURCE_EXHAUSTED
    callers[0].gone()
    assert watching(health).next().devices[0].health == 1


def test_a_stream_that_comes_when_the_driver_ends_is_refused(health: HealthService) -> None:
    health.stop()
    with pytest.raises(RPCError, match="the driver ends"):
        watching(health)
