"""The device health service (DRAResourceHealth v1 and v1alpha1, KEP-4680).

A stream begins with the health of all devices, and each change is sent at once. For kubelet, a device's health expires
after the time that the driver states (`health_check_timeout_seconds`), so everything is repeated well within that time.
If the driver has not read the health for as long, because hardware cannot be read or a library hangs, the health is
sent as unknown.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final

import grpc

from dranode.driver.claims.plugin import DeviceHealth, Health
from dranode.proto import drahealth_v1_pb2, drahealth_v1_pb2_grpc, drahealth_v1alpha1_pb2, drahealth_v1alpha1_pb2_grpc

# Each open stream holds a thread of the server. kubelet opens one.
MAX_STREAMS: Final = 8
# After how long health expires, and how often it is repeated, in seconds.
_LEASE: Final = 30
_REPEAT: Final = _LEASE / 3
_MAX_MESSAGE: Final = 1024
_CUT: Final = "..."


class HealthService:
    """The health of one driver's devices, for every kubelet stream that asks.

    Attributes:
        pool: the pool of the devices.
    """

    def __init__(self, pool: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Report on the devices of `pool`."""
        self.pool = pool
        self._clock = clock
        self._devices: tuple[DeviceHealth, ...] = ()
        self._reported = clock()
        # Counts changes, so that each stream knows whether it has sent the current state.
        self._version = 0
        self._stopped = False
        self._streams = 0
        self._news = threading.Condition()

    def add_to(self, server: grpc.Server) -> None:
        """Have a server answer the calls of every version in `listener.HEALTH_VERSIONS`."""
        drahealth_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Version(self, drahealth_v1_pb2), server)
        drahealth_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(
            _Version(self, drahealth_v1alpha1_pb2), server
        )

    def report(self, devices: Iterable[DeviceHealth]) -> bool:
        """Report the health of all devices; returns whether it differs from the last report.

        A report is valid for 30 s, so the driver has to repeat it within that time even if nothing has changed.
        """
        devices = tuple(devices)
        with self._news:
            self._reported = self._clock()
            if devices == self._devices:
                return False
            self._devices = devices
            self._version += 1
            self._news.notify_all()
            return True

    @property
    def devices(self) -> tuple[DeviceHealth, ...]:
        """Return the last report."""
        return self._devices

    def stop(self) -> None:
        """End all streams, also those that are opened later."""
        self._stopped = True
        self._wake()

    def reports(self, context: grpc.ServicerContext) -> Iterator[tuple[DeviceHealth, ...]]:
        """Yield the health of all devices when it is due, until the caller or the driver ends the stream.

        A caller that does not read delays only its own stream, and gets the newest state when it reads again.
        """
        with self._news:
            if self._streams >= MAX_STREAMS:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} health streams are open already")
            self._streams += 1
        try:
            # Otherwise the thread of a stream that kubelet has ended would be busy until the next repetition.
            context.add_callback(self._wake)
            # No state has this number, so the first report is sent at once.
            seen = -1
            while self._wait(context, seen):
                with self._news:
                    seen, devices, silent = self._version, self._devices, self._clock() - self._reported
                # Without the lock: sending blocks while the caller does not read.
                yield devices if silent <= _LEASE else tuple(_unknown(device, silent) for device in devices)
        finally:
            with self._news:
                self._streams -= 1

    def _wait(self, context: grpc.ServicerContext, seen: int) -> bool:
        """Wait until the next report is due, a change or a repetition; False at the end of the stream."""

        def ended() -> bool:
            return self._stopped or not context.is_active()

        with self._news:
            # The end of one stream wakes the others too; they then repeat their report early, which does no harm.
            self._news.wait_for(lambda: ended() or self._version != seen, _REPEAT)
            return not ended()

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()


class _Version:
    """The method of the health service in one version of the API."""

    def __init__(self, service: HealthService, api: ModuleType) -> None:
        """Report what `service` yields in the messages of `api`."""
        self._service = service
        self._api = api

    def NodeWatchResources(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802 - the contract's name
        """Report the health of all devices, for as long as the caller listens."""
        del request
        for devices in self._service.reports(context):
            now = int(time.time())
            yield self._api.NodeWatchResourcesResponse(devices=[self._device(device, now) for device in devices])

    def _device(self, device: DeviceHealth, now: int) -> Any:
        return self._api.DeviceHealth(
            device=self._api.DeviceIdentifier(pool_name=self._service.pool, device_name=device.device),
            health=device.health.value,
            last_updated_time=now,
            health_check_timeout_seconds=_LEASE,
            message=_shortened(device.message),
        )


def _unknown(device: DeviceHealth, silent: float) -> DeviceHealth:
    # Repeating the last known health would hide that nobody has read it since.
    message = f"its health has not been read for {silent:.0f} s; see the driver's log"
    return DeviceHealth(device.device, Health.UNKNOWN, message)


def _shortened(message: str) -> str:
    """Shorten a message to the 1,024 bytes of UTF-8 that kubelet keeps, without cutting a character."""
    data = message.encode(errors="replace")
    if len(data) <= _MAX_MESSAGE:
        return data.decode()
    return data[: _MAX_MESSAGE - len(_CUT)].decode(errors="ignore") + _CUT
