"""One NRI connection as a state machine without I/O: bytes in, events out; decisions in, bytes out.

The order of things (containerd/nri, pkg/adaptation): the plug-in calls RegisterPlugin; the runtime calls Configure,
perhaps before it has answered; then Synchronize, perhaps much later and perhaps in parts; then it calls for every event
that the plug-in subscribed to. Every call is answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from google.protobuf.message import Message
from msgspec.structs import replace

from dranode.driver.core.api.pods import PodSandbox
from dranode.driver.core.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.nri import ttrpc
from dranode.driver.nri.calls import RUNTIME_SERVICE, CallError, SynchronizePart, understand
from dranode.driver.nri.container import adjustment_to, updates_to
from dranode.driver.nri.events import (
    Configured,
    CreateRequest,
    NRIEvent,
    NRIRequest,
    PluginAccepted,
    RegistrationRefused,
    StartRequest,
    StopRequest,
    SynchronizeRequest,
    UpdateRequest,
    UpdatesAnswered,
)
from dranode.driver.nri.mux import PLUGIN_CONNECTION, RUNTIME_CONNECTION, Demultiplexer, ProtocolError
from dranode.proto import nri_v1alpha1_pb2 as nri

# All of these exist since NRI 0.2: an older runtime closes the connection on a bit that it does not know.
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
"""The events that are subscribed to, as a bit mask; 0 would be all that there are."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+", re.ASCII)
_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)


class Session:
    """The plug-in's end of one connection.

    The owner of the socket gives what arrives to `receive_data`, answers the requests among the events, and sends what
    `data_to_send` returns. After a `ProtocolError` the session takes nothing more.

    Attributes:
        registered: the runtime accepted the plug-in.
        synchronized: the runtime's state has been received and answered; from then on events are complete.
        awaiting_updates: an unsolicited update is on its way; there is never more than one.
    """

    def __init__(self, name: str, index: str, events: int = EVENTS) -> None:
        """Make a session.

        Raises:
            ValueError: no runtime would take the name or the index.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f'"{name}" is no NRI plug-in name: it has to consist of letters, digits and _.+-')
        if not _INDEX.fullmatch(index):
            raise ValueError(f'"{index}" is no NRI plug-in index: it has to be two digits')
        self._name, self._index, self._events = name, index, events
        self._demultiplexer = Demultiplexer()
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
        """Return what has to go to the socket now; empty if nothing has to."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive_data(self, data: bytes) -> list[NRIEvent]:
        """Return what the bytes say.

        Raises:
            ProtocolError: they are not NRI; raised once, after which everything is ignored.
        """
        if self._ended:
            return []
        events: list[NRIEvent] = []
        try:
            for chunk in self._demultiplexer.receive_data(data):
                if chunk.connection == PLUGIN_CONNECTION:
                    for message in self._calls.receive_data(chunk.data):
                        events.extend(self._called(message))
                else:
                    for message in self._answers.receive_data(chunk.data):
                        events.extend(self._answered(message))
        except ProtocolError:
            self._ended = True
            raise
        return events

    def receive_end(self) -> None:
        """Take note that the stream has ended.

        Raises:
            ProtocolError: it ended within a frame or a message.
        """
        if self._ended:
            return
        self._ended = True
        if self._demultiplexer.inside_frame or self._calls.inside_message or self._answers.inside_message:
            raise ProtocolError("the runtime closed the NRI connection in the middle of a message")

    # --- calls of ours ---

    def register(self) -> None:
        """Introduce the plug-in: the first thing to do on a new connection."""
        body = nri.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index)
        self._call("RegisterPlugin", body, self._register_answered)

    def update_containers(self, updates: Iterable[ContainerUpdate]) -> None:
        """Ask for updates out of turn. `UpdatesAnswered` follows, unless the runtime hangs.

        Raises:
            ValueError: an earlier one has not been answered.
        """
        if self.awaiting_updates:
            raise ValueError("an UpdateContainers call is still waiting for its answer")
        self.awaiting_updates = True
        body = nri.UpdateContainersRequest(update=updates_to(updates))
        self._call("UpdateContainers", body, self._updates_answered)

    def _call(self, method: str, body: Message, answered: Callable[[ttrpc.Response], NRIEvent]) -> None:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._waiting[stream] = answered
        call = ttrpc.Call(RUNTIME_SERVICE, method, body.SerializeToString())
        self._out.append(ttrpc.encode_message(RUNTIME_CONNECTION, ttrpc.request(stream, call)))

    def _answered(self, message: ttrpc.Message) -> Iterator[NRIEvent]:
        if message.stream not in self._waiting:
            return
        if message.type == ttrpc.MessageType.DATA:
            raise ProtocolError(f"the runtime streams data on stream {message.stream}, where one answer is due")
        if message.type == ttrpc.MessageType.RESPONSE:
            answered = self._waiting.pop(message.stream)
            yield answered(ttrpc.read_response(message))

    def _register_answered(self, answer: ttrpc.Response) -> NRIEvent:
        if answer.code:
            return RegistrationRefused(answer.message or f"status {answer.code}")
        self.registered = True
        return PluginAccepted()

    def _updates_answered(self, answer: ttrpc.Response) -> NRIEvent:
        self.awaiting_updates = False
        return UpdatesAnswered((answer.message or f"status {answer.code}") if answer.code else "")

    # --- answers of ours ---

    def adjust(self, request: CreateRequest, resources: Resources, updates: Iterable[ContainerUpdate] = ()) -> None:
        """Let the container be created, with these resources, and update others."""
        body = nri.CreateContainerResponse(adjust=adjustment_to(resources), update=updates_to(updates))
        self._reply(request, body)

    def update(self, request: UpdateRequest | StopRequest, updates: Iterable[ContainerUpdate] = ()) -> None:
        """Answer with updates."""
        # StopContainerResponse has the same field.
        self._reply(request, nri.UpdateContainerResponse(update=updates_to(updates)))

    def start(self, request: StartRequest) -> None:
        """Let the container start."""
        self._reply(request, nri.Empty())

    def synchronize(self, request: SynchronizeRequest, updates: Iterable[ContainerUpdate] = ()) -> None:
        """Answer the runtime's state with what has to change; from now on the plug-in is active."""
        self._reply(request, nri.SynchronizeResponse(update=updates_to(updates)))
        self.synchronized = True

    def refuse(self, request: NRIRequest, message: str) -> None:
        """Fail the operation that the request is about; kubelet shows the message on the pod."""
        self._requests.remove(request.stream)
        self._error(request.stream, ttrpc.StatusCode.UNKNOWN, message)

    def _reply(self, request: NRIRequest, body: Message) -> None:
        self._requests.remove(request.stream)
        self._answer(request.stream, body)

    def _answer(self, stream: int, body: Message) -> None:
        message = ttrpc.response(stream, ttrpc.Response(body.SerializeToString()))
        self._out.append(ttrpc.encode_message(PLUGIN_CONNECTION, message))

    def _error(self, stream: int, code: ttrpc.StatusCode, text: str) -> None:
        message = ttrpc.response(stream, ttrpc.Response(code=code, message=text))
        self._out.append(ttrpc.encode_message(PLUGIN_CONNECTION, message))

    # --- calls of the runtime ---

    def _called(self, message: ttrpc.Message) -> Iterator[NRIEvent]:
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
        if message.stream % 2 == 0 or message.stream <= self._last_stream:
            text = f"stream id {message.stream} has to be odd and greater than {self._last_stream}"
            raise CallError(ttrpc.StatusCode.INVALID_ARGUMENT, text)
        self._last_stream = message.stream
        call = ttrpc.read_request(message)
        if call is None:
            raise CallError(ttrpc.StatusCode.INVALID_ARGUMENT, "the request does not decode")
        return call

    def _synchronize(self, part: SynchronizePart) -> Iterator[NRIEvent]:
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
