"""`serve` as probes, Prometheus and people see it: ready only after every peer was heard from, one id for each call."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from dranode.driver.claims.answers import Prepared
from dranode.driver.local.store import Store
from dranode.driver.serve.http_server import MAX_CONNECTIONS
from dranode.sim.local.kubelet import StandInKubelet
from tests.fakes.drivers import allocated_claim, reference
from tests.fakes.nri import FakeRuntime
from tests.fakes.waiting import PATIENCE, eventually

PROGRAM = Path(sys.executable).with_name("dranode")
DRIVER = "dra.cpu"
CLAIM = allocated_claim(
    "a",
    DRIVER,
    ["cpudevnuma000"],
    uid="uid-a",
    consumedCapacity={"dra.cpu/cpu": "2"},
    shareID="00000000-0000-4000-8000-000000000000",
)
REF = reference(CLAIM)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        folder = Path(name)
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        Store(folder / "store").put(CLAIM)
        yield folder


def run(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    arguments = ["--machine", "sockets=1,numa=2,cores=4,threads=2", "--node-name", "node"]
    places = ["--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([PROGRAM, "serve", *arguments, *places, *options], cwd=folder, stderr=log)


@dataclass
class Serving:
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, condition: Callable[[], Any]) -> Any:
        def holds() -> Any:
            assert self.process.poll() is None, self.log
            return condition()

        return eventually(holds, lambda: self.log)

    def port(self, page: str = "/healthz") -> int:
        """The port of the page."""
        return int(self.until(lambda: re.search(rf"http=127\.0\.0\.1:(\d+) pages=\S*{page}", self.log))[1])

    def connect(self, page: str = "/healthz") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port(page)), timeout=PATIENCE)

    def get(self, path: str, page: str = "/healthz") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port(page), timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()


@pytest.fixture
def serving(folder: Path, request: pytest.FixtureRequest) -> Iterator[Serving]:
    options = getattr(request, "param", ("--nri-socket", "none"))
    process = run(folder, "--http-address", "127.0.0.1:0", *options)
    yield Serving(folder, process)
    process.kill()
    process.wait()


@pytest.mark.parametrize("serving", [("--nri-socket", "nri.sock", "--reserved-cpus", "0")], indirect=True)
def test_readyz_says_what_is_missing_until_kubelet_and_runtime_were_heard_from(serving: Serving, folder: Path) -> None:
    registration = folder / "kubelet" / "plugins_registry" / f"{DRIVER}-reg.sock"
    status, text = serving.get("/readyz")
    assert status == 503
    assert text.splitlines() == [
        f"{DRIVER}: kubelet has not asked for the driver at {registration}",
        f"{DRIVER}: the container runtime has not listed its containers yet over NRI at nri.sock",
    ]
    assert serving.get("/healthz") == (200, "ok\n")
    kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
    with contextlib.closing(kubelet), socket.socket(socket.AF_UNIX) as listener:
        kubelet.register([DRIVER], PATIENCE)
        assert serving.get("/readyz")[1].count("\n") == 1
        listener.bind(str(folder / "nri.sock"))
        listener.listen()
        listener.settimeout(PATIENCE)
        sock, _ = listener.accept()
        with sock:
            FakeRuntime(sock).handshake()
            serving.until(lambda: serving.get("/readyz") == (200, "ready\n"))
            assert f'dranode_nri_synchronized{{driver="{DRIVER}"}} 1.0' in serving.get("/metrics")[1]
        serving.until(lambda: serving.get("/readyz")[0] == 503)
        assert serving.get("/healthz")[0] == 200


@pytest.mark.parametrize("serving", [("--nri-socket", "none", "--log-format", "json")], indirect=True)
def test_json_lines_have_keys_for_claim_driver_and_call(serving: Serving, folder: Path) -> None:
    kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
    with contextlib.closing(kubelet):
        kubelet.register([DRIVER], PATIENCE)
        kubelet.prepare({REF: frozenset({DRIVER})})
    lines = [json.loads(line) for line in serving.log.splitlines()]
    (line,) = [line for line in lines if line["message"].startswith("prepare ")]
    assert (line["claim"], line["uid"], line["driver"]) == ("default/a", "uid-a", DRIVER)
    assert re.fullmatch("[0-9a-f]{8}", line["op"])


def test_a_terminated_driver_removes_its_sockets_and_leaves_its_slices(serving: Serving, folder: Path) -> None:
    kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
    with contextlib.closing(kubelet):
        kubelet.register([DRIVER], PATIENCE)
    serving.until(lambda: serving.get("/readyz") == (200, "ready\n"))
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(PATIENCE) == 0
    assert list((folder / "kubelet" / "plugins_registry").iterdir()) == []
    assert len(list((folder / "store" / "resourceslices").iterdir())) == 1


APART = ("--nri-socket", "none", "--metrics-address", "127.0.0.1:0")


@pytest.mark.parametrize("serving", [APART], indirect=True)
def test_metrics_have_their_own_port_if_one_is_given(serving: Serving) -> None:
    assert 'dranode_can_prepare{driver="dra.cpu"} 1.0' in serving.get("/metrics", "/metrics")[1]
    assert serving.get("/healthz") == (200, "ok\n")
    assert serving.get("/metrics")[0] == 404
    assert [serving.get(path, "/metrics")[0] for path in ("/healthz", "/readyz")] == [404, 404]


@pytest.mark.parametrize("serving", [APART], indirect=True)
def test_exhausted_connections_for_metrics_do_not_affect_the_probes(serving: Serving) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(serving.connect("/metrics"))
        probe = stack.enter_context(serving.connect())
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(serving.connect("/metrics"))
        probe.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert probe.recv(100).startswith(b"HTTP/1.0 200")


def test_metrics_can_be_disabled(folder: Path) -> None:
    process = run(folder, "--nri-socket", "none", "--http-address", "127.0.0.1:0", "--metrics-address", "none")
    serving = Serving(folder, process)
    try:
        assert serving.get("/healthz") == (200, "ok\n")
        assert serving.get("/metrics")[0] == 404
        listening = [each for each in psutil.Process(process.pid).net_connections() if each.status == "LISTEN"]
        assert len(listening) == 1
    finally:
        process.kill()
        process.wait()


def test_without_http_no_port_is_opened_and_claims_are_still_prepared(folder: Path) -> None:
    process = run(folder, "--nri-socket", "none", "--http-address", "none")
    kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
    try:
        with contextlib.closing(kubelet):
            kubelet.register([DRIVER], PATIENCE)
            assert isinstance(kubelet.prepare({REF: frozenset({DRIVER})})[REF], Prepared)
        assert not [each for each in psutil.Process(process.pid).net_connections() if each.status == "LISTEN"]
    finally:
        process.kill()
        process.wait()
