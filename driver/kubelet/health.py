"""The device health service (DRAResourceHealth v1 and v1alpha1): full state at once, changes at once, the rest in time.

Source: KEP-4680.

kubelet lets a statement lapse after its lease, counted from when it received it, so everything is said again well
within the lease even if nothing has changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dranode.driver.core.claims.health import DeviceHealth
from dranode.driver.kubelet.grpc_values import RPCError, Status
from dranode.driver.kubelet.methods import Method, Stream, Streaming
from dranode.driver.kubelet.protobuf_wire import bytes_field, fields, number_field, text_field
from dranode.driver.kubelet.registration import HEALTH_VERSIONS
from dranode.driver.process.threads import Fatal, OwnedThread

MAX_STREAMS: Final = 16
_LEASE: Final = 30
_REPEAT: Final = _LEASE / 3
# How soon a caller is looked at again that has not taken what it was last before.
_BEHIND: Final = 1.0
_MAX_MESSAGE: Final = 1024
_CUT: Final = "..."


class _Statement(msgspec.Struct):
    """The last report to a caller (`version`), and until when (seconds, monotonic) it need not be sent again."""

    version: int = -1
    until: float = 0.0

    def is_due(self, version: int, now: float) -> bool:
        """Return whether a message to the caller is due."""
        return self.version != version or self.until <= now


class HealthService:
    """The health of one driver's devices, for every kubelet stream that asks.

    One thread sends to all streams; it starts with the first stream.
    """

    def __init__(self, pool: str, fatal: Fatal, devices: Iterable[DeviceHealth] = ()) -> None:
        """Report on the devices of `pool`; `fatal` ends the process with a sentence."""
        self._pool = pool
        self._devices = tuple(devices)
        self._version = 0
        self._stopped = False
        self._streams: dict[Stream, _Statement] = {}
        self._news = threading.Condition()
        self._thread: OwnedThread | None = None
        self._fatal = fatal

    def methods(self) -> dict[str, Method]:
        """The gRPC methods of every version, by path (`/<service>/<method>`)."""
        watch = Streaming(fields, self._watch, bytes)
        return {f"/{version}/NodeWatchResources": watch for version in HEALTH_VERSIONS}

    def report(self, devices: Iterable[DeviceHealth]) -> bool:
        """Report the state of all devices, not of those that changed alone; True if it differs from the last one."""
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
        """Return what was reported last."""
        return self._devices

    def stop(self) -> None:
        """End every stream and the thread; streams that are opened later are refused as UNAVAILABLE."""
        with self._news:
            self._stopped = True
            streams = tuple(self._streams)
            self._streams.clear()
            self._news.notify_all()
        for stream in streams:
            stream.finish()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, request: Any, stream: Stream) -> None:
        # A NodeWatchResourcesRequest has no field.
        del request
        with self._news:
            if self._stopped:
                raise RPCError(Status.UNAVAILABLE, "the driver ends")
            if len(self._streams) >= MAX_STREAMS:
                raise RPCError(Status.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} health streams are open already")
            self._streams[stream] = _Statement()
            stream.gone = lambda: self._forget(stream)
            if self._thread is None:
                self._thread = OwnedThread("health-streams", self._report_due, self._fatal)
                self._thread.start()
            self._news.notify_all()

    def _forget(self, stream: Stream) -> None:
        with self._news:
            self._streams.pop(stream, None)

    def _report_due(self) -> None:
        while (due := self._due()) is not None:
            devices, streams = due
            response = _response(self._pool, devices, int(time.time()))
            for stream in streams:
                stream.send(response)

    def _due(self) -> tuple[tuple[DeviceHealth, ...], list[Stream]] | None:
        """Wait until a message is due, news or the same again; the devices and the streams, None at the end."""
        with self._news:
            while not self._stopped:
                now = time.monotonic()
                due = {stream: last for stream, last in self._streams.items() if last.is_due(self._version, now)}
                ready = [stream for stream in due if not stream.behind]
                for stream in ready:
                    due[stream].version, due[stream].until = self._version, now + _REPEAT
                if ready:
                    return self._devices, ready
                next_due = min((last.until for last in self._streams.values()), default=None)
                patience = None if next_due is None else next_due - now
                self._news.wait(_BEHIND if due else patience)
        return None


def _shortened(message: str) -> str:
    """A message that kubelet keeps as it is: at most 1,024 bytes of UTF-8, cut where a character ends."""
    data = message.encode(errors="replace")
    if len(data) <= _MAX_MESSAGE:
        return data.decode()
    return data[: _MAX_MESSAGE - len(_CUT)].decode(errors="ignore") + _CUT


def _response(pool: str, devices: tuple[DeviceHealth, ...], now: int) -> bytes:
    """A NodeWatchResourcesResponse, by the field numbers of proto/drahealth_v1.proto; v1alpha1 has the same."""
    pool_name = text_field(1, pool)
    times = number_field(3, now) + number_field(4, _LEASE)
    return b"".join(
        bytes_field(
            1,
            bytes_field(1, pool_name + text_field(2, each.device))
            + number_field(2, each.health.value)
            + times
            + text_field(5, _shortened(each.message)),
        )
        for each in devices
    )
