"""kubelet's gRPC library and messages, in Go, against the driver's server."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from dranode.driver.claims.plugin import DeviceHealth, Health
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.proto import dra_v1_pb2 as api
from dranode.proto.dra_v1_pb2_grpc import add_DRAPluginServicer_to_server
from tests.fakes.waiting import PATIENCE
from tests.interop.cache import CACHE

pytestmark = pytest.mark.interop
SOURCE = Path(__file__).parent / "grpc_go"


class Driver:
    """A driver whose answer depends on the claim's name."""

    def __init__(self, folder: Path) -> None:
        (folder / "plugins_registry").mkdir()
        sockets = socket_paths(folder, "dra.example")
        self.listener = Listener("dra.example", "node", sockets, folder / "plugins" / "dra.example", pytest.fail)
        self.listener.health.report([DeviceHealth("d", Health.HEALTHY)])
        handlers = SimpleNamespace(NodePrepareResources=self.prepare, NodeUnprepareResources=self.prepare)
        self.listener.calls.add_to = lambda server: add_DRAPluginServicer_to_server(  # type: ignore[method-assign]
            handlers, server
        )
        self.listener.start()
        self.stopping = threading.Thread(target=self.listener.close)

    def prepare(self, request: Any, context: grpc.ServicerContext) -> Any:
        (claim,) = request.claims
        if claim.name == "refused":
            context.abort(grpc.StatusCode.UNAVAILABLE, '100 % für 水\n"')
        if claim.name == "slow":
            time.sleep(0.2)
        if claim.name == "unhealthy":
            self.listener.health.report([DeviceHealth("d", Health.UNHEALTHY)])
        if claim.name == "stop":
            self.stopping.start()
            time.sleep(0.2)
        device = api.Device(pool_name="node", device_name=claim.name)
        return api.NodePrepareResourcesResponse(claims={claim.uid: api.NodePrepareResourceResponse(devices=[device])})


@pytest.fixture(scope="module")
def program() -> Path:
    if not os.environ.get("INTEROP"):
        pytest.skip("INTEROP names no runtime; see `make interop`")
    if shutil.which("go") is None:
        pytest.skip("go is not installed (a Go toolchain)")
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "grpc_go"
    built = subprocess.run(["go", "build", "-o", program, "."], cwd=SOURCE, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"the client cannot be built: {built.stderr.strip().splitlines()[-1]}")
    return program


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        yield Path(name)


def test_a_client_with_grpc_for_go_gets_the_answers_that_kubelet_needs(program: Path, folder: Path) -> None:
    driver = Driver(folder)
    try:
        done = subprocess.run(
            [program, driver.listener.sockets.dra], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "a call after the end" in done.stdout
    finally:
        if driver.stopping.ident is None:
            driver.stopping.start()
        driver.stopping.join(PATIENCE)
