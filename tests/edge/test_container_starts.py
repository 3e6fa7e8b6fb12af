"""Settings of a container's cgroup are applied when the container starts, not at the next periodic check."""

import socket
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import pytest

from dranode.api.resource import ResourceClaim, ResourceClaimConsumerReference
from dranode.cpu.options import read_options
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Prepared
from dranode.driver.claims.hooks import Notes
from dranode.driver.claims.record import Record
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.podresources import PodResources
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.serve import service as serving
from dranode.driver.serve.nri_plugin import ContainerAccess
from dranode.driver.serve.service import DriverService
from dranode.proto import nri_v1alpha1_pb2 as nri
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import ApiClaims, KubeletPods
from tests.fakes.nri import FakeRuntime, container, pod
from tests.fakes.settings import Kernel, quiet_claim
from tests.fakes.waiting import PATIENCE, eventually

BOX = pod("pod-uid")


def reserved(claim: ResourceClaim) -> ResourceClaim:
    """The claim, reserved for the pod."""
    consumer = ResourceClaimConsumerReference(resource="pods", name="box", uid="pod-uid")
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=(consumer,)))


QUIET = reserved(quiet_claim("quiet", "2-3"))
PLAIN = reserved(quiet_claim("plain", "5", isolation="cpuset"))


class Counting(CPUPlugin):
    """A CPU driver that counts how often it checks the settings."""

    looks = 0

    def tune(self, claims: Collection[Record], notes: Notes) -> None:
        super().tune(claims, notes)
        self.looks += 1


@pytest.fixture
def plugin() -> Counting:
    options = read_options({"group_by": "machine", "max_isolation": "partition"})
    return Counting(open_machine("sockets=1,cores=8"), options, host=Kernel())


@pytest.fixture
def runtime(plugin: Counting, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    monkeypatch.setattr(serving, "_HEALTH_SECONDS", 3600.0)
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
        folder = Path(name)
        (folder / "plugins_registry").mkdir()
        listener.settimeout(PATIENCE)
        listener.bind(str(folder / "nri.sock"))
        listener.listen()
        pods = KubeletPods(folder / "pod-resources" / "kubelet.sock")
        paths = socket_paths(folder, plugin.driver, "")
        service = DriverService(
            plugin,
            ApiClaims(QUIET, PLAIN),
            Listener(plugin.driver, "node", paths, folder / "plugins" / plugin.driver, pytest.fail, rolling=False),
            cdi=folder / "cdi",
            pod_resources=PodResources(pods.socket),
            containers=ContainerAccess(str(folder / "nri.sock"), open_machine("sockets=1,cores=8")),
        )
        service.start()
        connection, _ = listener.accept()
        runtime = FakeRuntime(connection)
        runtime.handshake([BOX], [], "v0.12.1")
        eventually(lambda: service.pinning is not None and service.pinning.synchronized)
        for claim in (QUIET, PLAIN):
            answers = service.node.prepare({reference(claim): claim})
            assert isinstance(answers[claim.metadata.uid], Prepared), answers
        yield runtime
        service.stop()
        pods.close()
        connection.close()


def starts(runtime: FakeRuntime, name: str, claim: ResourceClaim, cpus: str) -> nri.Container:
    """Have the runtime create and start a container with a claim."""
    made = container(name, "pod-uid", (f"DRA_CPUSET_{claim.metadata.uid}={cpus}",))
    assert runtime.create(made, BOX).adjust.linux.resources.cpu.cpus == cpus
    runtime.call("StartContainer", nri.ContainerEvent(pod=BOX, container=made))
    return made


def test_settings_are_applied_as_soon_as_a_container_starts(runtime: FakeRuntime, plugin: Counting) -> None:
    looks = plugin.looks
    starts(runtime, "plain", PLAIN, "5")
    made = starts(runtime, "quiet", QUIET, "2-3")
    eventually(lambda: plugin.looks == looks + 1)
    runtime.call("PostStartContainer", nri.ContainerEvent(pod=BOX, container=made))
    eventually(lambda: plugin.looks == looks + 2)
