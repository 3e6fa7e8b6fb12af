"""The device health service (DRAResourceHealth v1 and v1alpha1): full state at once, changes at once, the rest in time.

kubelet lets a statement lapse after its lease, counted from when it received it, so everything is said again well
within the lease even if nothing has changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final

import grpc

from dranode.driver.core.claims.health import DeviceHealth
from dranode.driver.kubelet.rpc import service
from dranode.proto import drahealth_v1_pb2, drahealth_v1alpha1_pb2

HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
# Each open stream holds a thread of the server's pool.
MAX_STREAMS: Final = 16
_LEASE: Final = 30
_REPEAT: Final = _LEASE / 3
_MAX_MESSAGE: Final = 1024
_CUT: Final = "..."


class HealthService:
    """The health of one driver's devices, for every kubelet stream that asks."""

    def __init__(self, pool: str, devices: Iterable[DeviceHealth] = ()) -> None:
        """Report on the devices of `pool`."""
        self._pool = pool
        self._devices = tuple(devices)
        self._version = 0
        self._stopped = False
        self._streams = 0
        self._news = threading.Condition()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The gRPC handlers of every version."""
        return tuple(
            service(api.DESCRIPTOR, "DRAResourceHealth", {"NodeWatchResources": self._watcher(api)})
            for api in (drahealth_v1_pb2, drahealth_v1alpha1_pb2)
        )

    def report(self, devices: Iterable[DeviceHealth]) -> bool:
        """Say how the devices are now; True if that is news."""
        devices = tuple(devices)
        with self._news:
            if devices == self._devices:
                return False
            self._devices = devices
            self._version += 1
            self._news.notify_all()
            return True

    @property
    def devices(self) -> tuple[DeviceHealth, ...]:
        """What was reported last."""
        return self._devices

    def stop(self) -> None:
        """End every stream."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def _watcher(self, api: ModuleType) -> Any:
        def watch(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            del request
            with self._news:
                if self._streams >= MAX_STREAMS:
                    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} health streams are open already")
                self._streams += 1
            context.add_callback(self._wake)
            try:
                for devices in self._reports(context):
                    yield _response(api, self._pool, devices)
            finally:
                with self._news:
                    self._streams -= 1

        return watch

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def _reports(self, context: grpc.ServicerContext) -> Iterator[tuple[DeviceHealth, ...]]:
        seen = -1
        while self._wait(context, seen):
            with self._news:
                seen, devices = self._version, self._devices
            yield devices

    def _wait(self, context: grpc.ServicerContext, seen: int) -> bool:
        """Wait until something is to be said, news or the same again; False at the end of the stream."""
        with self._news:
            # Every stream that ends wakes the others, and they have nothing new to say then.
            self._news.wait_for(lambda: self._stopped or self._version != seen or not context.is_active(), _REPEAT)
            return not self._stopped and bool(context.is_active())


def _shortened(message: str) -> str:
    """A message that kubelet keeps as it is: at most 1,024 bytes of UTF-8, cut where a character ends."""
    data = message.encode(errors="replace")
    if len(data) <= _MAX_MESSAGE:
        return data.decode()
    return data[: _MAX_MESSAGE - len(_CUT)].decode(errors="ignore") + _CUT


def _response(api: ModuleType, pool: str, devices: tuple[DeviceHealth, ...]) -> Any:
    now = int(time.time())
    return api.NodeWatchResourcesResponse(
        devices=[
            api.DeviceHealth(
                device=api.DeviceIdentifier(pool_name=pool, device_name=device.device),
                health=device.health.value,
                last_updated_time=now,
                health_check_timeout_seconds=_LEASE,
                message=_shortened(device.message),
            )
            for device in devices
        ]
    )
