"""Bug reports about names and numbers that now mean something else."""

import itertools
import socket
from pathlib import Path

import pytest

from dranode.cdi.directory import read_spec
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.serve import service as service_module
from dranode.driver.serve.service import DriverService
from dranode.driver.serve.spec_watch import SpecWatch
from dranode.gpu.plugin import GPUPlugin
from tests.fakes.cluster import MemoryCluster
from tests.fakes.drivers import Lamps, allocated_claim
from tests.fakes.gpu_machines import hgx
from tests.fakes.node import opened, prepare
from tests.fakes.waiting import eventually


def test_a_claims_spec_gets_the_new_device_numbers_after_the_kernel_driver_was_reloaded(
    tmp_path: Path,
) -> None:
    """Major numbers are assigned when modules are loaded. A restarted container gets the numbers of the spec."""
    machine = hgx()
    node = opened(tmp_path, GPUPlugin(machine.root()))
    prepare(node, allocated_claim("a", "dra.gpu", ["gpu-0000-1b-00-0"]))
    watch = SpecWatch(node, clock=itertools.count(step=100).__next__)
    watch.check()
    (path,) = (tmp_path / "cdi").iterdir()

    def majors() -> dict[str, int | None]:
        devices = read_spec(path).devices
        return {node.path: node.major for device in devices for node in device.container_edits.device_nodes}

    assert majors()["/dev/nvidia-uvm"] == 510
    machine.node("dev/nvidia-uvm", 511, 0)
    watch.check()
    assert majors()["/dev/nvidia-uvm"] == 511
    assert watch.rewritten == 1
    # While the driver is unloaded the spec stays; it is updated when the driver is back.
    machine.remove("dev/nvidia-uvm")
    watch.check()
    assert majors()["/dev/nvidia-uvm"] == 511
    machine.node("dev/nvidia-uvm", 512, 0)
    watch.check()
    assert majors()["/dev/nvidia-uvm"] == 512
    watch.stop()
    node.close()


@pytest.mark.parametrize("which", ["dra", "registration"])
def test_a_driver_exits_when_another_program_replaces_its_socket_and_leaves_that_socket_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A Go driver with the same name takes over the path without checking who listens there."""
    monkeypatch.setattr(service_module, "_HEALTH_SECONDS", 0.01)
    ended: list[str] = []
    sockets = socket_paths(root, Lamps.driver)
    listener = Listener(Lamps.driver, "node", sockets, root / "plugins" / Lamps.driver, ended.append)
    service = DriverService(Lamps(), MemoryCluster(), listener, cdi=root / "cdi")
    service.start()
    path: Path = getattr(sockets, which)
    with socket.socket(socket.AF_UNIX) as successor:
        try:
            path.unlink()
            successor.bind(str(path))
            successor.listen()
            eventually(lambda: ended)
            assert f"{path} was removed or replaced" in ended[0]
        finally:
            service.stop()
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.connect(str(path))
