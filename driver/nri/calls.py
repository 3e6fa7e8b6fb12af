"""Gives each call of the runtime its meaning: NRI's methods, in both styles of events, as a table.

Up to NRI 0.11 everything but the three container requests comes as StateChange; from 0.12 each event has its own
method. A method that is not here is answered with status 12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError, Message

from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.pinning.containers import Container, Resources
from dranode.driver.nri.container import container_of, cpus_of, page_limits_of, pod_of
from dranode.driver.nri.events import (
    Configured,
    ContainerRemoved,
    ContainerStarted,
    CreateRequest,
    NRIEvent,
    PodGone,
    RuntimePeer,
    ShutdownAnnounced,
    StartRequest,
    StopRequest,
    UpdateRequest,
)
from dranode.driver.nri.ttrpc import Call, StatusCode
from dranode.proto import nri_v1alpha1_pb2 as nri

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"


class SynchronizePart(msgspec.Struct, frozen=True):
    """One message of a Synchronize; a container may come in an earlier one than its pod.

    Attributes:
        more: whether another message follows.
    """

    stream: int
    pods: tuple[PodSandbox, ...]
    containers: tuple[Container, ...]
    more: bool


class CallError(Exception):
    """A call that cannot be understood, with the status that answers it."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def understand(stream: int, call: Call) -> NRIEvent | SynchronizePart | None:
    """Return what the call on `stream` is about; None if it only needs an empty answer.

    Raises:
        CallError: there is no such method, or its payload does not decode.
    """
    if call.service != PLUGIN_SERVICE:
        raise CallError(StatusCode.UNIMPLEMENTED, f"service {call.service}")
    method = _METHODS.get(call.method)
    if method is None:
        raise CallError(StatusCode.UNIMPLEMENTED, f"method {call.method}")
    kind, meaning = method
    try:
        body = kind.FromString(call.payload)
    except DecodeError as error:
        raise CallError(StatusCode.INVALID_ARGUMENT, f"the payload of {call.method} does not decode") from error
    return meaning(stream, body)


def _configure(_stream: int, body: nri.ConfigureRequest) -> NRIEvent:
    timeout = body.request_timeout / 1000 if body.request_timeout > 0 else RuntimePeer().request_timeout
    return Configured(RuntimePeer(body.runtime_name, body.runtime_version, body.nri_version, timeout))


def _synchronize(stream: int, body: nri.SynchronizeRequest) -> SynchronizePart:
    pods = tuple(map(pod_of, body.pods))
    containers = tuple(
        container_of(container, PodSandbox(container.pod_sandbox_id))
        for container in body.containers
        if container.state != nri.CONTAINER_STOPPED
    )
    return SynchronizePart(stream, pods, containers, body.more)


def _create(stream: int, body: nri.CreateContainerRequest) -> NRIEvent:
    return CreateRequest(stream, container_of(body.container, pod_of(body.pod)))


def _update(stream: int, body: nri.UpdateContainerRequest) -> NRIEvent:
    cpu = body.linux_resources.cpu
    requested = Resources(cpus_of(cpu.cpus), cpus_of(cpu.mems), hugepages=page_limits_of(body.linux_resources))
    return UpdateRequest(stream, container_of(body.container, pod_of(body.pod)), requested, cpu.quota.value)


def _stop(stream: int, body: nri.StopContainerRequest) -> NRIEvent:
    return StopRequest(stream, container_of(body.container, pod_of(body.pod)))


def _start(stream: int, body: nri.ContainerEvent | nri.StateChangeEvent) -> NRIEvent:
    return StartRequest(stream, container_of(body.container, pod_of(body.pod)))


def _started(_stream: int, body: nri.ContainerEvent | nri.StateChangeEvent) -> NRIEvent:
    return ContainerStarted(container_of(body.container, pod_of(body.pod)))


def _removed(_stream: int, body: nri.ContainerEvent | nri.StateChangeEvent) -> NRIEvent:
    return ContainerRemoved(container_of(body.container, pod_of(body.pod)))


def _pod_gone(_stream: int, body: nri.PodEvent | nri.StateChangeEvent) -> NRIEvent:
    return PodGone(pod_of(body.pod))


def _state_change(stream: int, body: nri.StateChangeEvent) -> NRIEvent | None:
    meaning = _STATE_CHANGES.get(body.event)
    return meaning(stream, body) if meaning else None


def _shutdown(_stream: int, _body: nri.Empty) -> NRIEvent:
    return ShutdownAnnounced()


def _nothing(_stream: int, _body: Message) -> None:
    return None


_METHODS: Final[Mapping[str, tuple[type[Message], Callable[[int, Any], NRIEvent | SynchronizePart | None]]]] = {
    "Configure": (nri.ConfigureRequest, _configure),
    "Synchronize": (nri.SynchronizeRequest, _synchronize),
    "Shutdown": (nri.Empty, _shutdown),
    "CreateContainer": (nri.CreateContainerRequest, _create),
    "UpdateContainer": (nri.UpdateContainerRequest, _update),
    "StopContainer": (nri.StopContainerRequest, _stop),
    "StateChange": (nri.StateChangeEvent, _state_change),
    "StopPodSandbox": (nri.PodEvent, _pod_gone),
    "RemovePodSandbox": (nri.PodEvent, _pod_gone),
    "StartContainer": (nri.ContainerEvent, _start),
    "PostStartContainer": (nri.ContainerEvent, _started),
    "RemoveContainer": (nri.ContainerEvent, _removed),
    "RunPodSandbox": (nri.PodEvent, _nothing),
    "UpdatePodSandbox": (nri.PodEvent, _nothing),
    "PostUpdatePodSandbox": (nri.PodEvent, _nothing),
    "PostCreateContainer": (nri.ContainerEvent, _nothing),
    "PostUpdateContainer": (nri.ContainerEvent, _nothing),
}

_STATE_CHANGES: Final[Mapping[int, Callable[[int, nri.StateChangeEvent], NRIEvent]]] = {
    nri.STOP_POD_SANDBOX: _pod_gone,
    nri.REMOVE_POD_SANDBOX: _pod_gone,
    nri.START_CONTAINER: _start,
    nri.POST_START_CONTAINER: _started,
    nri.REMOVE_CONTAINER: _removed,
}
