"""Containers that use some requests of a claim for CPUs: from Prepare through CDI and NRI to their masks."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Commit, Prepared
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import PreparedDevice, Record
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.machine.folder import HostRoot
from dranode.driver.node.node import NodeClaims
from dranode.driver.pinning.container_cgroups import Process, with_processes
from dranode.driver.serve.nri_plugin import ContainerAccess, PinningDriver
from dranode.driver.serve.pinning import Pinning
from dranode.sim.machines.forms import open_machine
from dranode.tools.diagnosis.placement import placements
from tests.fakes.drivers import DAMAGES, reference
from tests.fakes.nri import CallFailedError, FakeRuntime, container, pod, updates_of
from tests.fakes.waiting import PATIENCE

UID = "0f1e2d3c-0000-4000-8000-000000000001"
POD = "pod-uid-a"
MACHINE = open_machine("sockets=1,numa=1,cores=8,threads=2")


def claim(requests: dict[str, int], **more: Any) -> ResourceClaim:
    results = [
        {
            "request": request,
            "driver": "dra.cpu",
            "pool": "node",
            "device": "cpudevnuma000",
            "shareID": f"share-{request}",
            "consumedCapacity": {"dra.cpu/cpu": str(count)},
            **more.get(request, {}),
        }
        for request, count in requests.items()
    ]
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": "a", "uid": UID},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": "pod-a", "uid": POD}],
            },
        },
    )


class Machine:
    """A node with its runtime, and what kubelet and the runtime pass to a container."""

    def __init__(self, folder: Path, plugin: Plugin | None = None) -> None:
        self.folder = folder
        (folder / "data").mkdir(exist_ok=True)
        self.node = NodeClaims(plugin or CPUPlugin(MACHINE, CPUOptions()), folder / "data", folder / "cdi", pool="node")
        self.node.open()
        self.devices: tuple[PreparedDevice, ...] = ()

    def prepare(self, asked: ResourceClaim) -> None:
        answer = self.node.prepare({reference(asked): asked})[UID]
        assert isinstance(answer, Prepared), answer
        self.devices = answer.devices

    def given(self, request: str | None) -> tuple[str, ...]:
        """The CDI ids that kubelet passes to a container that names the request, or only the claim."""
        ids = [one for each in self.devices if request in (None, each.request) for one in each.cdi]
        return tuple(dict.fromkeys(ids))

    def injected(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        """The variables that the runtime injects; every id must exist."""
        found: dict[str, list[str]] = {}
        for path in (self.folder / "cdi").glob("*.json"):
            spec = json.loads(path.read_bytes())
            found |= {f"{spec['kind']}={one['name']}": one["containerEdits"]["env"] for one in spec["devices"]}
        return tuple(entry for one in ids for entry in found[one])


class Pinned(Machine):
    """The same with a runtime connected over NRI."""

    def __init__(self, folder: Path, *, reports_devices: bool) -> None:
        super().__init__(folder)
        self.reports_devices = reports_devices
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(PATIENCE)
        self._listener.bind(str(folder / "nri.sock"))
        self._listener.listen()
        self.kubelet = PodResources(folder / "nobody.sock")
        access = ContainerAccess(str(folder / "nri.sock"), HostRoot())
        self.pinning = Pinning(PinningDriver(self.node), access, self.kubelet, pytest.fail)
        self.pinning.start()
        self.sock, _ = self._listener.accept()
        self.runtime = FakeRuntime(self.sock)
        self.runtime.handshake([], [])

    def made(self, name: str, request: str | None) -> Any:
        ids = self.given(request)
        one = container(name, POD, self.injected(ids))
        if self.reports_devices:
            for each in ids:
                one.CDI_devices.add(name=each)
        return one

    def create(self, name: str, request: str | None) -> str:
        """Create a container that names the request, or only the claim; return its mask."""
        answer = self.runtime.create(self.made(name, request), pod(POD))
        self.last = answer
        return str(answer.adjust.linux.resources.cpu.cpus)

    def stop(self, name: str, request: str | None) -> None:
        self.runtime.stop(self.made(name, request), pod(POD))

    def close(self) -> None:
        self.pinning.stop()
        self.sock.close()
        self._listener.close()


@pytest.fixture(params=[True, False], ids=["devices are told", "variables alone"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pinned]:
    made = Pinned(tmp_path, reports_devices=request.param)
    yield made
    made.close()


def test_two_containers_have_one_request_each(machine: Pinned) -> None:
    machine.prepare(claim({"a": 4, "b": 2}))
    assert machine.create("first", "a") == "0-1,8-9"
    assert machine.create("second", "b") == "2,10"
    with pytest.raises(CallFailedError, match="is in use by"):
        machine.create("third", "b")
    other = machine.runtime.create(container("other", "pod-uid-b"), pod("pod-uid-b"))
    assert other.adjust.linux.resources.cpu.cpus == "3-7,11-15"


def test_a_container_that_names_only_the_claim_has_all_of_it(machine: Pinned) -> None:
    machine.prepare(claim({"a": 4, "b": 2}))
    assert machine.create("all", None) == "0-2,8-10"
    with pytest.raises(CallFailedError, match="is in use by"):
        machine.create("first", "a")


def test_the_next_container_may_use_the_request_of_an_init_container(machine: Pinned) -> None:
    machine.prepare(claim({"a": 4, "b": 2}))
    assert machine.create("init", "a") == "0-1,8-9"
    machine.stop("init", "a")
    assert machine.create("first", "a") == "0-1,8-9"
    assert machine.create("second", "b") == "2,10"
    machine.stop("second", "b")
    with pytest.raises(CallFailedError, match="is in use by"):
        machine.create("all", None)


def test_a_request_with_admin_access_gets_no_cpu_and_blocks_nobody(machine: Pinned) -> None:
    machine.prepare(claim({"a": 4, "watch": 2}, watch={"adminAccess": True}))
    assert machine.create("watcher", "watch") == "2-7,10-15"
    assert machine.create("first", "a") == "0-1,8-9"


def test_a_synchronization_corrects_the_mask_of_a_container_with_a_request(machine: Pinned) -> None:
    machine.prepare(claim({"a": 4, "b": 2}))
    made = machine.made("first", "a")
    made.linux.resources.cpu.cpus = "0-2,8-10"
    assert updates_of(machine.runtime.synchronize([pod(POD)], [made])) == {made.id: "0-1,8-9"}


def test_the_claims_own_device_has_dra_driver_cpus_variable(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.prepare(claim({"a": 4, "b": 2}))
    assert machine.injected(machine.given("b")) == (f"DRA_CPUSET_{UID}=0-2,8-10", f"DRANODE_CPUSET_{UID}_1=2,10")
    assert machine.injected(machine.given(None))[0] == f"DRA_CPUSET_{UID}=0-2,8-10"


def test_a_claim_with_one_request_has_one_device(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.prepare(claim({"a": 4}))
    assert machine.given("a") == (f"dra.k8s.io/cpu=claim-{UID}",)
    (path,) = (tmp_path / "cdi").glob("*.json")
    assert [one["name"] for one in json.loads(path.read_bytes())["devices"]] == [f"claim-{UID}"]


def test_verifying_cgroups_expects_the_cpus_of_a_containers_requests(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.prepare(claim({"a": 4, "b": 2}))
    cgroup = f"kubepods/pod{POD}"

    def process(pid: int, request: str | None, cpus: str) -> Process:
        names = frozenset(entry.partition("=")[0] for entry in machine.injected(machine.given(request)))
        return Process(pid, "app", CPUSet.parse(cpus), f"{cgroup}/{pid}", names)

    seen = (process(1, "a", "0-1,8-9"), process(2, "b", "0-2,8-10"), process(3, None, "0-2,8-10"))
    found = placements(machine.node.records(), with_processes((), seen, [POD]), seen, CPUSet(range(16)))[UID]
    assert [(str(each.expected), each.ok) for each in found.containers] == [
        ("0-1,8-9", True),
        ("2,10", False),
        ("0-2,8-10", True),
    ]


def test_the_status_of_each_request_has_its_own_cpus(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.prepare(claim({"a": 4, "b": 2}))
    (record,) = machine.node.records()
    told = [machine.node.plugin.describe(grant, record, machine.node.inventory)["cpus"] for grant in record.grants]
    assert told == ["0-1,8-9", "2,10"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_answer_to_kubelet_stays_valid_after_the_ledger_is_lost(tmp_path: Path, damage: Any) -> None:
    machine = Machine(tmp_path)
    machine.prepare(claim({"a": 4, "b": 2}))
    before = {name: machine.injected(machine.given(name)) for name in ("a", "b")}
    machine.node.close()
    damage(tmp_path)
    again = Machine(tmp_path)
    again.devices = machine.devices
    assert {name: again.injected(again.given(name)) for name in ("a", "b")} == before
    again.prepare(claim({"a": 4, "b": 2}))
    assert again.devices == machine.devices


def test_a_claim_prepared_by_an_older_version_keeps_its_answer_and_cpus(machine: Pinned) -> None:
    def older(record: Record) -> Record:
        grants = tuple(msgspec.structs.replace(grant, edits=None, cpus=None, held=CPUSet()) for grant in record.grants)
        return msgspec.structs.replace(record, grants=grants)

    asked = claim({"a": 4, "b": 2})
    machine.prepare(asked)
    store, (record,) = machine.node.store, machine.node.records()
    with machine.node._lock.held(), store.transaction():
        store.commit(Commit(put=(older(record),)))
    machine.prepare(asked)
    assert {one for each in machine.devices for one in each.cdi} == {f"dra.k8s.io/cpu=claim-{UID}"}
    assert machine.create("first", "a") == "0-2,8-10"
