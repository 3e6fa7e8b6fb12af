"""A node of 8 CPUs with the CPU driver, over the real sockets of kubelet, pod-resources and the container runtime."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dranode.api.cpuset import CPUSet
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.machine.root import Root
from dranode.driver.serve.nri_plugin import ContainerAccess
from dranode.driver.serve.service import DriverService
from dranode.proto import nri_v1alpha1_pb2 as nri
from dranode.sim.local.kubelet import StandInKubelet
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import ApiClaims, KubeletPods, cpu_claim
from tests.fakes.machine import EIGHT_CPUS
from tests.fakes.nri import FakeRuntime, container, pod, updates_of
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
    """One node of 8 CPUs, with the driver's instances by pod UID."""

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

    def start(self, uid: str = "", machine: Root | None = None, reserved: str = "") -> DriverService:
        """Start an instance on the node's machine, or on the given one."""
        machine = machine or open_machine(EIGHT_CPUS)
        service = DriverService(
            CPUPlugin(machine, CPUOptions(reserved=CPUSet.parse(reserved))),
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
        """Accept a plug-in and synchronize it with all containers; return the changes that it makes."""
        runtime = self.admit()
        return runtime, updates_of(runtime.handshake(PODS, EVERYBODY, "v0.12.1"))

    def prepare(self, claim: Any) -> Any:
        return self.kubelet.prepare({reference(claim): frozenset({DRIVER})})[reference(claim)]


@contextlib.contextmanager
def pinning_node() -> Iterator[World]:
    """A node without containers; drivers retry at once what they could not read."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("dranode.driver.serve.service._AGAIN_SECONDS", 0.05)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dranode-")))
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
    """Create the container `main` and return its CPUs."""
    return runtime.create(container(name, of.uid, env, name="main"), of).adjust.linux.resources.cpu.cpus


def hung_up(runtime: FakeRuntime) -> None:
    """Wait until the plug-in has closed the connection."""
    with contextlib.suppress(ConnectionError):
        while True:
            runtime.pump()


def with_a_claim(world: World, uid: str = "") -> None:
    """Start a driver, prepare a claim, and stop it."""
    world.start(uid)
    runtime, _ = world.synchronized()
    assert isinstance(world.prepare(CLAIM), Prepared)
    assert given(runtime, "mine", PODS[0], CLAIMS) == EXCLUSIVE
    world.kubelet.restart()


def mended(world: World, service: DriverService, runtime: FakeRuntime, published: object) -> None:
    """Check that an instance without others recovers: it reconnects, changes no mask, and prepares `OTHER`."""
    # The driver learns again whose the containers are before it changes anything.
    hung_up(runtime)
    assert not [method for method, _ in runtime.wire.received if method == "UpdateContainers"]
    runtime, updates = world.synchronized()
    assert updates == {}
    eventually(lambda: service.missing() == ())
    eventually(lambda: world.api.capacities[-1] == published)
    assert isinstance(world.prepare(OTHER), Prepared)
    assert given(runtime, "late", pod("p5")) == str(CPUSet.parse(SHARED) - CPUSet((2,)))


def handed_over(world: World, old: DriverService, new: DriverService, runtime: FakeRuntime) -> None:
    """Check that the new instance recovers: it reconnects, changes no mask, and becomes active."""
    hung_up(runtime)
    _, updates = world.synchronized()
    assert updates == {}
    eventually(lambda: new.active and not old.active)
    eventually(lambda: new.missing() == ())


def both_look_often(monkeypatch: pytest.MonkeyPatch, *services: DriverService) -> None:
    """Wait until each instance has checked the authority often enough that it would have changed hands by now."""
    looks = [_counted_looks(monkeypatch, service) for service in services]
    eventually(lambda: all(len(each) >= 5 for each in looks))


def _counted_looks(monkeypatch: pytest.MonkeyPatch, service: DriverService) -> list[None]:
    """A list that grows with every check of the authority by a service."""
    looks: list[None] = []
    authority = service._authority
    assert authority is not None
    follow = authority._follow

    def counted() -> None:
        follow()
        looks.append(None)

    monkeypatch.setattr(authority, "_follow", counted)
    return looks
