"""A rolling update with two processes while claims are prepared and containers start: nothing is refused or missed."""

import contextlib
import http.client
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.held import ClaimRef
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.local.store import Store
from dranode.proto import nri_v1alpha1_pb2 as nri
from dranode.sim.local.kubelet import StandInKubelet
from tests.fakes.drivers import allocated_claim
from tests.fakes.nri import FakeRuntime, container, pod
from tests.fakes.waiting import PATIENCE, eventually

PROGRAM = Path(sys.executable).with_name("dranode")
DRIVER = "dra.cpu"
ONLINE = CPUSet(range(32))
RESERVED = CPUSet((0, 16))
CLAIMS = 20


def claim(number: int) -> ResourceClaim:
    share = f"00000000-0000-4000-8000-{number:012d}"
    devices = [f"cpudevnuma{number % 4:03d}"]
    return allocated_claim(
        f"c{number}", DRIVER, devices, uid=f"uid-{number}", consumedCapacity={"dra.cpu/cpu": "1"}, shareID=share
    )


def reference(number: int) -> ClaimRef:
    return ClaimRef("default", f"c{number}", f"uid-{number}")


@dataclass
class Runtime:
    """A container runtime with any number of NRI plug-ins; every request goes to all, one after another."""

    listener: socket.socket
    version: str
    dice: random.Random
    plugins: list[FakeRuntime] = field(default_factory=list)
    masks: dict[str, CPUSet] = field(default_factory=dict)
    pods: dict[str, nri.PodSandbox] = field(default_factory=dict)
    env: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def admit(self) -> bool:
        """Accept a waiting plug-in and synchronize it; return whether there was one."""
        try:
            sock, _ = self.listener.accept()
        except TimeoutError:
            return False
        plugin = FakeRuntime(sock)
        answer = plugin.handshake(self.pods.values(), map(self._container, self.masks), self.version)
        self._apply(answer.update, "synchronize")
        self.plugins.append(plugin)
        return True

    def create(self, name: str, pod_uid: str, env: tuple[str, ...]) -> CPUSet:
        """Create and start a container; return its mask, which exactly one plug-in must have set."""
        self.pods[name], self.env[name] = pod(pod_uid), env
        body = nri.CreateContainerRequest(pod=self.pods[name], container=container(name, pod_uid, env, name=name))
        answers = [nri.CreateContainerResponse.FromString(each) for each in self._show("CreateContainer", body)]
        given = [each.adjust.linux.resources.cpu.cpus for each in answers if each.adjust.linux.resources.cpu.cpus]
        assert len(given) == 1, f"{name} was adjusted by {len(given)} of {len(answers)} instances: {given}"
        self._apply((update for each in answers for update in each.update), name)
        self.masks[name] = CPUSet.parse(given[0])
        event = nri.StateChangeEvent(
            event=nri.POST_START_CONTAINER, pod=self.pods[name], container=self._container(name)
        )
        self._show("StateChange", event)
        return self.masks[name]

    def stop(self, name: str) -> None:
        """Stop and remove a container."""
        body = nri.StopContainerRequest(pod=self.pods[name], container=self._container(name))
        answers = [nri.StopContainerResponse.FromString(each) for each in self._show("StopContainer", body)]
        self._apply((update for each in answers for update in each.update), f"stop of {name}")
        event = nri.StateChangeEvent(event=nri.REMOVE_CONTAINER, pod=self.pods[name], container=self._container(name))
        self._show("StateChange", event)
        for known in (self.masks, self.pods, self.env):
            del known[name]

    def _container(self, name: str) -> nri.Container:
        return container(
            name, self.pods[name].uid, self.env[name], str(self.masks[name]), name=name, state=nri.CONTAINER_RUNNING
        )

    def _show(self, method: str, body: Any) -> list[bytes]:
        """Send a request to every plug-in in any order; drop those that have gone, as a runtime does."""
        answers = []
        self.dice.shuffle(self.plugins)
        for plugin in tuple(self.plugins):
            try:
                answers.append(plugin.call(method, body))
            except ConnectionError:
                plugin.sock.close()
                self.plugins.remove(plugin)
                continue
            self._unsolicited(plugin)
        return answers

    def _unsolicited(self, plugin: FakeRuntime) -> None:
        for method, payload in plugin.wire.received:
            if method == "UpdateContainers":
                self._apply(nri.UpdateContainersRequest.FromString(payload).update, "an unsolicited update")
        plugin.wire.received.clear()

    def _apply(self, updates: Any, where: str) -> None:
        seen: set[str] = set()
        for update in updates:
            key = update.container_id
            assert key not in seen, f"two instances update {key} with {where}, which fails the request"
            seen.add(key)
            if key in self.masks and update.linux.resources.cpu.cpus:
                self.masks[key] = CPUSet.parse(update.linux.resources.cpu.cpus)


@dataclass
class Node:
    """A node's kubelet, runtime and store, and the driver's instances by pod UID."""

    folder: Path
    runtime: Runtime
    kubelet: StandInKubelet
    instances: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    cpus: dict[int, CPUSet] = field(default_factory=dict)
    containers: int = 0

    def start(self, uid: str) -> subprocess.Popen[bytes]:
        arguments = [
            "--machine",
            "sockets=2,numa=2,cores=4,threads=2",
            "--node-name",
            "node",
            "--reserved-cpus",
            "0,16",
        ]
        places = ["--store", "store", "--kubelet-root", "kubelet", "--cdi-dir", "cdi", "--nri-socket", "nri.sock"]
        with (self.folder / f"log-{uid}").open("ab") as log:
            self.instances[uid] = subprocess.Popen(
                [PROGRAM, "serve", *arguments, *places, "--http-address", "127.0.0.1:0", "--pod-uid", uid],
                cwd=self.folder,
                stderr=log,
            )
        return self.instances[uid]

    def log(self, uid: str) -> str:
        return (self.folder / f"log-{uid}").read_text()

    def ready(self, uid: str) -> str:
        """The answer of /readyz; empty before there is one."""
        address = re.search(r"listening http=127\.0\.0\.1:(\d+)", self.log(uid))
        if address is None:
            return ""
        connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=PATIENCE)
        connection.request("GET", "/readyz")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def slices(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "store" / "resourceslices").glob("*.yaml"))

    def prepare(self, number: int) -> None:
        answer = self.kubelet.prepare({reference(number): frozenset({DRIVER})})[reference(number)]
        assert isinstance(answer, Prepared), f"claim {number} was refused: {answer}"
        (spec,) = (self.folder / "cdi").glob(f"*claim-uid-{number}.json")
        told = re.search(rf"DRA_CPUSET_uid-{number}=([0-9,-]+)", spec.read_text())
        assert told is not None
        self.cpus[number] = CPUSet.parse(told[1])

    def unprepare(self, number: int) -> None:
        self.kubelet.unprepare({reference(number): frozenset({DRIVER})})
        del self.cpus[number]

    def held(self) -> CPUSet:
        return CPUSet.union(self.cpus.values())

    def step(self, dice: random.Random) -> None:
        """Let a random thing happen: a pod starts, with or without a claim, or ends."""
        self.containers += 1
        running = [name for name in self.runtime.masks if name.startswith("claim-")]
        free = sorted(set(range(CLAIMS)) - self.cpus.keys())
        match dice.randrange(4):
            case 0 if free:
                number = dice.choice(free)
                self.prepare(number)
                env = (f"DRA_CPUSET_uid-{number}={self.cpus[number]}",)
                mask = self.runtime.create(f"claim-{number}-{self.containers}", f"pod-uid-c{number}", env)
                assert mask == self.cpus[number]
            case 1 if running:
                name = dice.choice(running)
                self.runtime.stop(name)
                self.unprepare(int(name.split("-")[1]))
            case _:
                mask = self.runtime.create(f"plain-{self.containers}", f"plain-pod-{self.containers}", ())
                assert mask
                assert mask.isdisjoint(self.held()), "a container without a claim was put on a claim's CPUs"

    def check(self) -> None:
        """Make one more request, whose answers carry late masks, and check every container's mask."""
        self.runtime.create("last", "last-pod", ())
        for name, mask in self.runtime.masks.items():
            if name.startswith("claim-"):
                assert mask == self.cpus[int(name.split("-")[1])], name
            else:
                assert mask == ONLINE - RESERVED - self.held(), name

    def until(self, condition: Callable[[], bool], dice: random.Random, *, steps: bool = True) -> None:
        """Let random things happen until a condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, {uid: self.log(uid) for uid in self.instances}
            if steps and self.runtime.plugins:
                self.step(dice)
            self.runtime.admit()


@pytest.fixture(params=["", "v0.12.1"], ids=["old NRI", "new NRI"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        store = Store(folder / "store")
        for number in range(CLAIMS):
            store.put(claim(number))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.settimeout(0.005)
        listener.bind(str(folder / "nri.sock"))
        listener.listen()
        kubelet = StandInKubelet(folder / "kubelet" / "plugins_registry")
        stack.callback(kubelet.close)
        node = Node(folder, Runtime(listener, request.param, random.Random(20261120)), kubelet)
        yield node
        for process in node.instances.values():
            process.kill()
            process.wait()
        for plugin in node.runtime.plugins:
            plugin.sock.close()


def register(node: Node, uid: str) -> None:
    """Have kubelet register the instance, which it calls from now on."""
    registration = socket_paths(node.folder / "kubelet", DRIVER, uid).registration
    eventually(registration.is_socket, lambda: node.log(uid))

    def registered() -> bool:
        # A socket exists before it listens; until then kubelet finds only the other instance.
        node.kubelet.register([DRIVER], PATIENCE)
        return "registered driver" in node.log(uid)

    eventually(registered, lambda: node.log(uid))


def test_a_rolling_update_refuses_no_claim_removes_no_slice_and_pins_every_container(node: Node) -> None:
    dice = random.Random(4)
    old = node.start("old")
    register(node, "old")
    node.until(lambda: node.ready("old") == "ready\n", dice)
    published = node.slices()
    assert published

    node.start("new")
    register(node, "new")
    assert node.ready("old") == "ready\n"

    def taken_over() -> bool:
        assert node.slices() == published
        return node.ready("new") == "ready\n"

    node.until(taken_over, dice)
    assert len(node.runtime.plugins) == 2
    assert old.poll() is None, "the older instance ended by itself"
    for _ in range(20):
        node.step(dice)
    old.send_signal(signal.SIGTERM)
    node.until(lambda: old.poll() is not None, dice)
    for _ in range(20):
        node.step(dice)
    assert old.returncode == 0
    assert node.slices() == published
    assert node.ready("new") == "ready\n"
    assert len(node.runtime.plugins) == 1
    assert not socket_paths(node.folder / "kubelet", DRIVER, "old").dra.exists()
    assert [path.name for path in (node.folder / "kubelet" / "plugins_registry").iterdir()] == [
        f"{DRIVER}-new-reg.sock"
    ]
    node.check()
    for uid in node.instances:
        assert "Traceback" not in node.log(uid)
        assert "refused" not in node.log(uid)


def test_the_old_instance_works_on_if_the_new_one_of_an_update_dies(node: Node) -> None:
    dice = random.Random(5)
    node.start("old")
    register(node, "old")
    node.until(lambda: node.ready("old") == "ready\n", dice)
    published = node.slices()
    new = node.start("new")
    register(node, "new")
    node.until(lambda: node.ready("new") == "ready\n", dice)
    new.kill()
    new.wait()
    # kubelet falls back to the instance that it still knows.
    node.kubelet.restart()
    socket_paths(node.folder / "kubelet", DRIVER, "new").registration.unlink()
    register(node, "old")
    node.until(lambda: "takes over" in node.log("old") and node.log("old").count("from now on") == 2, dice, steps=False)
    for _ in range(20):
        node.step(dice)
    node.check()
    assert node.slices() == published
    assert node.ready("old") == "ready\n"
