"""A container runtime: containers with their masks, the connected NRI plug-ins, and the changes that these make.

It runs in its caller's thread: each method first reads what the plug-ins have sent meanwhile.
"""

import contextlib
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dranode.api.cpuset import CPUSet
from dranode.driver.nri import ttrpc
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.nri import CallFailedError, FakeRuntime, Wire, updates_of


class Violation(Exception):  # noqa: N818 - a broken invariant
    """An invariant is broken."""


@dataclass
class RunningContainer:
    """A container; without CPUs it runs on all of them. `claims` are the UIDs of its claims."""

    message: nri.Container
    pod: nri.PodSandbox
    claims: frozenset[str] = frozenset()

    @property
    def cpus(self) -> CPUSet | None:
        """Its mask."""
        text = self.message.linux.resources.cpu.cpus
        return CPUSet.parse(text) if text else None

    def __str__(self) -> str:
        return f"container {self.message.id} (claims {sorted(self.claims)}, CPUs {self.cpus})"


class OrderedWire(Wire):
    """A wire that separates messages before the answer to the current call from those after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[bytes] = []
        self.after: list[bytes] = []

    def _serve(self, message: ttrpc.Message) -> bytes:
        data = super()._serve(message)
        method, payload = self.received[-1]
        if method == "UpdateContainers":
            self.received.pop()
            if not self.update_error:
                (self.after if self.answers else self.before).append(payload)
        return data


class ConnectedPlugin(FakeRuntime):
    """One plug-in's connection."""

    wire: OrderedWire

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.wire = OrderedWire()


def _has_hung_up(plugin: ConnectedPlugin) -> bool:
    poll = select.poll()
    if plugin.sock.fileno() < 0:
        return True
    poll.register(plugin.sock, select.POLLHUP)
    return bool(poll.poll(0))


@dataclass
class Runtime:
    """The runtime of one node.

    Attributes:
        path: the path of the NRI socket.
        changed: called before a plug-in changes a container's mask, with the container and the new mask.
        version: the version of NRI, which decides how events are sent.
    """

    path: Path
    changed: Callable[[RunningContainer, CPUSet], None]
    version: str = "v0.12.1"
    containers: dict[str, RunningContainer] = field(default_factory=dict)
    plugins: list[ConnectedPlugin] = field(default_factory=list)
    _listener: socket.socket | None = None

    def open(self) -> None:
        """Start it; earlier containers still run."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()

    def close(self) -> None:
        """Stop it with all connections; containers still run."""
        for plugin in self.plugins:
            plugin.sock.close()
        self.plugins.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def refuse(self, reason: str) -> None:
        """Fail every update that plug-ins send with this error; an empty string ends that."""
        for plugin in self.plugins:
            plugin.wire.update_error = reason

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._listener is not None

    def attend(self, seconds: float = 0.0) -> None:
        """Accept plug-ins and read what they have sent; wait up to `seconds` for the first message."""
        for plugin in self.plugins:
            self._take_in(plugin.wire)
        if self._listener is None:
            time.sleep(max(seconds, 0.0))
        while self._listener is not None:
            plugins = {plugin.sock.fileno(): plugin for plugin in self.plugins}
            # select(2) cannot handle descriptors above 1,023.
            poll = select.poll()
            for descriptor in (self._listener.fileno(), *plugins):
                poll.register(descriptor, select.POLLIN)
            ready = poll.poll(max(seconds, 0.0) * 1000)
            if not ready:
                return
            seconds = 0.0
            for descriptor, _ in ready:
                if (asked := plugins.get(descriptor)) is None:
                    self._admit()
                else:
                    self._with(asked, ConnectedPlugin.pump)

    def create(self, container: RunningContainer) -> str:
        """Create and start a container; return the reason for a refusal, or an empty string.

        Raises:
            Violation: two plug-ins set its CPUs, which the real runtime would refuse.
        """
        body = nri.CreateContainerRequest(pod=container.pod, container=container.message)
        adjusted: list[str] = []
        answered: list[ConnectedPlugin] = []
        for plugin in tuple(self.plugins):
            try:
                payload = self._call(plugin, "CreateContainer", body)
            except CallFailedError as error:
                return str(error)
            if payload is not None:
                answer = nri.CreateContainerResponse.FromString(payload)
                if cpus := answer.adjust.linux.resources.cpu.cpus:
                    adjusted.append(cpus)
                    answered.append(plugin)
                self._apply(answer)
        if len(adjusted) > 1:
            if any(map(_has_hung_up, answered[:-1])):
                # The second one cannot know whether the first one's answer arrived; kubelet creates the container
                # again.
                return "two plug-ins set its CPUs, of which one is gone"
            raise Violation(f"two plug-ins set the CPUs of {container}: {adjusted}")
        if adjusted:
            container.message.linux.resources.cpu.cpus = adjusted[0]
        container.message.state = nri.CONTAINER_RUNNING
        self.containers[container.message.id] = container
        self._event("PostStartContainer", nri.POST_START_CONTAINER, container)
        return ""

    def update(self, container: RunningContainer, cpus: str) -> None:
        """Update a container as kubelet does: it gets these CPUs unless a plug-in overrides them."""
        body = nri.UpdateContainerRequest(pod=container.pod, container=container.message)
        body.linux_resources.cpu.cpus = cpus
        own: list[str] = []
        for plugin in tuple(self.plugins):
            with contextlib.suppress(CallFailedError):
                if (payload := self._call(plugin, "UpdateContainer", body)) is not None:
                    answer = nri.UpdateContainerResponse.FromString(payload)
                    own += filter(None, [updates_of(answer).get(container.message.id, "")])
                    self._apply(answer)
        if not own:
            container.message.linux.resources.cpu.cpus = cpus

    def stop(self, container: RunningContainer) -> None:
        """Stop and remove a container."""
        del self.containers[container.message.id]
        body = nri.StopContainerRequest(pod=container.pod, container=container.message)
        for plugin in tuple(self.plugins):
            with contextlib.suppress(CallFailedError):
                if (payload := self._call(plugin, "StopContainer", body)) is not None:
                    self._apply(nri.StopContainerResponse.FromString(payload))
        self._event("RemoveContainer", nri.REMOVE_CONTAINER, container)

    def _event(self, method: str, number: Any, container: RunningContainer) -> None:
        for plugin in tuple(self.plugins):
            if self.version:
                self._call(plugin, method, nri.ContainerEvent(pod=container.pod, container=container.message))
            else:
                event = nri.StateChangeEvent(event=number, pod=container.pod, container=container.message)
                self._call(plugin, "StateChange", event)

    def _admit(self) -> None:
        if self._listener is None:
            return
        sock, _ = self._listener.accept()
        plugin = ConnectedPlugin(sock)
        pods = {each.pod.id: each.pod for each in self.containers.values()}
        containers = [each.message for each in self.containers.values()]
        self.plugins.append(plugin)
        answer = self._with(plugin, lambda it: it.handshake(pods.values(), containers, self.version))
        if answer is not None:
            self._apply(answer)

    def _call(self, plugin: ConnectedPlugin, method: str, body: Any) -> bytes | None:
        answer: bytes | None = self._with(plugin, lambda it: it.call(method, body))
        return answer

    def _with(self, plugin: ConnectedPlugin, act: Callable[[ConnectedPlugin], Any]) -> Any:
        """Call `act` with a plug-in; return None and forget the plug-in if its connection ends."""
        try:
            return act(plugin)
        except OSError:
            plugin.sock.close()
            self.plugins = [each for each in self.plugins if each is not plugin]
            return None
        finally:
            self._take_in(plugin.wire)

    def _take_in(self, wire: OrderedWire) -> None:
        updates, wire.before = wire.before, wire.after
        wire.after = []
        for payload in updates:
            self._apply(nri.UpdateContainersRequest.FromString(payload))

    def _apply(self, answer: Any) -> None:
        for identity, cpus in updates_of(answer).items():
            container = self.containers.get(identity)
            if container is not None and cpus:
                self.changed(container, CPUSet.parse(cpus))
                container.message.linux.resources.cpu.cpus = cpus
