"""A driver's peers, each in its own process: an API server with TLS, and a container runtime's NRI.

Both do next to nothing, so that the driver is what is measured.
"""

import contextlib
import json
import multiprocessing
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.apiserver import CERTIFICATES, TLS, ApiServer
from tests.fakes.nri import FakeRuntime, container, pod

_ROOT = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/"
_SPAWN = multiprocessing.get_context("spawn")


def uid(number: int) -> str:
    """The UID of claim `number`."""
    return f"7f0c1f0e-0000-4000-8000-{number:012d}"


def claim(number: int, device: str, cpus: int, cpuset: str) -> dict[str, Any]:
    """Claim `number` as an API server has it: some CPUs of a device, or exactly `cpuset` of it."""
    result = {
        "request": "r",
        "driver": "dra.cpu",
        "pool": "node",
        "device": device,
        "consumedCapacity": {"dra.cpu/cpu": str(cpus)},
        "shareID": f"00000000-0000-4000-8000-{number:012d}",
    }
    parameters = {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": cpuset}}
    config = {"source": "FromClaim", "opaque": {"driver": "dra.cpu", "parameters": parameters}}
    request = {"name": "r", "exactly": {"deviceClassName": "dra.cpu", "count": 1, "allocationMode": "ExactCount"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": f"claim-{number}", "uid": uid(number), "resourceVersion": "7"},
        "spec": {"devices": {"requests": [request]}},
        "status": {
            "allocation": {"devices": {"results": [result], "config": [config] if cpuset else []}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{number}", "uid": f"pod-{number}"}],
        },
    }


# --- the API server ---


@dataclass(frozen=True, slots=True)
class Api:
    """A running API server."""

    port: int
    pid: int
    _delay: Any

    def kubeconfig(self, path: Path) -> str:
        """Write a kubeconfig for it."""
        return ApiServer(**TLS, _port=self.port).kubeconfig(path, token="token")  # noqa: S106 - not a secret

    def account(self, folder: Path) -> None:
        """Write a pod's service account for it."""
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text("token")
        (folder / "ca.crt").write_bytes((CERTIFICATES / "ca.crt").read_bytes())

    def answer_after(self, seconds: float) -> None:
        """From now on, delay the answers for claims by `seconds`."""
        self._delay.value = seconds


@contextlib.contextmanager
def api_server(claims: list[dict[str, Any]]) -> Iterator[Api]:
    """A server with these claims; every other request gets an empty answer that asks the client to slow down."""
    answers = {_ROOT + each["metadata"]["name"]: _answer(each) for each in claims}
    answers |= {f"{path}/status": _answer({}) for path in tuple(answers)}
    versions = [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}]
    answers["/apis/resource.k8s.io"] = _answer({"kind": "APIGroup", "apiVersion": "v1", "versions": versions})
    answers[""] = _answer({}, "503 Service Unavailable", "Retry-After: 3600\r\n")
    delay = _SPAWN.Value("d", 0.0, lock=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = _SPAWN.Process(target=_serve, args=(answers, listener, delay), daemon=True)
        process.start()
        assert process.pid is not None
        try:
            yield Api(port, process.pid, delay)
        finally:
            process.kill()
            process.join()


def _answer(document: object, status: str = "200 OK", headers: str = "") -> bytes:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _serve(answers: dict[str, bytes], listener: socket.socket, delay: Any) -> None:
    sys.setswitchinterval(0.0005)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.crt", CERTIFICATES / "server.key")

    def serve(plain: socket.socket) -> None:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
            while request := connection.recv(65536):
                due = time.perf_counter() + delay.value
                head, _, body = request.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                while length > len(body):
                    body += connection.recv(65536)
                path = request.split(b" ", 2)[1].partition(b"?")[0].decode()
                if (left := due - time.perf_counter()) > 0:
                    time.sleep(left)
                connection.sendall(answers.get(path, answers[""]))

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


# --- the container runtime ---


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime to which a driver connects as an NRI plug-in."""

    _pipe: Any

    def until_synchronized(self) -> None:
        """Wait until the driver has connected and was synchronized with all containers.

        Raises:
            RuntimeError: it does not connect.
        """
        if not self._pipe.poll(60):
            raise RuntimeError("the driver does not connect to the runtime")
        self._pipe.recv()

    def create(self, number: int, cpus: str) -> float:
        """Create a container of claim `number` and remove it again; return the milliseconds of CreateContainer."""
        self._pipe.send((number, cpus))
        took, problem = self._pipe.recv()
        if problem:
            raise RuntimeError(problem)
        return float(took)


@contextlib.contextmanager
def runtime(path: Path, containers: int, claimed: dict[int, str]) -> Iterator[Runtime]:
    """A runtime with shared containers, and one container for each claim in `claimed`, with its CPUs."""
    # The socket of a killed runtime.
    path.unlink(missing_ok=True)
    here, there = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_run, args=(str(path), containers, claimed, there), daemon=True)
    process.start()
    while not path.is_socket():
        time.sleep(0.01)
    try:
        yield Runtime(here)
    finally:
        process.kill()
        process.join()


def _claimed(number: int, cpus: str) -> nri.Container:
    env = (*_ENV, f"DRA_CPUSET_{uid(number)}={cpus}")
    device = f"dra.k8s.io/cpu=claim-{uid(number)}"
    return container(f"c-{number}", f"pod-{number}", env, cpus, state=nri.CONTAINER_RUNNING, cdi=[device])


# What kubelet sets for an ordinary container: a few dozen service variables.
_ENV = tuple(f"SERVICE_{n}_PORT_443_TCP_ADDR=10.0.{n}.1" for n in range(40))


def _run(path: str, count: int, claimed: dict[int, str], pipe: Any) -> None:
    listed = [container(f"s-{n}", f"plain-{n}", _ENV, state=nri.CONTAINER_RUNNING) for n in range(count)]
    listed += [_claimed(number, cpus) for number, cpus in claimed.items()]
    pods = [pod(each.pod_sandbox_id.removeprefix("sandbox-")) for each in listed]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        # A driver reconnects while masks stay wrong, as those of `claimed` do until their claims are prepared.
        while True:
            with contextlib.suppress(OSError), listener.accept()[0] as sock:
                _serve_nri(sock, pods, listed, pipe)


def _serve_nri(sock: socket.socket, pods: list[nri.PodSandbox], listed: list[nri.Container], pipe: Any) -> None:
    peer = FakeRuntime(sock, patience=60)
    peer.handshake(pods, listed)
    pipe.send("synchronized")
    while True:
        readable, _, _ = select.select((sock, pipe), (), ())
        if sock in readable:
            peer.pump()
        if pipe in readable:
            pipe.send(_created(peer, *pipe.recv()))
        peer.wire.received.clear()


def _created(peer: FakeRuntime, number: int, cpus: str) -> tuple[float, str]:
    made, its_pod = _claimed(number, cpus), pod(f"pod-{number}")
    made.state = nri.CONTAINER_CREATED
    try:
        began = time.perf_counter()
        peer.create(made, its_pod)
        took = (time.perf_counter() - began) * 1000
        peer.stop(made, its_pod)
        body = nri.StateChangeEvent(event=nri.REMOVE_CONTAINER, pod=its_pod, container=made)
        peer.call("StateChange", body)
        peer.call("StateChange", nri.StateChangeEvent(event=nri.REMOVE_POD_SANDBOX, pod=its_pod))
    except Exception as error:  # noqa: BLE001 - reported on the other side
        return 0.0, f"{type(error).__name__}: {error}"
    return took, ""
