"""Restarts over the state of another driver, and hardware that changes, over real sockets and files."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from dranode.api.errors import DranodeError
from dranode.cpu.options import CPUOptions, DeviceMode
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Refused
from dranode.driver.claims.events import ClaimImpaired, ClaimRestored
from dranode.driver.claims.plugin import Stop
from dranode.driver.claims.record import Record
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.serve import spec_watch
from dranode.driver.serve.metrics import Metrics
from dranode.driver.serve.service import DriverService
from dranode.proto import drahealth_v1_pb2
from dranode.proto.drahealth_v1_pb2_grpc import DRAResourceHealthStub
from dranode.sim.local.kubelet import KubeletError, StandInKubelet
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import ApiClaims, HotplugRoot, KubeletPods, cpu_claim, leave_spec
from tests.fakes.waiting import PATIENCE, eventually

DRIVER = "dra.cpu"
GROUP = "cpudevnuma000"


class WatchedCPUs(CPUPlugin):
    """The CPU driver with a switch instead of the kernel's events."""

    changed = False

    def watch(self, stop: Stop) -> Iterator[None]:
        while not stop.wait(0.01):
            if self.changed:
                self.changed = False
                yield


@dataclass
class World:
    """A node: its folders, its CPUs, kubelet, the API server, and the driver while it runs."""

    root: Path
    api: ApiClaims = field(default_factory=ApiClaims)
    machine: HotplugRoot = field(default_factory=lambda: HotplugRoot("sockets=1,cores=8"))
    options: CPUOptions = field(default_factory=CPUOptions)
    service: DriverService | None = None
    pods: KubeletPods | None = None

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    def kubelet_answers(self) -> KubeletPods:
        self.pods = KubeletPods(self.root / "pod-resources" / "kubelet.sock")
        return self.pods

    def start(self) -> DriverService:
        self.plugin = WatchedCPUs(self.machine, self.options)
        asked = PodResources(self.root / "pod-resources" / "kubelet.sock")
        self.service = DriverService(
            self.plugin,
            self.api,
            Listener(DRIVER, "node", socket_paths(self.root, DRIVER), self.root / "plugins" / DRIVER, pytest.fail),
            cdi=self.cdi,
            pod_resources=asked,
        )
        self.service.start()
        return self.service

    def stop(self) -> None:
        if self.service is not None:
            self.service.stop()
            self.service = None

    def records(self) -> dict[str, Record]:
        assert self.service is not None
        return {record.uid: record for record in self.service.node.records()}

    def hotplug(self, online: str) -> None:
        self.machine.online = online
        self.plugin.changed = True

    def prepare(self, *claims: Any) -> Any:
        self.api.by_name |= {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}
        kubelet = StandInKubelet(self.root / "plugins_registry")
        kubelet.register([DRIVER], PATIENCE)
        try:
            answers = kubelet.prepare({reference(claim): frozenset({DRIVER}) for claim in claims})
        finally:
            kubelet.close()
        devices: dict[str, Any] = {}
        for ref, answer in answers.items():
            if isinstance(answer, Refused):
                raise KubeletError(answer.reason)
            devices[ref.uid] = answer.devices
        return devices


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # Nobody gives CPUs back here, so a refusal need not wait for that.
    monkeypatch.setattr("dranode.driver.node.node.CONFLICT_WAIT", 0.0)
    # pytest's own folders can be too long for a socket path.
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        (Path(name) / "plugins_registry").mkdir()
        world = World(Path(name))
        yield world
        world.stop()
        if world.pods is not None:
            world.pods.close()


def test_claims_of_dra_driver_cpu_are_taken_over_with_names_pods_and_cpus(world: World) -> None:
    leave_spec(world.cdi, "uid-a", "2-3")
    world.api = ApiClaims(cpu_claim("a", "uid-a", GROUP, 2))
    world.kubelet_answers().run("pod-a", "a", "uid-a")
    world.start()
    record = world.records()["uid-a"]
    assert (record.namespace, record.name, str(record.cpus), record.devices) == ("default", "a", "2-3", (GROUP,))
    assert [pod.uid for pod in record.pods] == ["pod-uid-a"]
    # A container finds what it found before, plus the metadata.
    spec = json.loads((world.cdi / "dra.k8s.io-cpu_claim-uid-a.json").read_bytes())
    assert spec["kind"] == "dra.k8s.io/cpu"
    (device,) = spec["devices"]
    assert (device["name"], device["containerEdits"]["env"]) == ("claim-uid-a", ["DRA_CPUSET_uid-a=2-3"])
    # The claim stays: a Prepare answers for it, and another claim gets other CPUs.
    (device,) = world.prepare(cpu_claim("a", "uid-a", GROUP, 2))["uid-a"]
    assert device.cdi == ("dra.k8s.io/cpu=claim-uid-a",)
    world.prepare(cpu_claim("b", "uid-b", GROUP, 2))
    assert str(world.records()["uid-b"].cpus) == "0-1"
    with pytest.raises(KubeletError, match="was granted 5 CPUs of cpudevnuma000, which has 4 left: 4-7"):
        world.prepare(cpu_claim("c", "uid-c", GROUP, 5))


def test_a_changed_allocation_is_prepared_again_once_kubelet_lists_the_recorded_pods(world: World) -> None:
    kubelet = world.kubelet_answers()
    world.start()
    world.prepare(cpu_claim("a", "uid-a", GROUP, 2))
    with pytest.raises(KubeletError, match="neither NRI nor kubelet's pod-resources can say"):
        world.prepare(cpu_claim("a", "uid-a", GROUP, 4))
    kubelet.run("pod-a", "another", "uid-another")
    world.prepare(cpu_claim("a", "uid-a", GROUP, 4))
    assert str(world.records()["uid-a"].cpus) == "0-3"


def test_claims_are_taken_over_from_kubelets_data_while_the_api_server_is_away(world: World) -> None:
    leave_spec(world.cdi, "uid-a", "2-3")
    world.api.away = True
    world.kubelet_answers().run("pod-a", "a", "uid-a")
    world.start()
    record = world.records()["uid-a"]
    assert (record.name, [pod.name for pod in record.pods], record.fingerprint) == ("a", ["pod-a"], "")


def test_an_unidentified_claim_holds_its_cpus_and_gets_its_name_later(world: World) -> None:
    leave_spec(world.cdi, "uid-a", "0-5")
    world.start()
    assert str(world.records()["uid-a"].held) == "0-5"
    with pytest.raises(KubeletError, match="which has 2 left: 6-7"):
        world.prepare(cpu_claim("b", "uid-b", GROUP, 3))
    world.prepare(cpu_claim("a", "uid-a", GROUP, 6))
    assert world.records()["uid-a"].name == "a"
    assert str(world.records()["uid-a"].cpus) == "0-5"


def test_individual_claims_of_dra_driver_cpu_end_the_start_and_nothing_is_changed(world: World) -> None:
    left = leave_spec(world.cdi, "uid-a", "4")
    before = left.read_bytes()
    world.kubelet_answers().run("pod-a", "a", "uid-a", "cpudev004")
    with pytest.raises(DranodeError, match=r"claim default/a was allocated device cpudev004 .* drain the node"):
        world.start()
    assert left.read_bytes() == before
    world.pods.run("pod-a", "a", "uid-a", GROUP)  # type: ignore[union-attr]
    world.start()
    assert world.records()["uid-a"].name == "a"


def test_a_lost_ledger_is_recovered_from_specs_kubelet_and_the_api_server(world: World) -> None:
    pods = world.kubelet_answers()
    world.start()
    world.prepare(cpu_claim("a", "uid-a", GROUP, 3))
    before = world.records()
    pods.run("pod-a", "a", "uid-a")
    world.stop()
    (world.root / "plugins" / DRIVER / "ledger.db").write_bytes(b"no database" * 1000)
    world.start()
    after = world.records()["uid-a"]
    kept = ("uid", "namespace", "name", "cpus", "held", "pods", "devices", "fingerprint")
    assert [getattr(after, name) for name in kept] == [getattr(before["uid-a"], name) for name in kept]


def test_a_removed_or_altered_spec_is_written_again_within_a_second(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    assert spec_watch.CHECK_SECONDS <= 0.5
    world.start()
    world.prepare(cpu_claim("a", "uid-a", GROUP, 2))
    path = world.cdi / "dra.k8s.io-cpu_claim-uid-a.json"
    whole = path.read_bytes()
    path.unlink()
    eventually(lambda: path.exists() and path.read_bytes() == whole)
    path.write_bytes(b"{}")
    eventually(lambda: path.read_bytes() == whole)
    world.cdi.rename(world.root / "moved away")
    eventually(lambda: path.exists() and path.read_bytes() == whole)
    eventually(lambda: caplog.text.count("wrote its CDI spec again") == 3)
    assert world.service is not None
    assert world.service.lifecycle is not None
    assert world.service.lifecycle.status().specs_rewritten == 3


def health(world: World) -> dict[str, int]:
    with grpc.insecure_channel(f"unix:{socket_paths(world.root, DRIVER).dra}") as channel:
        watch = DRAResourceHealthStub(channel).NodeWatchResources
        stream = watch(drahealth_v1_pb2.NodeWatchResourcesRequest(), timeout=PATIENCE, wait_for_ready=True)
        response = next(iter(stream))
        stream.cancel()
    return {device.device.device_name: device.health for device in response.devices}


def test_an_offline_cpu_shrinks_its_group_and_impairs_the_claim_that_holds_it(world: World) -> None:
    world.start()
    world.prepare(cpu_claim("a", "uid-a", GROUP, 2), cpu_claim("b", "uid-b", GROUP, 2))
    assert world.api.capacities[-1] == {GROUP: "8"}
    world.hotplug("0,2-7")
    eventually(lambda: world.api.capacities[-1] == {GROUP: "7"})
    (what,) = world.api.occurrences
    assert isinstance(what, ClaimImpaired)
    assert (what.claim.name, what.reason, [pod.name for pod in what.pods]) == ("a", "CPUsOffline", ["pod-a"])
    assert "claim default/a holds CPUs 1, which are offline, and runs only on 0 instead of 0-1" in what.sentence
    assert world.service is not None
    assert world.service.lifecycle is not None
    assert set(world.service.lifecycle.status().impaired) == {"uid-a"}
    metrics = Metrics()
    metrics.add(world.service)
    assert metrics.registry.get_sample_value("dranode_claims_impaired", {"driver": DRIVER}) == 1
    assert metrics.registry.get_sample_value("dranode_hardware_changes_total", {"driver": DRIVER}) == 1
    assert str(world.records()["uid-a"].held) == "0-1"
    assert health(world) == {GROUP: 1}
    world.hotplug("0-7")
    eventually(lambda: world.api.capacities[-1] == {GROUP: "8"})
    assert world.service.lifecycle.status().impaired == {}
    impaired, restored = world.api.occurrences
    assert isinstance(impaired, ClaimImpaired)
    assert isinstance(restored, ClaimRestored)
    assert [(state.device, state.ready, state.reason) for state in (*impaired.states, *restored.states)] == [
        (GROUP, False, "CPUsOffline"),
        # This driver pins no containers.
        (GROUP, True, "NotEnforced"),
    ]


def test_a_group_is_unhealthy_once_all_its_cpus_are_offline(world: World) -> None:
    world.machine = HotplugRoot("sockets=2,cores=2")
    world.start()
    assert health(world) == {"cpudevnuma000": 1, "cpudevnuma001": 1}
    world.hotplug("0-2")
    eventually(lambda: world.api.capacities[-1] == {"cpudevnuma000": "2", "cpudevnuma001": "1"})
    assert health(world) == {"cpudevnuma000": 1, "cpudevnuma001": 1}
    world.hotplug("0-1")
    eventually(lambda: world.api.capacities[-1] == {"cpudevnuma000": "2"})
    eventually(lambda: health(world) == {"cpudevnuma000": 1, "cpudevnuma001": 2})


def test_an_offline_individual_cpu_is_withdrawn_and_unhealthy_until_it_is_back(world: World) -> None:
    world.options = CPUOptions(mode=DeviceMode.INDIVIDUAL)
    world.start()
    world.prepare(cpu_claim("a", "uid-a", "cpu003"))
    world.hotplug("0-2,4-7")
    eventually(lambda: "cpu003" not in world.api.capacities[-1])
    eventually(lambda: health(world)["cpu003"] == 2)
    # The driver still knows it after a restart.
    world.stop()
    world.start()
    eventually(lambda: health(world)["cpu003"] == 2)
    eventually(lambda: world.api.occurrences[1:])
    world.hotplug("0-7")
    eventually(lambda: health(world)["cpu003"] == 1)
    assert "cpu003" in world.api.capacities[-1]


def test_unreadable_hardware_is_logged_once_and_the_last_state_is_kept(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    service = world.start()
    world.hotplug("no list")
    eventually(lambda: "no list" in caplog.text)
    world.hotplug("no list")
    eventually(lambda: not world.plugin.changed)
    assert len(service.node.inventory.devices) == 1
    world.hotplug("0-3")
    eventually(lambda: world.api.capacities[-1] == {GROUP: "4"})
    assert caplog.text.count("cannot be understood") == 1
