"""CreateContainer over NRI, from the runtime's first byte to the last byte of the answer."""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.uses import PodSandbox
from dranode.driver.nri.client import NRIClient
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinSnapshot
from dranode.proto import nri_v1alpha1_pb2 as nri
from dranode.sim.machines.forms import open_machine
from tests.bench.table import Row
from tests.fakes.nri import FakeRuntime, container, pod

_CPUS = 256
_CLAIMS = 100
_CONTAINERS = 500
_CALLS = 2000
_WARM_UP = 100
_MAX_MS = 1.0

# What kubelet gives an ordinary container: a few dozen service variables.
_ENV = tuple(f"SERVICE_{n}_PORT_443_TCP_ADDR=10.0.{n}.1" for n in range(40))


def _claim(number: int) -> PinnedClaim:
    cpus = CPUSet((2 * number, 2 * number + 1))
    return PinnedClaim(
        ClaimRef("default", f"claim-{number}", f"uid-{number}"), cpus, cpus, frozenset((f"pod-{number}",))
    )


_HELD = PinSnapshot(
    {f"uid-{number}": _claim(number) for number in range(_CLAIMS)},
    online=CPUSet(range(_CPUS)),
    variable="DRA_CPUSET_",
    cdi_kind="dra.k8s.io/cpu",
)
_FEWER = replace(_HELD, claims={uid: claim for uid, claim in _HELD.claims.items() if uid != "uid-99"})


class _Node:
    """The node service of the bench."""

    def __init__(self) -> None:
        self.now = _HELD

    def snapshot(self) -> PinSnapshot:
        return self.now

    def reread(self) -> PinSnapshot:
        return self.now

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        return {each.uid: KubeletPodClaims({}) for each in pods}


class _Empty:
    """A handler that decides nothing: what remains is the protocol."""

    def configured(self, runtime: RuntimePeer) -> None: ...

    def disconnected(self) -> None: ...

    def synchronize(self, _listed: tuple[Container, ...]) -> tuple[ContainerUpdate, ...]:
        return ()

    def create(self, _container: Container) -> tuple[Resources, tuple[ContainerUpdate, ...]]:
        return Resources(CPUSet((0, 1))), ()

    def update(self, _container: Container, _wanted: Resources, _quota: int) -> tuple[ContainerUpdate, ...]:
        return ()

    def stop(self, _container: Container) -> tuple[ContainerUpdate, ...]:
        return ()

    def started(self, container: Container) -> None: ...

    def removed(self, container: Container) -> None: ...

    def pod_gone(self, pod: PodSandbox) -> None: ...

    def unsolicited(self) -> tuple[ContainerUpdate, ...]:
        return ()

    def updates_answered(self, error: str) -> None: ...

    def reconnection_due(self) -> bool:
        return False


@contextlib.contextmanager
def _connected(handler: Any) -> Iterator[FakeRuntime]:
    """A runtime with 500 containers, synchronized."""
    pods = [pod(f"pod-{number}") for number in range(_CONTAINERS)]
    listed = [container(f"c-{n}", f"pod-{n}", _ENV, state=nri.CONTAINER_RUNNING) for n in range(_CLAIMS, _CONTAINERS)]
    listed += [
        container(f"c-{n}", f"pod-{n}", (*_ENV, f"DRA_CPUSET_uid-{n}={2 * n}-{2 * n + 1}"), state=nri.CONTAINER_RUNNING)
        for n in range(_CLAIMS - 1)
    ]
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "nri.sock"
        listener.bind(str(path))
        listener.listen()
        client = NRIClient(str(path), handler, name="dra.cpu", fatal=print)
        client.start()
        with listener.accept()[0] as sock:
            runtime = FakeRuntime(sock)
            runtime.handshake(pods, listed)
            yield runtime
            client.stop()


def _exchange(runtime: FakeRuntime, method: str, body: nri.CreateContainerRequest) -> float:
    """Seconds for one call, without what the runtime itself spends on making and reading the messages."""
    stream, data = runtime.wire.call(method, body)
    pieces: list[bytes] = []
    began = time.perf_counter()
    runtime.sock.sendall(data)
    while not _whole(b"".join(pieces)):
        pieces.append(runtime.sock.recv(1 << 18))
    took = time.perf_counter() - began
    runtime.wire.receive_data(b"".join(pieces))
    if runtime.wire.answers.pop(stream).code:
        raise RuntimeError(f"{method} was refused")
    return took


def _whole(data: bytes) -> bool:
    """Whether an answer is complete: a frame with the header, and one with as much data as that says."""
    return len(data) >= 18 and (data[8:12] == b"\0\0\0\0" or len(data) >= 26 + int.from_bytes(data[8:12], "big"))


def _calls(handler: Any, node: _Node | None = None) -> list[float]:
    """Seconds of each CreateContainer, of a container with a claim and one without in turn; sorted.

    With a node the shared pool changes before each, so that every other container is updated with the answer.
    """
    claimed = container("new", "pod-99", (*_ENV, "DRA_CPUSET_uid-99=198-199"))
    plain = container("new", "pod-400", _ENV, name="second")
    took: list[float] = []
    with _connected(handler) as runtime:
        calls = _CALLS if node is None else _CALLS // 10
        for number in range(calls + _WARM_UP):
            made, of = ((claimed, pod("pod-99")), (plain, pod("pod-400")))[number % 2 if node is None else 1]
            if node is not None:
                node.now = _FEWER if number % 2 else _HELD
            body = nri.CreateContainerRequest(pod=of, container=made)
            took.append(_exchange(runtime, "CreateContainer", body))
            _exchange(runtime, "StopContainer", body)
    return sorted(took[_WARM_UP:])


def bench() -> Iterator[Row]:
    """The 99th percentile and the median with 500 containers known and 100 claims held."""
    logging.getLogger("dranode").setLevel(logging.ERROR)
    node = _Node()
    floor = _calls(_Empty())
    ours = _calls(Enforcer(node, open_machine("host")))
    for name, share, target in (("p99", 0.99, f"< {_MAX_MS:.0f} ms"), ("median", 0.5, "")):
        at = int(share * len(ours))
        value, least = ours[at] * 1000, floor[at] * 1000
        ok = value < _MAX_MS if target else None
        yield Row(f"NRI CreateContainer, {name}", value, "ms", least, "empty handler", target, ok)
    changed = _calls(Enforcer(node, open_machine("host")), node)
    value = changed[len(changed) // 2] * 1000
    yield Row("NRI CreateContainer with 400 updates, median", value, "ms", None, "", "", None)
