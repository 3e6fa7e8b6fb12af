"""Two pinning drivers in one process: one NRI plug-in, which starts when both have read their ledgers."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Prepared
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.plugins import load_plugins
from dranode.driver.serve.nri_plugin import ContainerAccess
from dranode.driver.serve.pinning import PinningTogether
from dranode.driver.serve.service import DriverService
from dranode.sim.local.kubelet import StandInKubelet
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import ApiClaims, KubeletPods
from tests.fakes.nri import FakeRuntime, container, pod
from tests.fakes.waiting import PATIENCE, eventually

NAMES = {"cpu": "dra.cpu", "memory": "dra.memory"}
CLAIM = decode(
    ResourceClaim,
    {
        "metadata": {"namespace": "default", "name": "a", "uid": "uid-a"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": request,
                            "driver": f"dra.{driver}",
                            "pool": "node",
                            "device": device,
                            "shareID": f"share-{request}",
                            "consumedCapacity": consumed,
                        }
                        for request, driver, device, consumed in (
                            ("cpus", "cpu", "cpudevnuma001", {"dra.cpu/cpu": "2"}),
                            ("mem", "memory", "memory-numa1", {"size": "1Gi"}),
                        )
                    ]
                }
            },
            "reservedFor": [{"resource": "pods", "name": "pod-a", "uid": "pod-uid-a"}],
        },
    },
)


class Process:
    """A process with both drivers on a machine of two NUMA nodes with four CPUs each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "plugins_registry").mkdir()
        self.kubelet = StandInKubelet(folder / "plugins_registry")
        self.pods = KubeletPods(folder / "pod-resources" / "kubelet.sock")
        self.services: dict[str, DriverService] = {}
        self._socket: socket.socket | None = None
        self._together = PinningTogether(len(NAMES))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(PATIENCE)
        self._listener.bind(str(folder / "nri.sock"))
        self._listener.listen()

    def start(self, name: str) -> None:
        machine = open_machine("sockets=2,cores=4")
        (plugin,) = load_plugins([name], machine, {})
        driver = NAMES[name]
        paths = socket_paths(self.folder, driver, "")
        service = self.services[name] = DriverService(
            plugin,
            ApiClaims(CLAIM),
            Listener(driver, "node", paths, self.folder / "plugins" / driver, pytest.fail, rolling=False),
            cdi=self.folder / "cdi",
            pod_resources=PodResources(self.pods.socket),
            containers=ContainerAccess(str(self.folder / "nri.sock"), machine),
            together=self._together,
        )
        service.start()
        self.kubelet.register([driver], PATIENCE)

    def runtime(self) -> FakeRuntime:
        self._socket, _ = self._listener.accept()
        return FakeRuntime(self._socket)

    def prepare(self) -> Any:
        return self.kubelet.prepare({reference(CLAIM): frozenset(NAMES.values())})[reference(CLAIM)]

    def close(self) -> None:
        for service in reversed(self.services.values()):
            service.stop()
        self.kubelet.close()
        self.pods.close()
        self._listener.close()
        if self._socket is not None:
            self._socket.close()


@pytest.fixture
def process() -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as folder:
        process = Process(Path(folder))
        try:
            yield process
        finally:
            process.close()


def test_one_plug_in_applies_the_grants_of_both_drivers_to_a_container(process: Process) -> None:
    process.start("cpu")
    pinning = process.services["cpu"].pinning
    assert pinning is not None
    assert not pinning.synchronized
    assert pinning.claims_in_use() is None
    process.start("memory")
    runtime = process.runtime()
    runtime.handshake([pod("pod-uid-a")], [], "v0.12.1")
    eventually(lambda: all(each.pinning and each.pinning.synchronized for each in process.services.values()))
    answer = process.prepare()
    assert isinstance(answer, Prepared)
    devices = [name for device in answer.devices for name in device.cdi]
    env = ("DRA_CPUSET_uid-a=4-5", "DRANODE_MEMS_uid-a=1", "DRANODE_MEMORY_uid-a_0=1")
    mine = pod("pod-uid-a")
    cpu = runtime.create(container("c1", "pod-uid-a", env, cdi=devices), mine).adjust.linux.resources.cpu
    assert (cpu.cpus, cpu.mems) == ("4-5", "1")
    other = runtime.create(container("c2", "p2"), pod("p2")).adjust.linux.resources.cpu
    assert (other.cpus, other.mems) == ("0-3,6-7", "")
    for service in process.services.values():
        assert service.pinning is not None
        assert service.pinning.claims_in_use() == frozenset({"uid-a"})
        assert service.pinning.in_use(reference(CLAIM)) is True
    assert [service.pinning.is_first for service in process.services.values() if service.pinning] == [True, False]
