"""Calls a driver's sockets as kubelet does, with kubelet's deadlines but without its tolerance."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final
from urllib.parse import quote

import grpc

from dranode.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    drahealth_v1_pb2,
    drahealth_v1_pb2_grpc,
    drahealth_v1alpha1_pb2,
    drahealth_v1alpha1_pb2_grpc,
)
from dranode.proto import pluginregistration_v1_pb2 as registration
from dranode.proto.pluginregistration_v1_pb2_grpc import RegistrationStub
from dranode.sanity.breach import Unable

GET_INFO_SECONDS: Final = 1.0
NOTIFY_SECONDS: Final = 5.0
CALL_SECONDS: Final = 45.0
# The versions of the DRA service that kubelet knows, newest first, and of the health service: messages and methods.
DRA_SERVICES: Final[Mapping[str, tuple[ModuleType, ModuleType]]] = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
HEALTH_SERVICES: Final[Mapping[str, tuple[ModuleType, ModuleType]]] = {
    "v1.DRAResourceHealth": (drahealth_v1_pb2, drahealth_v1_pb2_grpc),
    "v1alpha1.DRAResourceHealth": (drahealth_v1alpha1_pb2, drahealth_v1alpha1_pb2_grpc),
}
# Connections are not shared, like those of a restarted kubelet; a driver that has just started is called at once.
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)


class DriverCallError(Exception):
    """A call that gRPC answered with an error.

    Attributes:
        code: the status (`UNAVAILABLE`, `UNIMPLEMENTED` ...).
        details: the driver's message.
    """

    def __init__(self, error: Any, seconds: float = 0.0) -> None:
        self.code: str = error.code().name
        self.details = error.details() or ""
        if seconds and self.expired:
            self.details = f"no answer within {seconds:g} s"
        super().__init__(f"{self.code}: {self.details}")

    @property
    def expired(self) -> bool:
        """Return whether the time for the answer was over."""
        return self.code == "DEADLINE_EXCEEDED"


@dataclass(frozen=True)
class ClaimIdentity:
    """A claim as kubelet sends it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class AnsweredDevice:
    """A device of an answer; `share_id` is None if the driver does not set it."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True)
class ClaimAnswer:
    """The answer for one claim; with an error, devices are ignored."""

    error: str = ""
    devices: tuple[AnsweredDevice, ...] = ()

    @property
    def cdi(self) -> tuple[str, ...]:
        """Return the CDI ids of the answer in their order."""
        return tuple(name for device in self.devices for name in device.cdi)

    @property
    def named(self) -> set[tuple[str, str]]:
        """Return pool and name of each device of the answer."""
        return {(device.pool, device.device) for device in self.devices}

    def need_devices(self) -> None:
        """Require that the driver answers devices.

        It need not (kubeletplugin, PrepareResult.Devices: empty is valid too): NRI or a hook may hand them over.

        Raises:
            Unable: it does not.
        """
        if not self.devices:
            raise Unable("the driver answers no devices")

    def need_cdi(self) -> None:
        """Require that the driver answers CDI ids.

        Raises:
            Unable: it does not.
        """
        if not self.cdi:
            raise Unable("the driver answers no CDI ids")


@dataclass(frozen=True)
class DriverInfo:
    """A driver's registration."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


@dataclass(frozen=True)
class ReportedHealth:
    """The health of a device as a driver reports it: 0 unknown, 1 healthy, 2 unhealthy; times are in seconds."""

    pool: str
    device: str
    health: int
    updated: int
    timeout: int
    message: str


class SocketClient:
    """A connection to one of a driver's sockets."""

    def __init__(self, socket: str, authority: str | None = None) -> None:
        options = [*_OPTIONS, *([("grpc.default_authority", authority)] if authority else [])]
        self._channel = grpc.insecure_channel(f"unix:{quote(socket)}", options=options)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def get_info(self, seconds: float = GET_INFO_SECONDS) -> DriverInfo:
        """Call GetInfo.

        Raises:
            DriverCallError: it does not answer.
        """
        call = RegistrationStub(self._channel).GetInfo
        info = _called(call, registration.InfoRequest(), seconds)
        return DriverInfo(info.type, info.name, info.endpoint, tuple(info.supported_versions))

    def notify(self, *, registered: bool, error: str = "") -> None:
        """Report the result of the registration.

        Raises:
            DriverCallError: the driver refuses it.
        """
        call = RegistrationStub(self._channel).NotifyRegistrationStatus
        _called(call, registration.RegistrationStatus(plugin_registered=registered, error=error), NOTIFY_SECONDS)

    def prepare(self, version: str, claims: Sequence[ClaimIdentity], seconds: float = CALL_SECONDS) -> Answers:
        """Call NodePrepareResources; returns the answers by claim UID.

        Raises:
            DriverCallError: the whole call failed.
        """
        return self._call(version, "NodePrepareResources", claims, seconds)

    def unprepare(self, version: str, claims: Sequence[ClaimIdentity], seconds: float = CALL_SECONDS) -> Answers:
        """Call NodeUnprepareResources.

        Raises:
            DriverCallError: the whole call failed.
        """
        return self._call(version, "NodeUnprepareResources", claims, seconds)

    def health(self, service: str, seconds: float) -> Generator[tuple[ReportedHealth, ...], None, None]:
        """Watch the health of devices for a time.

        Raises:
            DriverCallError: the stream ends with an error before the time is over.
        """
        api, calls = HEALTH_SERVICES[service]
        watch = calls.DRAResourceHealthStub(self._channel).NodeWatchResources
        # Without a deadline, like kubelet: a server that is told of one ends the stream by itself when it is over.
        stream = watch(api.NodeWatchResourcesRequest())
        timer = threading.Timer(seconds, stream.cancel)
        timer.daemon = True
        timer.start()
        try:
            for message in stream:
                yield tuple(_health(device) for device in message.devices)
        except grpc.RpcError as error:
            if timer.is_alive():
                raise DriverCallError(error) from error
        finally:
            timer.cancel()
            stream.cancel()

    def raw(self, method: str, seconds: float = CALL_SECONDS) -> None:
        """Call any method with an empty request.

        Raises:
            DriverCallError: the driver refuses.
        """
        _called(self._channel.unary_unary(method), b"", seconds)

    def _call(self, version: str, method: str, claims: Sequence[ClaimIdentity], seconds: float) -> Answers:
        api, calls = DRA_SERVICES[version]
        request = getattr(api, f"{method}Request")(
            claims=[api.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]
        )
        response = _called(getattr(calls.DRAPluginStub(self._channel), method), request, seconds)
        return {uid: _answer(answer) for uid, answer in response.claims.items()}


Answers = dict[str, ClaimAnswer]


def _called(call: Any, request: Any, seconds: float) -> Any:
    try:
        return call(request, timeout=seconds)
    except grpc.RpcError as error:
        raise DriverCallError(error, seconds) from error


def _answer(answer: Any) -> ClaimAnswer:
    return ClaimAnswer(answer.error, tuple(_device(device) for device in getattr(answer, "devices", ())))


def _device(device: Any) -> AnsweredDevice:
    # v1beta1 does not have share ids.
    shared = "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id")
    share = device.share_id if shared else None
    names = tuple(device.request_names)
    return AnsweredDevice(names, device.pool_name, device.device_name, tuple(device.cdi_device_ids), share)


def _health(device: Any) -> ReportedHealth:
    return ReportedHealth(
        device.device.pool_name,
        device.device.device_name,
        device.health,
        device.last_updated_time,
        device.health_check_timeout_seconds,
        device.message,
    )
