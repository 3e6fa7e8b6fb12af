"""A driver whose ledger cannot be read, over the real sockets of kubelet and the container runtime.

Alone it changes nobody's CPUs, has no more pods sent, and mends itself; beside an instance that can read the ledger it
never gets a say.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.answers import Prepared, Refused
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.kubelet import StandInKubelet
from dranode.driver.machine.forms import open_machine
from dranode.driver.nri.access import ContainerAccess
from dranode.driver.serve.service import DriverService
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.drivers import reference
from tests.fakes.ledger import FAULTS, OF_BOTH, OF_ONE, Fault, a_full_disk_with_shm, newer_schema
from tests.fakes.lifecycle import ApiClaims, KubeletPods, cpu_claim
from tests.fakes.nri import CallFailedError, FakeRuntime, container, pod, updates_of
from tests.fakes.waiting import PATIENCE, eventually

DRIVER = "dra.cpu"
CLAIM = cpu_claim("a", "uid-a", "cpudevnuma000", 4)
OTHER = cpu_claim("b", "uid-b", "cpudevnuma000", 1)
EXCLUSIVE, SHARED = "0-1,4-5", "2-3,6-7"
CLAIMS = (f"DRA_CPUSET_uid-a={EXCLUSIVE}",)
EVERYBODY = [
    container("mine", "pod-uid-a", CLAIMS, EXCLUSIVE, "main", state=nri.CONTAINER_RUNNING),
    container("shared", "p2", (), SHARED, state=nri.CONTAINER_RUNNING),
]
PODS = [pod("pod-uid-a", name="pod-a"), pod("p2")]


@dataclass
class World:
    """One node of 8 CPUs, with the driver's instances by their pods' UIDs."""

    folder: Path
    listener: socket.socket
    kubelet: StandInKubelet
    pods: KubeletPods
    api: ApiClaims = field(default_factory=lambda: ApiClaims(CLAIM, OTHER))
    services: dict[str, DriverService] = field(default_factory=dict)
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def ledger(self) -> Path:
        return self.folder / "plugins" / DRIVER / "ledger.db"

    def start(self, uid: str = "") -> DriverService:
        machine = open_machine("sockets=1,cores=4,threads=2")
        service = DriverService(
            CPUPlugin(machine, CPUOptions()),
            self.api,
            Listener(
                DRIVER,
                "node",
                socket_paths(self.folder, DRIVER, uid),
                self.folder / "plugins" / DRIVER,
                pytest.fail,
                rolling=bool(uid),
            ),
            cdi=self.folder / "cdi",
            pod_resources=PodResources(self.pods.socket),
            containers=ContainerAccess(str(self.folder / "nri.sock"), machine),
        )
        self.services[uid] = service
        service.start()
        self.kubelet.register([DRIVER], PATIENCE)
        return service

    def stop(self, uid: str = "") -> None:
        self.services.pop(uid).stop()

    def admit(self) -> FakeRuntime:
        sock, _ = self.listener.accept()
        self.sockets.append(sock)
        return FakeRuntime(sock)

    def synchronized(self) -> tuple[FakeRuntime, dict[str, str]]:
        """The runtime takes in a plug-in and tells it of everybody; what it changes of them."""
        runtime = self.admit()
        return runtime, updates_of(runtime.handshake(PODS, EVERYBODY, "v0.12.1"))

    def prepare(self, claim: Any) -> Any:
        return self.kubelet.prepare({reference(claim): frozenset({DRIVER})})[reference(claim)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("dranode.driver.serve.service._AGAIN_SECONDS", 0.05)
    with tempfile.TemporaryDirectory(prefix="dranode-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "plugins_registry").mkdir()
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.settimeout(PATIENCE)
        listener.bind(str(folder / "nri.sock"))
        listener.listen()
        kubelet = StandInKubelet(folder / "plugins_registry")
        stack.callback(kubelet.close)
        pods = KubeletPods(folder / "pod-resources" / "kubelet.sock")
        stack.callback(pods.close)
        pods.run("pod-a", "a", "uid-a")
        world = World(folder, listener, kubelet, pods)
        yield world
        for service in world.services.values():
            service.stop()
        for sock in world.sockets:
            sock.close()


def given(runtime: FakeRuntime, name: str, of: Any, env: tuple[str, ...] = ()) -> str:
    """The CPUs of the container `main` that is created."""
    return runtime.create(container(name, of.uid, env, name="main"), of).adjust.linux.resources.cpu.cpus


def hung_up(runtime: FakeRuntime) -> None:
    """Wait until the plug-in has closed the connection."""
    with contextlib.suppress(ConnectionError):
        while True:
            runtime.pump()


def with_a_claim(world: World, uid: str = "") -> None:
    """A driver was here and has gone."""
    world.start(uid)
    runtime, _ = world.synchronized()
    assert isinstance(world.prepare(CLAIM), Prepared)
    assert given(runtime, "mine", PODS[0], CLAIMS) == EXCLUSIVE
    world.kubelet.restart()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_alone_it_changes_nothing_gives_nothing_says_so_and_mends_itself(
    world: World, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    with_a_claim(world)
    published = world.api.capacities[-1]
    world.stop()
    with fault(world.ledger) as mend:
        caplog.clear()
        service = world.start()
        runtime, updates = world.synchronized()
        assert updates == {}
        assert updates_of(runtime.stop(EVERYBODY[1], PODS[1])) == {}
        # What the CDI specs on the node leave, and for the claim what its own spec says.
        assert given(runtime, "plain", pod("p3")) == SHARED
        assert given(runtime, "again", PODS[0], CLAIMS) == EXCLUSIVE
        with pytest.raises(CallFailedError, match=r"ledger|newer dranode"):
            given(runtime, "unknown", pod("p4"), ("DRA_CPUSET_uid-z=2",))
        assert isinstance(world.prepare(OTHER), Refused)
        eventually(lambda: service.pinning is not None and service.pinning.synchronized)
        (missing,) = [sentence for sentence in service.missing() if "published" not in sentence]
        assert world.api.capacities[-1] == {}
        said = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(said) == 1, said
        assert missing.removeprefix(f"{DRIVER}: ") in said[0]
        mend()
        # Whose the containers are is told anew before anything is changed.
        hung_up(runtime)
        assert not [method for method, _ in runtime.wire.received if method == "UpdateContainers"]
        runtime, updates = world.synchronized()
        assert updates == {}
        eventually(lambda: service.missing() == ())
        assert world.api.capacities[-1] == published
        assert isinstance(world.prepare(OTHER), Prepared)
        assert given(runtime, "late", pod("p5")) == str(CPUSet.parse(SHARED) - CPUSet((2,)))


@pytest.mark.parametrize("size", [0, 4096])
def test_one_that_was_truncated_is_made_again_from_the_specs_and_nobody_moves(world: World, size: int) -> None:
    with_a_claim(world)
    world.stop()
    os.truncate(world.ledger, size)
    service = world.start()
    runtime, updates = world.synchronized()
    assert updates == {}
    assert given(runtime, "plain", pod("p3")) == SHARED
    eventually(lambda: service.missing() == ())


def counted_looks(monkeypatch: pytest.MonkeyPatch, service: DriverService) -> list[None]:
    """A list that grows with every look of a service at who has the authority."""
    looks: list[None] = []
    authority = service._authority
    assert authority is not None
    follow = authority._follow

    def counted() -> None:
        follow()
        looks.append(None)

    monkeypatch.setattr(authority, "_follow", counted)
    return looks


@pytest.mark.parametrize("fault", OF_ONE, ids=lambda fault: fault.__name__)
def test_beside_an_instance_that_reads_it_one_that_cannot_never_gets_a_say(
    world: World, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_claim(world, "old")
    old = world.services["old"]
    eventually(lambda: old.missing() == ())
    published = list(world.api.capacities)
    with fault(world.ledger) as mend:
        new = world.start("new")
        runtime, updates = world.synchronized()
        assert updates == {}
        eventually(lambda: new.pinning is not None and new.pinning.synchronized)
        # Both look often enough for authority to pass, if it were to.
        looks = [counted_looks(monkeypatch, service) for service in (old, new)]
        eventually(lambda: all(len(each) >= 5 for each in looks))
        assert old.active
        assert not new.active
        assert old.missing() == ()
        assert given(runtime, "plain", pod("p3")) == ""
        assert any("ledger" in sentence for sentence in new.missing())
        assert world.api.capacities == published
        mend()
        hung_up(runtime)
        _, updates = world.synchronized()
        assert updates == {}
        eventually(lambda: new.active and not old.active)
        eventually(lambda: new.missing() == ())
        assert world.api.capacities[-1] == published[-1]


@pytest.mark.parametrize("fault", OF_BOTH, ids=lambda fault: fault.__name__)
def test_what_neither_of_two_can_read_any_more_changes_nothing_until_the_newer_one_can(
    world: World, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_claim(world, "old")
    old = world.services["old"]
    eventually(lambda: old.missing() == ())
    published = world.api.capacities[-1]
    with fault(world.ledger) as mend:
        eventually(lambda: old.missing() != ())
        eventually(lambda: world.api.capacities[-1] == {})
        new = world.start("new")
        runtime, updates = world.synchronized()
        assert updates == {}
        eventually(lambda: new.pinning is not None and new.pinning.synchronized)
        # Both look often enough for authority to pass, if it were to.
        looks = [counted_looks(monkeypatch, service) for service in (old, new)]
        eventually(lambda: all(len(each) >= 5 for each in looks))
        assert (old.active, new.active) == (True, False)
        assert given(runtime, "plain", pod("p3")) == ""
        assert isinstance(world.prepare(OTHER), Refused)
        mend()
        hung_up(runtime)
        _, updates = world.synchronized()
        assert updates == {}
        eventually(lambda: new.active and not old.active)
        eventually(lambda: new.missing() == ())
        assert world.api.capacities[-1] == published


def test_on_a_full_disk_nothing_is_given_and_masks_go_on_until_there_is_room(world: World) -> None:
    with_a_claim(world)
    published = world.api.capacities[-1]
    world.stop()
    with a_full_disk_with_shm(world.ledger) as mend:
        service = world.start()
        runtime, _ = world.synchronized()
        answer = world.prepare(OTHER)
        assert isinstance(answer, Refused)
        assert "disk is full" in str(answer)
        eventually(lambda: any("disk is full" in sentence for sentence in service.missing()))
        eventually(lambda: world.api.capacities[-1] == {})
        assert given(runtime, "plain", pod("p3")) == SHARED
        assert given(runtime, "again", PODS[0], CLAIMS) == EXCLUSIVE
        wide = container("wide", "p4", (), "0-7", state=nri.CONTAINER_RUNNING)
        assert updates_of(runtime.synchronize([*PODS, pod("p4")], [*EVERYBODY, wide])) == {"wide": SHARED}
        mend()
        eventually(lambda: service.missing() == ())
        assert world.api.capacities[-1] == published
        assert isinstance(world.prepare(OTHER), Prepared)


def test_a_cdi_folder_that_goes_bad_later_is_a_reason_not_to_be_ready(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranode.driver.serve.service._HEALTH_SECONDS", 0.05)
    with_a_claim(world)
    service = world.services[""]
    eventually(lambda: service.missing() == ())
    published, cdi = world.api.capacities[-1], world.folder / "cdi"
    cdi.rename(world.folder / "away")
    cdi.write_text("no folder")
    eventually(lambda: any("CDI specs" in sentence for sentence in service.missing()))
    eventually(lambda: world.api.capacities[-1] == {})
    cdi.unlink()
    (world.folder / "away").rename(cdi)
    eventually(lambda: service.missing() == ())
    assert world.api.capacities[-1] == published
    world.kubelet.register([DRIVER])
    assert isinstance(world.prepare(OTHER), Prepared)


def test_an_active_instance_that_cannot_write_the_ledger_gives_authority_back_to_one_that_can(world: World) -> None:
    with_a_claim(world, "old")
    old = world.services["old"]
    published = world.api.capacities[-1]
    with a_full_disk_with_shm(world.ledger) as mend:
        # kubelet meets the sockets by name and calls the last.
        new = world.start("second")
        world.synchronized()
        eventually(lambda: new.active and not old.active)
        assert isinstance(world.prepare(OTHER), Refused)
        eventually(lambda: old.active and not new.active)
        eventually(lambda: old.missing() == ())
        assert any("disk is full" in sentence for sentence in new.missing())
        assert world.api.capacities[-1] == published
        mend()
        eventually(lambda: new.active and not old.active)
        eventually(lambda: new.missing() == ())


def test_one_that_has_to_take_the_place_of_an_instance_that_goes_changes_nothing_until_it_can_read(
    world: World,
) -> None:
    with_a_claim(world, "old")
    with newer_schema(world.ledger):
        new = world.start("new")
        runtime, _ = world.synchronized()
        world.stop("old")
        eventually(lambda: new.active)
        assert updates_of(runtime.stop(EVERYBODY[1], PODS[1])) == {}
        assert given(runtime, "plain", pod("p3")) == SHARED
        assert new.missing() != ()
        eventually(lambda: world.api.capacities[-1] == {})
