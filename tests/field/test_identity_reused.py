"""Reports about names and numbers that stand for something else by now."""

from __future__ import annotations

import itertools
from pathlib import Path

from dranode.cdi.directory import read_spec
from dranode.driver.serve.spec_watch import SpecWatch
from dranode.gpu.plugin import GPUPlugin
from tests.fakes.drivers import allocated_claim
from tests.fakes.gpu_machines import hgx
from tests.fakes.node import opened, prepare


def test_device_nodes_that_have_other_numbers_since_their_kernel_driver_was_loaded_again_are_in_the_claims_spec(
    tmp_path: Path,
) -> None:
    """Major numbers are given out as modules are loaded. A container that starts again has those of the spec."""
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
    # While the driver is away the spec stays, and it follows when the driver is back.
    machine.remove("dev/nvidia-uvm")
    watch.check()
    assert majors()["/dev/nvidia-uvm"] == 511
    machine.node("dev/nvidia-uvm", 512, 0)
    watch.check()
    assert majors()["/dev/nvidia-uvm"] == 512
    watch.stop()
    node.close()
