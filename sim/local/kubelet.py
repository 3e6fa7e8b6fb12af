"""A stand-in for kubelet's DRA manager, which registers drivers and lets them prepare claims.

Like kubelet (pkg/kubelet/pluginmanager, pkg/kubelet/cm/dra), it watches the registry folder for sockets, calls GetInfo
(1 s), uses the first DRA service in the plugin's list that it knows, and notifies the plugin (5 s). For each pod, it
makes one NodePrepareResources call per driver with all unprepared claims (45 s), requires an answer for exactly these
claims, and sends all claims again after a restart.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import grpc
import msgspec

from dranode.api.errors import DranodeError
from dranode.driver.claims.answers import Prepared, Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import PreparedDevice
from dranode.driver.kubelet.sockets import uri
from dranode.proto import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from dranode.proto import pluginregistration_v1_pb2 as registration
from dranode.proto.pluginregistration_v1_pb2_grpc import RegistrationStub

# The messages and the stub of each DRA service.
_SERVICES: Final[Mapping[str, tuple[ModuleType, Callable[[grpc.Channel], Any]]]] = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc.DRAPluginStub),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc.DRAPluginStub),
}
_GET_INFO_SECONDS: Final = 1.0
_NOTIFY_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 45.0
_POLL_SECONDS: Final = 0.02


class KubeletError(DranodeError):
    """An error that kubelet would write into the pod's events."""


class _SilentError(KubeletError):
    """No process answers at a registration socket."""


class _Plugin(msgspec.Struct):
    name: str
    endpoint: str
    api: ModuleType
    calls: Any
    channel: grpc.Channel


class StandInKubelet(msgspec.Struct):
    """kubelet's side of the sockets, for one node.

    Attributes:
        registry: the folder where plugins create their registration sockets.
        services: the DRA services that this kubelet knows; an old kubelet only knows v1beta1.
    """

    registry: Path
    services: tuple[str, ...] = tuple(_SERVICES)
    _plugins: dict[str, _Plugin] = msgspec.field(default_factory=dict)
    _seen: set[Path] = msgspec.field(default_factory=set)
    _prepared: dict[tuple[str, str], tuple[PreparedDevice, ...]] = msgspec.field(default_factory=dict)

    def register(self, drivers: Iterable[str], seconds: float = 10.0) -> None:
        """Watch the registry until these drivers are registered.

        Raises:
            KubeletError: a driver does not appear in time, or is not valid.
        """
        expected = set(drivers)
        deadline = time.monotonic() + seconds
        silent: dict[Path, str] = {}
        while True:
            for socket in sorted(self.registry.glob("*.sock")):
                if socket not in self._seen and socket.is_socket():
                    # A killed driver leaves its socket behind, so a silent socket must not stop the others.
                    try:
                        self._register(socket)
                    except _SilentError as error:
                        silent[socket] = str(error)
                    else:
                        self._seen.add(socket)
            if expected <= self._plugins.keys():
                return
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(expected - self._plugins.keys()))
                none = f"no registration socket of {missing} appeared in {self.registry}"
                raise KubeletError("; ".join((none, *silent.values())))
            time.sleep(_POLL_SECONDS)

    def _register(self, socket: Path) -> None:
        with grpc.insecure_channel(uri(socket)) as channel:
            calls = RegistrationStub(channel)
            try:
                info = calls.GetInfo(registration.InfoRequest(), timeout=_GET_INFO_SECONDS, wait_for_ready=True)
            except grpc.RpcError as error:
                raise _SilentError(f"plugin registration at {socket} failed: {_reason(error)}") from error
            problem = self._problem(info)
            with _kubelet_error(f"plugin {info.name} did not accept its registration status"):
                calls.NotifyRegistrationStatus(
                    registration.RegistrationStatus(plugin_registered=problem is None, error=problem or ""),
                    timeout=_NOTIFY_SECONDS,
                )
        if problem is not None:
            raise KubeletError(problem)
        service = next(version for version in info.supported_versions if version in self.services)
        channel = grpc.insecure_channel(uri(Path(info.endpoint)))
        api, stub = _SERVICES[service]
        self._plugins[info.name] = _Plugin(info.name, info.endpoint, api, stub(channel), channel)

    def _problem(self, info: Any) -> str | None:
        if info.type != "DRAPlugin":
            return f'no handler for plugin type "{info.type}"'
        if not any(version in self.services for version in info.supported_versions):
            return f"none of the plugin's versions {list(info.supported_versions)} is supported: {list(self.services)}"
        plugin = self._plugins.get(info.name)
        if plugin is not None and plugin.endpoint == info.endpoint:
            return f"endpoint {info.endpoint} of plugin {info.name} is already registered"
        return None

    def prepare(self, claims: Mapping[ClaimRef, frozenset[str]]) -> dict[ClaimRef, Prepared | Refused]:
        """Prepare the claims of one pod with one call per driver; `claims` has the drivers of each claim.

        The pod can start if no claim is refused. Unlike the real kubelet, this one continues after a refusal, so that
        every claim has its own answer.
        """
        answers: dict[ClaimRef, Prepared | Refused] = dict.fromkeys(claims, Prepared())
        for driver in sorted({driver for drivers in claims.values() for driver in drivers}):
            batch = [ref for ref, drivers in claims.items() if driver in drivers]
            for ref, answer in self._prepare(driver, batch).items():
                answers[ref] = _together(answers[ref], answer)
        return answers

    def _prepare(self, driver: str, refs: list[ClaimRef]) -> dict[ClaimRef, Prepared | Refused]:
        batch = [ref for ref in refs if (driver, ref.uid) not in self._prepared]
        refused: dict[ClaimRef, Refused] = {}
        try:
            if batch:
                refused = self._call_prepare(self._plugin(driver), batch)
        except KubeletError as error:
            refused = dict.fromkeys(batch, Refused(str(error)))
        return {ref: refused.get(ref) or Prepared(self._prepared[driver, ref.uid]) for ref in refs}

    def _call_prepare(self, plugin: _Plugin, batch: list[ClaimRef]) -> dict[ClaimRef, Refused]:
        api = plugin.api
        with _kubelet_error(f"NodePrepareResources failed for driver {plugin.name}"):
            request = api.NodePrepareResourcesRequest(claims=_claims(api, batch))
            response = plugin.calls.NodePrepareResources(request, timeout=_CALL_SECONDS)
        refused: dict[ClaimRef, Refused] = {}
        for ref, answer in _answers(plugin, batch, response):
            if answer.error:
                refused[ref] = Refused(answer.error)
            else:
                self._prepared[plugin.name, ref.uid] = tuple(_prepared(device) for device in answer.devices)
        return refused

    def unprepare(self, claims: Mapping[ClaimRef, frozenset[str]]) -> None:
        """Unprepare claims with one call per driver.

        Raises:
            KubeletError: a driver is missing or a claim failed; the other claims are unprepared nevertheless.
        """
        failures: list[KubeletError] = []
        for driver in sorted({driver for drivers in claims.values() for driver in drivers}):
            batch = [ref for ref, drivers in claims.items() if driver in drivers]
            try:
                failures += self._call_unprepare(self._plugin(driver), batch)
            except KubeletError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _call_unprepare(self, plugin: _Plugin, batch: list[ClaimRef]) -> Iterator[KubeletError]:
        api = plugin.api
        with _kubelet_error(f"NodeUnprepareResources failed for driver {plugin.name}"):
            request = api.NodeUnprepareResourcesRequest(claims=_claims(api, batch))
            response = plugin.calls.NodeUnprepareResources(request, timeout=_CALL_SECONDS)
        for ref, answer in _answers(plugin, batch, response):
            if answer.error:
                yield KubeletError(answer.error)
            else:
                self._prepared.pop((plugin.name, ref.uid), None)

    def restart(self) -> None:
        """Forget prepared claims and registered drivers, like a restart; the next `prepare` sends all claims again."""
        self.close()
        self._plugins.clear()
        self._seen.clear()
        self._prepared.clear()

    def close(self) -> None:
        """Close the connections to the drivers."""
        for plugin in self._plugins.values():
            plugin.channel.close()

    def _plugin(self, driver: str) -> _Plugin:
        if driver not in self._plugins:
            raise KubeletError(f"DRA driver {driver} is not registered")
        return self._plugins[driver]


def _together(answer: Prepared | Refused, further: Prepared | Refused) -> Prepared | Refused:
    """Combine the answers of two drivers for one claim: the first refusal, or the devices of both."""
    match answer, further:
        case Prepared(devices), Prepared(more):
            return Prepared(devices + more)
        case Prepared(), Refused():
            return further
        case _:
            return answer


def _claims(api: ModuleType, refs: Iterable[ClaimRef]) -> list[Any]:
    return [api.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name) for ref in refs]


def _prepared(device: Any) -> PreparedDevice:
    # v1beta1 has no share IDs.
    shared = "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id")
    return PreparedDevice(
        request=device.request_names[0] if device.request_names else "",
        pool=device.pool_name,
        device=device.device_name,
        cdi=tuple(device.cdi_device_ids),
        share_id=device.share_id if shared else None,
    )


def _answers(plugin: _Plugin, batch: list[ClaimRef], response: Any) -> list[tuple[ClaimRef, Any]]:
    unknown = set(response.claims) - {ref.uid for ref in batch}
    if unknown:
        raise KubeletError(f"driver {plugin.name} answered for claims that it was not asked about: {sorted(unknown)}")
    if len(response.claims) < len(batch):
        raise KubeletError(f"driver {plugin.name} skipped {len(batch) - len(response.claims)} ResourceClaims")
    return [(ref, response.claims[ref.uid]) for ref in batch]


@contextlib.contextmanager
def _kubelet_error(message: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise KubeletError(f"{message}: {_reason(error)}") from error


def _reason(error: Any) -> str:
    return str(error.details() or error.code())
