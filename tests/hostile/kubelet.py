"""kubelet's side: calls of the DRA service, and its own pod-resources API, which can also misbehave."""

import time
from collections.abc import Iterable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Final

import grpc

from dranode.proto import dra_v1_pb2 as api
from dranode.proto import podresources_v1_pb2 as podresources
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from tests.fakes.grpc_server import service
from tests.fakes.waiting import PATIENCE

MOODS: Final = ("well", "well", "away", "empty", "late", "wrong", "garbled")
_LATE_SECONDS: Final = 1.5


class DriverConnection:
    """kubelet's connection to one instance of the driver."""

    def __init__(self, socket: Path) -> None:
        options = [
            ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.max_reconnect_backoff_ms", 50),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=options)
        self._callers = {
            method: getattr(DRAPluginStub(self._channel), method)
            for method in ("NodePrepareResources", "NodeUnprepareResources")
        }

    def call(self, method: str, claims: Iterable[api.Claim], seconds: float = PATIENCE) -> Any:
        """Return the driver's answer; None if none comes in time."""
        request = getattr(api, f"{method}Request")(claims=list(claims))
        try:
            return self._callers[method](request, timeout=seconds, wait_for_ready=True)
        except (grpc.RpcError, ValueError):
            # The latter if the connection was closed meanwhile
            return None

    def close(self) -> None:
        self._channel.close()


class PodResourcesServer:
    """kubelet's pod-resources API.

    Attributes:
        mood: how it answers, one of `MOODS`.
        pods: its answer when it is well, by pod name.
    """

    def __init__(self, socket: Path) -> None:
        self.mood = "well"
        self.pods: dict[str, podresources.PodResources] = {}
        socket.parent.mkdir(parents=True, exist_ok=True)
        methods = {"List": self._list, "Get": self._list}
        self._server = grpc.server(
            futures.ThreadPoolExecutor(4), handlers=[service(podresources.DESCRIPTOR, "PodResourcesLister", methods)]
        )
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def _list(self, request: Any, context: grpc.ServicerContext) -> Any:
        del request
        if self.mood == "away":
            context.abort(grpc.StatusCode.UNAVAILABLE, "kubelet is not up")
        if self.mood == "late":
            time.sleep(_LATE_SECONDS)
        pods: Sequence[podresources.PodResources] = tuple(self.pods.values())
        if self.mood == "empty":
            pods = ()
        if self.mood == "wrong":
            pods = [podresources.PodResources(namespace=pod.namespace, name=pod.name) for pod in pods]
        if self.mood == "garbled":
            pods = [podresources.PodResources(namespace="\u2603" * 300, name=pod.name) for pod in pods]
        return podresources.ListPodResourcesResponse(pod_resources=pods)

    def close(self) -> None:
        self._server.stop(0).wait()
