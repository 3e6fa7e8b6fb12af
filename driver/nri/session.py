"""One NRI connection as a state machine without I/O: bytes in, events out; decisions in, bytes out.

The protocol (containerd/nri, pkg/adaptation): the plug-in calls RegisterPlugin. The runtime calls Configure, perhaps
before it answers that; then Synchronize, perhaps much later and perhaps in several messages; then a method for every
event that the plug-in subscribed to. Every call needs an answer: the runtime waits, and drops a plug-in that is late.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError, Message
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import page_size_name, page_size_of
from dranode.driver.claims.users import PodSandbox
from dranode.driver.machine.cgroups import NO_LIMIT
from dranode.driver.nri import ttrpc
from dranode.driver.nri.events import (
    Configured,
    ContainerRemoved,
    ContainerStarted,
    CreateRequest,
    NRIEvent,
    NRIRequest,
    PluginAccepted,
    PodGone,
    RegistrationRefused,
    RuntimePeer,
    ShutdownAnnounced,
    StartRequest,
    StopRequest,
    SynchronizeRequest,
    UpdateRequest,
    UpdatesAnswered,
)
from dranode.driver.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.pinning.snapshot import HugepageLimits
from dranode.proto import nri_v1alpha1_pb2 as nri

# NRI's messages become values, and values become messages. No other package sees protobuf.

NO_QUOTA = -1
"""`cpu.cfs_quota_us` of a container without a limit (runtime-spec, config-linux.md)."""

_STARTED = frozenset((nri.CONTAINER_RUNNING, nri.CONTAINER_PAUSED))


def pod_of(message: nri.PodSandbox) -> PodSandbox:
    """Return the pod sandbox in a message."""
    return PodSandbox(id=message.id, uid=message.uid, namespace=message.namespace, name=message.name)


def container_of(message: nri.Container, pod: PodSandbox) -> Container:
    """Return the container in a message."""
    linux = message.linux
    cpu = linux.resources.cpu
    return Container(
        id=message.id,
        name=message.name,
        pod=pod,
        env=tuple(message.env),
        cdi_devices=tuple(device.name for device in message.CDI_devices),
        cpus=cpus_of(cpu.cpus),
        mems=cpus_of(cpu.mems),
        quota=cpu.quota.value,
        started=message.state in _STARTED,
        cgroup=linux.cgroups_path,
        hugepages=page_limits_of(linux.resources),
    )


def page_limits_of(resources: nri.LinuxResources) -> HugepageLimits:
    """Return the limits of huge pages in resources; a page size that cannot be parsed is left out."""
    sizes = ((page_size_of(limit.page_size), limit.limit) for limit in resources.hugepage_limits)
    return tuple(sorted({size: min(limit, NO_LIMIT) for size, limit in sizes if size is not None}.items()))


def cpus_of(text: str) -> CPUSet:
    """Parse a cpu-list. It may come from a user's annotation or another plug-in; an invalid one counts as empty."""
    try:
        return CPUSet.parse(text)
    except ValueError:
        return CPUSet()


def adjustment_to(resources: Resources) -> nri.ContainerAdjustment | None:
    """Return the resources of a container that is being created as a message; None if they change nothing."""
    if not resources:
        return None
    linux = _linux(resources)
    # runc sets the limit on used pages from `hugepageLimits`. Version 1.1 does not limit reserved pages, which a
    # process may map and use later, so that file is set too.
    _set_files(linux, resources, ("rsvd.max",))
    return nri.ContainerAdjustment(linux=nri.LinuxContainerAdjustment(resources=linux))


def updates_to(updates: Iterable[ContainerUpdate]) -> Iterator[nri.ContainerUpdate]:
    """Return new resources for existing containers as messages."""
    # When the shared pool changes, hundreds of containers get the same resources, so the message is made once.
    resources, linux = Resources(), None
    for update in updates:
        if update.resources is not resources:
            resources = update.resources
            linux = nri.LinuxContainerUpdate(resources=_changed(resources)) if resources else None
        yield nri.ContainerUpdate(container_id=update.container_id, linux=linux, ignore_failure=update.ignore_failure)


def _linux(resources: Resources) -> nri.LinuxResources:
    cpu = nri.LinuxCPU(cpus=str(resources.cpus), mems=str(resources.mems))
    if resources.lift_quota:
        cpu.quota.value = NO_QUOTA
    limits = (nri.HugepageLimit(page_size=page_size_name(size), limit=limit) for size, limit in resources.hugepages)
    return nri.LinuxResources(cpu=cpu, hugepage_limits=limits)


def _changed(resources: Resources) -> nri.LinuxResources:
    """Return new resources for an existing container as a message.

    `runc update` ignores `hugepageLimits`. It writes files of cgroup v2, and refuses them on v1. Both limits are set,
    as at creation: one counts pages when they are reserved (`rsvd`), the other when they are used.
    """
    linux = _linux(resources)
    _set_files(linux, resources, ("max", "rsvd.max"))
    return linux


def _set_files(linux: nri.LinuxResources, resources: Resources, names: Iterable[str]) -> None:
    """Set the limits of huge pages through files of cgroup v2 with these names, if the node has cgroup v2."""
    for size, limit in resources.hugepages if resources.unified else ():
        for name in names:
            linux.unified[f"hugetlb.{page_size_name(size)}.{name}"] = str(limit) if limit < NO_LIMIT else "max"


# The runtime's calls are dispatched by tables. Up to NRI 0.11 all events but the three container requests come as
# StateChange; from 0.12 each event has a method of its own. An unknown method is answered with UNIMPLEMENTED.

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"


class SynchronizePart(msgspec.Struct, frozen=True):
    """One message of a Synchronize. A container may come in an earlier message than its pod.

    Attributes:
        stream: the call's stream, for the answer.
        pods: the pods of this message.
        containers: the containers of this message that have not stopped.
        more: whether another message follows.
    """

    stream: int
    pods: tuple[PodSandbox, ...]
    containers: tuple[Container, ...]
    more: bool


class CallError(Exception):
    """A call that cannot be handled, with the status to answer it with."""

    def __init__(self, code: ttrpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def understand(stream: int, call: ttrpc.Call) -> NRIEvent | SynchronizePart | None:
    """Return the event in the call on `stream`; None if the call only needs an empty answer.

    Raises:
        CallError: there is no such method, or its payload does not decode.
    """
    if call.service != PLUGIN_SERVICE:
        raise CallError(ttrpc.StatusCode.UNIMPLEMENTED, f"service {call.service}")
    method = _METHODS.get(call.method)
    if method is None:
        raise CallError(ttrpc.StatusCode.UNIMPLEMENTED, f"method {call.method}")
    kind, meaning = method
    try:
        body = kind.FromString(call.payload)
    except DecodeError as error:
        raise CallError(ttrpc.StatusCode.INVALID_ARGUMENT, f"the payload of {call.method} does not decode") from error
    return meaning(stream, body)


def _configure(_stream: int, body: nri.ConfigureRequest) -> NRIEvent:
    # Old runtimes do not send their time limit. The default of all runtimes is 2 s.
    timeout = body.request_timeout / 1000 if body.request_timeout > 0 else RuntimePeer().request_timeout
    return Configured(RuntimePeer(body.runtime_name, body.runtime_version, body.nri_version, timeout))


def _synchronize(stream: int, body: nri.SynchronizeRequest) -> SynchronizePart:
    pods = tuple(map(pod_of, body.pods))
    containers = tuple(
        container_of(container, PodSandbox(container.pod_sandbox_id))
        for container in body.containers
        # A stopped container keeps no CPUs, and its claims may be another container's by now.
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
    # Not subscribed to. A runtime may call them all the same, and an error would fail the pod.
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


# All of these exist since NRI 0.2. A runtime closes the connection if the mask has a bit that it does not know.
_SUBSCRIBED: Final = (
    nri.STOP_POD_SANDBOX,
    nri.REMOVE_POD_SANDBOX,
    nri.CREATE_CONTAINER,
    nri.START_CONTAINER,
    nri.POST_START_CONTAINER,
    nri.UPDATE_CONTAINER,
    nri.STOP_CONTAINER,
    nri.REMOVE_CONTAINER,
)
EVENTS: Final = sum(1 << (event - 1) for event in _SUBSCRIBED)
"""The events that are subscribed to, as a bit mask; 0 would mean all events."""

# The characters that runtimes allow in names of plug-ins (containerd/nri, pkg/api/plugin.go, CheckPluginName).
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+", re.ASCII)
_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)


class Session:
    """The plug-in's end of one connection.

    The owner of the socket passes received bytes to `receive_data`, answers the requests among the events, and sends
    what `data_to_send` returns. After a `ProtocolError` the session ignores all input.

    Attributes:
        registered: whether the runtime has accepted the plug-in.
        synchronized: whether the runtime's state has been received and answered. From then on no event is missing.
        awaiting_updates: whether an unsolicited update has not been answered yet; there is never more than one.
    """

    def __init__(self, name: str, index: str, events: int = EVENTS) -> None:
        """Make a session.

        Raises:
            ValueError: the name or the index is not valid, so the runtime would refuse it.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f'"{name}" is not an NRI plug-in name: it has to consist of letters, digits and _.+-')
        if not _INDEX.fullmatch(index):
            raise ValueError(f'"{index}" is not an NRI plug-in index: it has to be two digits')
        self._name, self._index, self._events = name, index, events
        self._demultiplexer = ttrpc.Demultiplexer()
        self._calls, self._answers = ttrpc.Decoder(), ttrpc.Decoder()
        self._out: list[bytes] = []
        self._last_stream = -1
        self._next_stream = 1
        self._waiting: dict[int, Callable[[ttrpc.Response], NRIEvent]] = {}
        self._requests: set[int] = set()
        self._parts: list[SynchronizePart] = []
        self._ended = False
        self.registered = False
        self.synchronized = False
        self.awaiting_updates = False

    # --- bytes ---

    def data_to_send(self) -> bytes:
        """Return the bytes to send now."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive_data(self, data: bytes) -> list[NRIEvent]:
        """Return the events in received bytes.

        Raises:
            ProtocolError: the bytes are not valid NRI. It is raised once; all input after it is ignored.
        """
        if self._ended:
            return []
        events: list[NRIEvent] = []
        try:
            # Both ends call each other over one socket, so NRI multiplexes two ttrpc connections on it.
            for chunk in self._demultiplexer.receive_data(data):
                if chunk.connection == ttrpc.PLUGIN_CONNECTION:
                    for message in self._calls.receive_data(chunk.data):
                        events.extend(self._called(message))
                else:
                    for message in self._answers.receive_data(chunk.data):
                        events.extend(self._answered(message))
        except ttrpc.ProtocolError:
            self._ended = True
            raise
        return events

    def receive_end(self) -> None:
        """Note that the runtime has closed the connection.

        Raises:
            ProtocolError: it was closed within a frame or a message.
        """
        if self._ended:
            return
        self._ended = True
        if self._demultiplexer.inside_frame or self._calls.inside_message or self._answers.inside_message:
            raise ttrpc.ProtocolError("the runtime closed the NRI connection in the middle of a message")

    # --- calls of ours ---

    def register(self) -> None:
        """Call RegisterPlugin, the first call on a new connection."""
        body = nri.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index)
        self._call("RegisterPlugin", body, self._register_answered)

    def update_containers(self, updates: Iterable[ContainerUpdate]) -> None:
        """Call UpdateContainers. `UpdatesAnswered` follows, unless the runtime hangs.

        Raises:
            ValueError: an earlier call has not been answered yet.
        """
        if self.awaiting_updates:
            raise ValueError("an UpdateContainers call is still waiting for its answer")
        self.awaiting_updates = True
        body = nri.UpdateContainersRequest(update=updates_to(updates))
        self._call("UpdateContainers", body, self._updates_answered)

    def _call(self, method: str, body: Message, answered: Callable[[ttrpc.Response], NRIEvent]) -> None:
        # A ttrpc client uses odd stream ids.
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._waiting[stream] = answered
        call = ttrpc.Call(RUNTIME_SERVICE, method, body.SerializeToString())
        self._out.append(ttrpc.encode_message(ttrpc.RUNTIME_CONNECTION, ttrpc.request(stream, call)))

    def _answered(self, message: ttrpc.Message) -> Iterator[NRIEvent]:
        if message.stream not in self._waiting:
            return
        # All methods of NRI are unary, so a stream would never end.
        if message.type == ttrpc.MessageType.DATA:
            raise ttrpc.ProtocolError(f"the runtime streams data on stream {message.stream}, where one answer is due")
        if message.type == ttrpc.MessageType.RESPONSE:
            answered = self._waiting.pop(message.stream)
            yield answered(ttrpc.read_response(message))

    def _register_answered(self, answer: ttrpc.Response) -> NRIEvent:
        if answer.code:
            return RegistrationRefused(answer.message or f"status {answer.code}")
        # Configure and Synchronize may have come before this answer.
        self.registered = True
        return PluginAccepted()

    def _updates_answered(self, answer: ttrpc.Response) -> NRIEvent:
        self.awaiting_updates = False
        return UpdatesAnswered((answer.message or f"status {answer.code}") if answer.code else "")

    # --- answers of ours ---

    def adjust(self, request: CreateRequest, resources: Resources, updates: Iterable[ContainerUpdate] = ()) -> None:
        """Answer that the container may be created with these resources, and that others are to be updated."""
        body = nri.CreateContainerResponse(adjust=adjustment_to(resources), update=updates_to(updates))
        self._reply(request, body)

    def update(self, request: UpdateRequest | StopRequest, updates: Iterable[ContainerUpdate] = ()) -> None:
        """Answer an update or a stop with updates of containers."""
        # UpdateContainerResponse and StopContainerResponse have the same field.
        self._reply(request, nri.UpdateContainerResponse(update=updates_to(updates)))

    def start(self, request: StartRequest) -> None:
        """Answer that the container may start."""
        self._reply(request, nri.Empty())

    def synchronize(self, request: SynchronizeRequest, updates: Iterable[ContainerUpdate] = ()) -> None:
        """Answer Synchronize with the containers that have to be updated; from now on the plug-in is active."""
        self._reply(request, nri.SynchronizeResponse(update=updates_to(updates)))
        self.synchronized = True

    def refuse(self, request: NRIRequest, message: str) -> None:
        """Answer with an error, so that the runtime's operation fails; kubelet shows the message on the pod."""
        self._requests.remove(request.stream)
        self._error(request.stream, ttrpc.StatusCode.UNKNOWN, message)

    def _reply(self, request: NRIRequest, body: Message) -> None:
        self._requests.remove(request.stream)
        self._answer(request.stream, body)

    def _answer(self, stream: int, body: Message) -> None:
        message = ttrpc.response(stream, ttrpc.Response(body.SerializeToString()))
        self._out.append(ttrpc.encode_message(ttrpc.PLUGIN_CONNECTION, message))

    def _error(self, stream: int, code: ttrpc.StatusCode, text: str) -> None:
        message = ttrpc.response(stream, ttrpc.Response(code=code, message=text))
        self._out.append(ttrpc.encode_message(ttrpc.PLUGIN_CONNECTION, message))

    # --- calls of the runtime ---

    def _called(self, message: ttrpc.Message) -> Iterator[NRIEvent]:
        # ttrpc ignores types of messages that it does not know; streams of data are not used by NRI.
        if message.type != ttrpc.MessageType.REQUEST:
            return
        stream = message.stream
        try:
            event = understand(stream, self._accept(message))
        except CallError as error:
            self._error(stream, error.code, error.text)
            return
        match event:
            case SynchronizePart():
                yield from self._synchronize(event)
            case SynchronizeRequest() | CreateRequest() | UpdateRequest() | StopRequest() | StartRequest():
                self._requests.add(stream)
                yield event
            case Configured():
                self._answer(stream, nri.ConfigureResponse(events=self._events))
                yield event
            case None:
                self._answer(stream, nri.Empty())
            case _:
                self._answer(stream, nri.Empty())
                yield event

    def _accept(self, message: ttrpc.Message) -> ttrpc.Call:
        # The rule of ttrpc for the streams of a client: odd, and ascending.
        if message.stream % 2 == 0 or message.stream <= self._last_stream:
            text = f"stream id {message.stream} has to be odd and greater than {self._last_stream}"
            raise CallError(ttrpc.StatusCode.INVALID_ARGUMENT, text)
        self._last_stream = message.stream
        call = ttrpc.read_request(message)
        if call is None:
            raise CallError(ttrpc.StatusCode.INVALID_ARGUMENT, "the request does not decode")
        return call

    def _synchronize(self, part: SynchronizePart) -> Iterator[NRIEvent]:
        # A node with many containers does not fit into one message (4 MiB), so NRI sends the list in parts and expects
        # an answer to each.
        self._parts.append(part)
        if part.more:
            self._answer(part.stream, nri.SynchronizeResponse(more=True))
            return
        containers = tuple(_with_pods(self._parts))
        self._parts.clear()
        self._requests.add(part.stream)
        yield SynchronizeRequest(part.stream, containers)


def _with_pods(parts: Iterable[SynchronizePart]) -> Iterator[Container]:
    pods: dict[str, PodSandbox] = {pod.id: pod for part in parts for pod in part.pods}
    for part in parts:
        for container in part.containers:
            yield replace(container, pod=pods.get(container.pod.id, container.pod))
