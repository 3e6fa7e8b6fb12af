"""The device health service: which messages it sends, how often, and how long they may be."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dranode.driver.claims.plugin import DeviceHealth, Health
from dranode.driver.kubelet import health as health_module
from dranode.driver.kubelet.health import HealthService
from dranode.driver.process.threads import DaemonPool
from dranode.proto import drahealth_v1_pb2 as api
from dranode.proto.drahealth_v1_pb2_grpc import DRAResourceHealthStub
from tests.fakes.waiting import PATIENCE, eventually

# Far more than a connection buffers for a peer that does not read.
LARGE = tuple(DeviceHealth(f"device-{number}", Health.HEALTHY, "m" * 1024) for number in range(1000))


class Clock:
    """A clock that only a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> HealthService:
    service = HealthService("node", clock)
    service.report([DeviceHealth("d", Health.HEALTHY)])
    return service


@pytest.fixture
def watch(health: HealthService, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens a stream on a connection of its own."""
    pool = DaemonPool("test", 4, pytest.fail)
    server = grpc.server(pool)
    health.add_to(server)
    server.add_insecure_port(f"unix:{tmp_path}/s.sock")
    server.start()
    channels: list[grpc.Channel] = []

    def opened() -> Any:
        channels.append(grpc.insecure_channel(f"unix:{tmp_path}/s.sock", [("grpc.use_local_subchannel_pool", 1)]))
        return DRAResourceHealthStub(channels[-1]).NodeWatchResources(api.NodeWatchResourcesRequest(), timeout=PATIENCE)

    yield opened
    for channel in channels:
        channel.close()
    health.stop()
    server.stop(None).wait()
    pool.shutdown()


@pytest.mark.parametrize("text", ["", "short", "a" * 1024, "ü" * 512])
def test_a_message_of_1024_bytes_is_not_truncated(health: HealthService, watch: Callable[[], Any], text: str) -> None:
    health.report([DeviceHealth("d", Health.UNHEALTHY, text)])
    assert next(watch()).devices[0].message == text


@pytest.mark.parametrize("text", ["a" * 1025, "ü" * 513, "a" + "ü" * 700, "\U0001f4a1" * 300])
def test_a_longer_message_is_truncated_at_the_end_of_a_character(
    health: HealthService, watch: Callable[[], Any], text: str
) -> None:
    health.report([DeviceHealth("d", Health.UNHEALTHY, text)])
    said = next(watch()).devices[0].message
    assert len(said.encode()) <= 1024
    assert len(said.encode()) > 1024 - 8
    assert said.endswith("...")
    assert text.startswith(said.removesuffix("..."))


def test_half_a_surrogate_pair_does_not_end_the_stream(health: HealthService, watch: Callable[[], Any]) -> None:
    health.report([DeviceHealth("d", Health.UNHEALTHY, "bad \ud800 text")])
    assert next(watch()).devices[0].message == "bad ? text"


def test_the_health_of_all_devices_is_repeated_within_the_lease(
    watch: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health_module._REPEAT < health_module._LEASE / 2
    monkeypatch.setattr(health_module, "_REPEAT", 0.01)
    stream = watch()
    assert [next(stream).devices[0].device.device_name for _ in range(3)] == ["d"] * 3


def test_health_is_unknown_after_a_lease_without_a_report_until_the_next_one(
    watch: Callable[[], Any], clock: Clock, health: HealthService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "_REPEAT", 0.01)
    stream = watch()
    clock.now += health_module._LEASE - 1
    assert next(stream).devices[0].health == 1
    clock.now += 2
    eventually(lambda: next(stream).devices[0].health == 0)
    assert "31 s" in next(stream).devices[0].message
    health.report([DeviceHealth("d", Health.HEALTHY)])
    eventually(lambda: next(stream).devices[0].health == 1)


def test_the_end_of_a_stream_sends_nothing_on_other_streams(health: HealthService, watch: Callable[[], Any]) -> None:
    staying, leaving = watch(), watch()
    assert [next(staying).devices[0].health, next(leaving).devices[0].health] == [1, 1]
    leaving.cancel()
    eventually(lambda: health._streams == 1)
    health.report([DeviceHealth("d", Health.UNHEALTHY)])
    assert next(staying).devices[0].health == 2


def test_a_caller_who_does_not_read_blocks_nobody_and_gets_the_newest_state_later(
    health: HealthService, watch: Callable[[], Any]
) -> None:
    health.report(LARGE)
    slow, quick = watch(), watch()
    next(quick)
    for number in range(20):
        health.report([*LARGE, DeviceHealth("last", Health.HEALTHY, str(number))])
        assert next(quick).devices[-1].message == str(number)
    seen = [next(slow).devices[-1].message]
    while seen[-1] != "19":
        seen.append(next(slow).devices[-1].message)
    assert len(seen) < 20, "what it had missed is not said one by one"


def test_a_stream_that_is_opened_during_shutdown_ends_at_once(health: HealthService, watch: Callable[[], Any]) -> None:
    health.stop()
    assert next(watch(), None) is None
