"""`serve` connected to an API server: memory, start, writes, and a pod of many claims."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil

from dranode.api.documents import API_VERSION
from dranode.api.resource import Device, ResourceClaim
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Inventory
from dranode.driver.kube.cluster import KubeCluster
from dranode.driver.kube.server import Credentials
from dranode.driver.kubelet.sockets import socket_paths
from dranode.proto import dra_v1_pb2 as dra
from dranode.proto import pluginregistration_v1_pb2 as registration
from dranode.proto.dra_v1_pb2_grpc import DRAPluginStub
from dranode.proto.pluginregistration_v1_pb2_grpc import RegistrationStub
from tests.bench.compiled import compile_all, environment
from tests.bench.table import Row
from tests.fakes.apiserver import CERTIFICATES, ApiServer, api_server
from tests.fakes.drivers import allocated_claim, plain, reference

_STARTS = 7
_ROUNDS = 60
_CLAIMS = 8
_PREPARES = 10_000
_ANSWER_SECONDS = 0.002
_MIB = 1 << 20
_MAX_MIB = 68
_MAX_MS = 150
# `serve` as in a pod: its service account is found where the first argument says.
_IN_A_POD = """
import pathlib, sys
from dranode.driver.kube import source
source.Credentials.__init__.__defaults__ = ("", pathlib.Path(sys.argv.pop(1)))
from dranode.driver.cli import main
main()
"""


@contextlib.contextmanager
def _serving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`serve` with the CPU driver, connected by TLS and a service account, as in its DaemonSet."""
    (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("token")
    (account / "ca.crt").write_bytes((CERTIFICATES / "ca.crt").read_bytes())
    options = ["--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--http-address", "none", "--nri-socket", "none"]
    command = [sys.executable, "-c", _IN_A_POD, str(account), "serve", "--node-name", "node", *options]
    command += ["--machine", "sockets=1,numa=1,l3=1,cores=8,threads=2"]
    inside = environment(KUBERNETES_SERVICE_HOST="127.0.0.1", KUBERNETES_SERVICE_PORT=str(port))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stderr=log, env=inside)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def _until(holds: Callable[[], object], seconds: float = 20) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise RuntimeError("the benchmark's own surroundings do not come about")
        time.sleep(0.001)


def _start() -> tuple[float, float]:
    """Milliseconds from exec to GetInfo's answer, and MiB of the process once it has published and prepared."""
    with tempfile.TemporaryDirectory(prefix="dranode-bench-") as name, api_server(tls=True) as api:
        folder = Path(name)
        api.put("nodes", {"metadata": {"name": "node"}})
        consumed = {"dra.cpu/cpu": "2"}
        claims = [
            allocated_claim(f"c{number}", "dra.cpu", ["cpudevnuma000"], consumedCapacity=consumed)
            for number in range(4)
        ]
        for claim in claims:
            api.put("resourceclaims", plain(claim))
        sockets = socket_paths(folder / "kubelet", "dra.cpu")
        began = time.perf_counter()
        with _serving(folder, api.port) as process:
            _until(sockets.registration.is_socket)
            with grpc.insecure_channel(f"unix:{sockets.registration}") as channel:
                ask = RegistrationStub(channel).GetInfo
                ask(registration.InfoRequest(), timeout=10, wait_for_ready=True)
            took = (time.perf_counter() - began) * 1000
            _until(lambda: api.objects.all("resourceslices"))
            with grpc.insecure_channel(f"unix:{sockets.dra}") as channel:
                prepare = DRAPluginStub(channel).NodePrepareResources
                _prepare(prepare, [reference(claim) for claim in claims])
            _until(lambda: all(one["status"].get("devices") for one in api.objects.all("resourceclaims")))
            time.sleep(0.3)
            return took, psutil.Process(process.pid).memory_info().rss / _MIB


def _claim(ref: ClaimRef) -> Any:
    return dra.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def _prepare(prepare: Callable[..., Any], refs: list[ClaimRef]) -> None:
    request = dra.NodePrepareResourcesRequest(claims=[_claim(ref) for ref in refs])
    answer = prepare(request, timeout=30, wait_for_ready=True)
    errors = [one.error for one in answer.claims.values() if one.error or not one.devices]
    if errors:
        raise RuntimeError(errors[0])


def _peer() -> tuple[float, float]:
    """The same figures of a Python that only imports gRPC and the whole kubernetes package."""
    began = time.perf_counter()
    script = "import grpc, kubernetes.client\nprint(open('/proc/self/statm').read())"
    printed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment()
    ).stdout
    return (time.perf_counter() - began) * 1000, int(printed.split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB


def _steady_writes() -> int:
    """Writes of a driver that starts anew with 128 devices that are published already, and publishes them thrice."""
    devices = tuple(Device(name=f"device-{number:03d}") for number in range(128))
    inventory = Inventory(devices=devices)
    with tempfile.TemporaryDirectory() as name, api_server() as api:
        api.put("nodes", {"metadata": {"name": "node"}})
        source = Credentials(api.kubeconfig(Path(name) / "kubeconfig"))
        first = _publish(source, inventory)
        first.close()
        before = len(api.writes())
        second = _publish(source, inventory)
        for number in range(3):
            second.publish("bench.example.com", Inventory(devices=devices, warnings=(str(number),)))
            _until(lambda: second.status("bench.example.com").published)
        time.sleep(2.5)
        second.close()
        return len(api.writes()) - before


def _publish(source: Credentials, inventory: Inventory) -> KubeCluster:
    publisher = KubeCluster(source, "node", claim_status=False, fatal=print)
    publisher.publish("bench.example.com", inventory)
    _until(lambda: publisher.status("bench.example.com").published)
    return publisher


def _answer(document: object, status: str = "200 OK", headers: str = "") -> bytes:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _slow_server(answers: dict[str, bytes], listener: socket.socket, seconds: float) -> None:
    """Answers every request after so many seconds, with next to no work of its own."""

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            while request := connection.recv(65536):
                head, _, body = request.partition(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                # A body may come in a piece of its own.
                if int(length or 0) > len(body):
                    connection.recv(65536)
                due = time.perf_counter() + seconds
                answer = answers.get(request.split(b" ", 2)[1].decode(), answers[""])
                time.sleep(max(0.0, due - time.perf_counter()))
                connection.sendall(answer)

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


@contextlib.contextmanager
def _slow_api(folder: Path, claims: list[ResourceClaim], seconds: float) -> Iterator[None]:
    """A server of these claims in a process of its own, and a kubeconfig for it."""
    root = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/"
    answers = {root + claim.metadata.name: _answer({"apiVersion": API_VERSION, **plain(claim)}) for claim in claims}
    answers |= {f"{root}{claim.metadata.name}/status": _answer({}) for claim in claims}
    answers["/apis/resource.k8s.io"] = _answer({"versions": [{"version": "v1"}]})
    # Slices are of no interest here, and their publisher is to keep quiet.
    answers[""] = _answer({}, "503 Service Unavailable", "Retry-After: 3600\r\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = multiprocessing.get_context("spawn").Process(target=_slow_server, args=(answers, listener, seconds))
        process.start()
        ApiServer(_port=port).kubeconfig(folder / "kubeconfig")
        try:
            yield
        finally:
            process.kill()
            process.join()


@contextlib.contextmanager
def _node(count: int, seconds: float, *options: str) -> Iterator[tuple[psutil.Process, _Calls]]:
    """`serve` with claims that an API server answers for after `seconds`, each of one CPU."""
    consumed = {"dra.cpu/cpu": "1"}
    claims = [
        allocated_claim(f"c{number}", "dra.cpu", ["cpudevnuma000"], consumedCapacity=consumed)
        for number in range(count)
    ]
    with tempfile.TemporaryDirectory(prefix="dranode-bench-") as name:
        folder = Path(name)
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        where = ["--node-name", "node", "--kubeconfig", "kubeconfig", "--kubelet-root", "kubelet", "--cdi-dir", "cdi"]
        where += ["--http-address", "none", "--nri-socket", "none", "--machine", "sockets=1,cores=16,threads=2"]
        program = Path(sys.executable).with_name("dranode")
        with _slow_api(folder, claims, seconds), (folder / "log").open("wb") as log:
            process = subprocess.Popen([str(program), "serve", *where, *options], cwd=folder, stderr=log)
            socket_path = socket_paths(folder / "kubelet", "dra.cpu").dra
            _until(socket_path.is_socket)
            with grpc.insecure_channel(f"unix:{socket_path}") as channel:
                yield psutil.Process(process.pid), _Calls(channel, [reference(claim) for claim in claims])
            process.terminate()
            process.wait(20)


class _Calls:
    """kubelet's calls for the first claims there are."""

    def __init__(self, channel: grpc.Channel, refs: list[ClaimRef]) -> None:
        self._refs = refs
        self._prepare = DRAPluginStub(channel).NodePrepareResources
        self._unprepare = DRAPluginStub(channel).NodeUnprepareResources

    def prepare(self, count: int) -> float:
        """Milliseconds until the first `count` claims are prepared."""
        began = time.perf_counter()
        _prepare(self._prepare, self._refs[:count])
        return (time.perf_counter() - began) * 1000

    def unprepare(self) -> None:
        claims = [_claim(ref) for ref in self._refs]
        self._unprepare(dra.NodeUnprepareResourcesRequest(claims=claims), timeout=30)


def _pods() -> tuple[float, float]:
    """Milliseconds until a pod with one claim is prepared, and one with eight."""
    took: dict[int, list[float]] = {1: [], _CLAIMS: []}
    with _node(_CLAIMS, _ANSWER_SECONDS, "--claim-status", "off") as (_, calls):
        for _ in range(_ROUNDS):
            for count, times in took.items():
                times.append(calls.prepare(count))
                calls.unprepare()
    one, eight = (statistics.median(times[_ROUNDS // 10 :]) for times in took.values())
    return one, eight


def _growth() -> float:
    """MiB that a connected `serve` has more after the last thousand of its prepares than after the second."""
    with _node(1, 0.0) as (process, calls):
        rss = []
        for number in range(_PREPARES):
            calls.prepare(1)
            calls.unprepare()
            if number % 1000 == 999:
                rss.append(process.memory_info().rss / _MIB)
    return rss[-1] - rss[1]


def bench() -> Iterator[Row]:
    """`serve` as in its DaemonSet (TLS, a service account, the CPU driver), its publisher, and pods of many claims."""
    compile_all()
    starts, peers = zip(*((_start(), _peer()) for _ in range(_STARTS)), strict=True)
    took, rss = (statistics.median(column) for column in zip(*starts, strict=True))
    peer_ms, peer_mib = (statistics.median(column) for column in zip(*peers, strict=True))
    yield Row(
        "connected: from exec to GetInfo's answer",
        took,
        "ms",
        peer_ms,
        "python -c 'import grpc, kubernetes'",
        "150 ms",
        took <= _MAX_MS,
    )
    yield Row(
        "connected: serve at rest",
        rss,
        "MiB",
        peer_mib,
        "python -c 'import grpc, kubernetes'",
        "at most 68 MiB",
        rss <= _MAX_MIB,
    )
    growth = _growth()
    yield Row(
        "connected: growth from the second to the last thousand of 10,000 prepares",
        growth,
        "MiB",
        target="none (1 MiB is noise)",
        ok=growth <= 1,
    )
    writes = _steady_writes()
    yield Row("writes for 128 devices that are published already", writes, "", target="0", ok=writes == 0)
    one, eight = _pods()
    yield Row("pod of one claim, API server answers in 2 ms", one, "ms")
    yield Row("pod of 8 claims", eight, "ms", one, "pod of one claim", "less than 2 times", eight < 2 * one)
