"""Drivers that register with kubelet wrongly."""

import itertools
import time
import types
from typing import Any

import grpc

from tests.fakes.sanity.driver import Instance, RightDriver
from tests.fakes.sanity.fault import fault


@fault("registration-get-info", "DEADLINE_EXCEEDED")
class SlowInfo(RightDriver):
    slow = False

    def info(self, instance: Instance) -> Any:
        # Not at the first registration, so that the check can begin at all.
        if self.slow:
            time.sleep(1.5)
        self.slow = True
        return super().info(instance)


class Info(RightDriver):
    changes: dict[str, Any] = {}  # noqa: RUF012 - overridden as a whole

    def info(self, instance: Instance) -> Any:
        info = super().info(instance)
        for field, value in self.changes.items():
            info.ClearField(field)
            getattr(info, field).extend(value) if isinstance(value, list) else setattr(info, field, value)
        return info


@fault("registration-type", 'the type is "DevicePlugin"')
class WrongType(Info):
    changes = {"type": "DevicePlugin"}  # noqa: RUF012


@fault("registration-name", "is not a DNS subdomain")
class WrongName(Info):
    changes = {"name": "Right_Driver"}  # noqa: RUF012


@fault("registration-endpoint", "is not absolute")
class EndpointWithScheme(RightDriver):
    def info(self, instance: Instance) -> Any:
        info = super().info(instance)
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked > 2:
            info.endpoint = f"unix:{info.endpoint}"
        return info


@fault("registration-versions", "supported_versions is 1.0.0")
class WrongVersions(Info):
    changes = {"supported_versions": ["1.0.0"]}  # noqa: RUF012


@fault("registration-versions-order", "v1beta1.DRAPlugin, v1.DRAPlugin")
class OldestFirst(Info):
    changes = {"supported_versions": ["v1beta1.DRAPlugin", "v1.DRAPlugin"]}  # noqa: RUF012


@fault("registration-versions-unique", "has v1.DRAPlugn")
class MisspeltVersion(Info):
    changes = {"supported_versions": ["v1.DRAPlugin", "v1.DRAPlugn"]}  # noqa: RUF012


@fault("registration-versions-served", "v1beta1.DRAPlugin is advertised")
class NotServed(RightDriver):
    def dra_services(self) -> list[Any]:
        return super().dra_services()[:1]


@fault("registration-repeatable", "after")
class ChangingInfo(RightDriver):
    counter = itertools.count()

    def info(self, instance: Instance) -> Any:
        info = super().info(instance)
        info.supported_versions.append(f"v{next(self.counter)}")
        return info


@fault("registration-notified", "UNIMPLEMENTED")
class NoNotification(RightDriver):
    def notified(self, request: Any, context: Any) -> Any:
        del request
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")


@fault("registration-after-refusal", "does not register")
class Sulking(RightDriver):
    refused = False

    def notified(self, request: Any, context: Any) -> Any:
        self.refused = self.refused or not request.plugin_registered
        if self.refused:
            context.abort(grpc.StatusCode.INTERNAL, "closed")
        return super().notified(request, context)


@fault("registration-kubelet-restart", "already registered")
class OneKubelet(RightDriver):
    registered = False

    def notified(self, request: Any, context: Any) -> Any:
        self.kubelets = getattr(self, "kubelets", 0) + 1
        return super().notified(request, context)

    def prepare_one(self, api: Any, claim: Any) -> Any:
        if self.kubelets > 1:
            return api.NodePrepareResourceResponse(error="another kubelet is already registered")
        return super().prepare_one(api, claim)


@fault("registration-stale-socket", "no registration socket answers")
class StaleSocket(RightDriver):
    def _server(self, socket: Any, services: list[Any]) -> grpc.Server:
        if not socket.exists():
            return super()._server(socket, services)
        # The address is in use, and the error is ignored.
        return types.SimpleNamespace(stop=lambda _grace: types.SimpleNamespace(wait=lambda: None))


@fault("registration-service-first", "did not listen when GetInfo was answered")
class ServiceLater(RightDriver):
    starts = 0

    def serve(self, instance: Instance) -> list[grpc.Server]:
        servers = super().serve(instance)
        self.starts += 1
        if self.starts > 1:
            servers[0].stop(0).wait()
        return servers


@fault("registration-authority", "unusual :authority")
class PickyAuthority(RightDriver):
    def _server(self, socket: Any, services: list[Any]) -> grpc.Server:
        return super()._server(socket, [_Picky(), *services])


class _Picky(grpc.GenericRpcHandler):  # type: ignore[misc] # untyped
    def service(self, details: Any) -> Any:
        if "DRAPlugin" in details.method:
            return grpc.unary_unary_rpc_method_handler(
                lambda _request, context: (
                    context.abort(grpc.StatusCode.INTERNAL, "bad authority")
                    if "%2F" in context.host().decode()
                    else b""
                )
            )
        return None


@fault("registration-unknown-method", "INTERNAL")
class UnknownMethod(RightDriver):
    def _server(self, socket: Any, services: list[Any]) -> grpc.Server:
        return super()._server(socket, [*services, _CatchAll()])


class _CatchAll(grpc.GenericRpcHandler):  # type: ignore[misc] # untyped
    def service(self, details: Any) -> Any:
        del details
        return grpc.unary_unary_rpc_method_handler(
            lambda _request, context: context.abort(grpc.StatusCode.INTERNAL, "never heard of it")
        )


@fault("registration-folder", "holds driver.lock")
class LockInRegistry(RightDriver):
    def start(self, instance: str = "") -> None:
        super().start(instance)
        (self.folder / "plugins_registry" / "driver.lock").touch()


@fault("registration-endpoint", "is not a socket")
class EndpointElsewhere(Info):
    def info(self, instance: Instance) -> Any:
        info = super().info(instance)
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked > 2:
            info.endpoint = f"{info.endpoint}.later"
        return info


@fault("registration-endpoint", "bytes")
class LongEndpoint(Info):
    def info(self, instance: Instance) -> Any:
        info = super().info(instance)
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked > 2:
            info.endpoint = f"/{'long/' * 22}dra.sock"
        return info


@fault("registration-stale-socket", "and now")
class NewSocketNames(RightDriver):
    starts = 0

    def start(self, instance: str = "") -> None:
        self.starts += 1
        self.instances[instance] = Instance(self, f"{instance}{self.starts}")


@fault("registration-after-refusal", "UNIMPLEMENTED")
class KnowsNoRefusal(RightDriver):
    def notified(self, request: Any, context: Any) -> Any:
        if not request.plugin_registered:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no refusals here")
        return super().notified(request, context)


class _Anything(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every method."""

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")


@fault("registration-unknown-method", "an unknown method was answered")
class AnswersAnything(RightDriver):
    def dra_services(self) -> list[Any]:
        return [*super().dra_services(), _Anything()]
