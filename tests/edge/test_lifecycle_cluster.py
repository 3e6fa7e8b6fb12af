"""The condition and Event of a claim that loses a CPU and gets it back, through an API server."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.plugin import Stop
from dranode.driver.kube.cluster import KubeCluster
from dranode.driver.kube.server import Credentials
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.serve.service import DriverService
from dranode.sim.local.kubelet import StandInKubelet
from tests.fakes.apiserver import ApiServer, api_server
from tests.fakes.drivers import plain, reference
from tests.fakes.lifecycle import HotplugRoot, cpu_claim
from tests.fakes.waiting import PATIENCE, eventually

DRIVER = "dra.cpu"


class SwitchedCPUs(CPUPlugin):
    """The CPU driver with a switch instead of the kernel's events."""

    def __init__(self, machine: HotplugRoot) -> None:
        super().__init__(machine, CPUOptions())
        self.changed = threading.Event()

    def watch(self, stop: Stop) -> Iterator[None]:
        while not stop.is_set():
            if self.changed.wait(0.01):
                self.changed.clear()
                yield


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        server.put("nodes", {"metadata": {"name": "node", "uid": "node-uid"}})
        yield server


def test_a_claim_that_loses_a_cpu_has_a_condition_and_an_event_until_it_is_back(api: ApiServer, root: Path) -> None:
    claim = cpu_claim("a", "uid-a", "cpudevnuma000", 2, shareID="00000000-0000-0000-0000-000000000001")
    api.put("resourceclaims", plain(claim))
    machine = HotplugRoot("sockets=1,cores=4")
    driver = SwitchedCPUs(machine)
    cluster = KubeCluster(
        Credentials(str(api.kubeconfig(root / "kubeconfig"))), "node", claim_status=True, fatal=pytest.fail
    )
    service = DriverService(
        driver,
        cluster,
        Listener(DRIVER, "node", socket_paths(root, DRIVER), root / "plugins" / DRIVER, pytest.fail),
        cdi=root / "cdi",
    )
    kubelet = StandInKubelet(root / "plugins_registry")

    def condition() -> Any:
        devices = api.objects.all("resourceclaims")[0]["status"].get("devices") or [{}]
        return devices[0].get("conditions", [{}])[0]

    try:
        service.start()
        kubelet.register([DRIVER], PATIENCE)
        kubelet.prepare({reference(claim): frozenset({DRIVER})})
        eventually(lambda: condition().get("status") == "True")

        machine.online = "0,2-3"
        driver.changed.set()
        eventually(lambda: condition().get("status") == "False")
        assert condition()["reason"] == "CPUsOffline"
        assert "claim default/a holds CPUs 1, which are offline" in condition()["message"]
        eventually(lambda: len(api.objects.all("events")) == 2)
        events = api.objects.all("events")
        assert {(event["regarding"]["kind"], event["regarding"]["name"], event["reason"]) for event in events} == {
            ("ResourceClaim", "a", "CPUsOffline"),
            ("Pod", "pod-a", "CPUsOffline"),
        }

        machine.online = "0-3"
        driver.changed.set()
        eventually(lambda: condition().get("status") == "True")
    finally:
        kubelet.close()
        service.stop()
        cluster.close()
