"""A container runtime's side of NRI, complete enough to drive a plug-in; it splits frames as the Go library does."""

import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from dranode.driver.nri import ttrpc
from dranode.driver.nri.ttrpc import PLUGIN_CONNECTION, RUNTIME_CONNECTION, Demultiplexer, frame
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.waiting import PATIENCE

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
_HEADER = struct.Struct(">IIBB")


class CallFailedError(Exception):
    """The plug-in answered with an error status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def pod(uid: str, *, name: str = "", namespace: str = "default") -> nri.PodSandbox:
    """A pod sandbox `sandbox-<uid>`."""
    return nri.PodSandbox(id=f"sandbox-{uid}", uid=uid, name=name or uid, namespace=namespace)


def container(
    identity: str,
    pod_uid: str,
    env: Sequence[str] = (),
    cpus: str = "",
    name: str = "",
    *,
    state: nri.ContainerState = nri.CONTAINER_UNKNOWN,
    cdi: Sequence[str] = (),
    quota: int = 0,
    cgroup: str = "",
) -> nri.Container:
    """A container of the pod `pod_uid`."""
    made = nri.Container(
        id=identity,
        pod_sandbox_id=f"sandbox-{pod_uid}",
        name=name or identity,
        env=env,
        state=state,
        CDI_devices=[nri.CDIDevice(name=device) for device in cdi],
    )
    made.linux.resources.cpu.cpus = cpus
    made.linux.cgroups_path = cgroup
    if quota:
        made.linux.resources.cpu.quota.value = quota
    return made


def updates_of(response: Any) -> dict[str, str]:
    """The cpusets that a response updates, by container."""
    return {update.container_id: update.linux.resources.cpu.cpus for update in response.update}


def go_frames(connection: int, message: ttrpc.Message) -> bytes:
    """A message as Go sends it: its first 4,096 bytes as one frame, the rest as another."""
    header = _HEADER.pack(len(message.data), message.stream, message.type, message.flags)
    whole = header + message.data
    return b"".join(frame(connection, piece) for piece in (whole[:4096], whole[4096:]) if piece)


class Wire:
    """The runtime's end without a socket: it calls the plug-in, reads its answers and serves its calls.

    Attributes:
        received: the plug-in's calls, in order, as (method, payload).
        answers: the plug-in's answers by stream.
        update_error: if set, UpdateContainers fails with this text.
        register_error: if set, RegisterPlugin fails with this text.
        silent: whether calls of the plug-in stay unanswered.
    """

    def __init__(self) -> None:
        self._demultiplexer = Demultiplexer()
        self._calls, self._answers = ttrpc.Decoder(), ttrpc.Decoder()
        self._next_stream = 1
        self.received: list[tuple[str, bytes]] = []
        self.answers: dict[int, ttrpc.Response] = {}
        self.update_error = ""
        self.register_error = ""
        self.silent = False

    def call(self, method: str, body: Any) -> tuple[int, bytes]:
        """Return the stream and the bytes of a call to the plug-in."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        call = ttrpc.Call(PLUGIN, method, body.SerializeToString())
        return stream, go_frames(PLUGIN_CONNECTION, ttrpc.request(stream, call))

    def receive_data(self, data: bytes) -> bytes:
        """Receive bytes from the plug-in; return the bytes to send back."""
        out = b""
        for chunk in self._demultiplexer.receive_data(data):
            if chunk.connection == PLUGIN_CONNECTION:
                for message in self._answers.receive_data(chunk.data):
                    self.answers[message.stream] = ttrpc.read_response(message)
            else:
                for message in self._calls.receive_data(chunk.data):
                    out += self._serve(message)
        return out

    def _serve(self, message: ttrpc.Message) -> bytes:
        call = ttrpc.read_request(message)
        assert call is not None
        self.received.append((call.method, call.payload))
        if self.silent:
            return b""
        error = {"RegisterPlugin": self.register_error, "UpdateContainers": self.update_error}[call.method]
        answer = ttrpc.Response(code=ttrpc.StatusCode.UNKNOWN, message=error) if error else ttrpc.Response()
        return go_frames(RUNTIME_CONNECTION, ttrpc.response(message.stream, answer))


class FakeRuntime:
    """The runtime's end of one connected socket; every method blocks for at most `patience` seconds."""

    def __init__(self, sock: socket.socket, patience: float = PATIENCE) -> None:
        self.wire = Wire()
        self.sock = sock
        sock.settimeout(patience)

    def pump(self) -> None:
        """Read once, and answer the plug-in's calls.

        Raises:
            ConnectionError: the plug-in has closed the connection.
        """
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the plug-in closed the connection")
        out = self.wire.receive_data(data)
        if out:
            self.sock.sendall(out)

    def wait_for(self, method: str, times: int = 1) -> bytes:
        """The payload of the plug-in's `times`-th call of that method."""
        while True:
            payloads = [payload for name, payload in self.wire.received if name == method]
            if len(payloads) >= times:
                return payloads[times - 1]
            self.pump()

    def call(self, method: str, body: Any) -> bytes:
        """Call the plug-in and return the payload of its answer.

        Raises:
            CallFailedError: it answered with an error status.
        """
        stream, data = self.wire.call(method, body)
        self.sock.sendall(data)
        while stream not in self.wire.answers:
            self.pump()
        answer = self.wire.answers.pop(stream)
        if answer.code:
            raise CallFailedError(answer.code, answer.message)
        return answer.payload

    def handshake(
        self,
        pods: Iterable[nri.PodSandbox] = (),
        containers: Iterable[nri.Container] = (),
        nri_version: str = "",
        runtime: str = "containerd",
    ) -> nri.SynchronizeResponse:
        """Register, configure and synchronize the plug-in."""
        self.wait_for("RegisterPlugin")
        body = nri.ConfigureRequest(runtime_name=runtime, runtime_version="v2.3.4", nri_version=nri_version)
        self.call("Configure", body)
        return self.synchronize(pods, containers)

    def synchronize(
        self, pods: Iterable[nri.PodSandbox] = (), containers: Iterable[nri.Container] = (), *, more: bool = False
    ) -> nri.SynchronizeResponse:
        """Send one message of a Synchronize."""
        body = nri.SynchronizeRequest(pods=pods, containers=containers, more=more)
        return nri.SynchronizeResponse.FromString(self.call("Synchronize", body))

    def create(self, made: nri.Container, of: nri.PodSandbox) -> nri.CreateContainerResponse:
        """Send CreateContainer."""
        body = nri.CreateContainerRequest(pod=of, container=made)
        return nri.CreateContainerResponse.FromString(self.call("CreateContainer", body))

    def stop(self, made: nri.Container, of: nri.PodSandbox) -> nri.StopContainerResponse:
        """Send StopContainer."""
        body = nri.StopContainerRequest(pod=of, container=made)
        return nri.StopContainerResponse.FromString(self.call("StopContainer", body))

    def notify_all(self, made: nri.Container, of: nri.PodSandbox) -> None:
        """Send every event whose answer is only an acknowledgement."""
        for event in (nri.POST_START_CONTAINER, nri.REMOVE_CONTAINER, nri.STOP_POD_SANDBOX):
            self.call("StateChange", nri.StateChangeEvent(event=event, pod=of, container=made))
