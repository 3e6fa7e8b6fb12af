"""The GPUs, NICs and interrupts of a described machine, tried with the drivers."""

from pathlib import Path

import pytest

from dranode.api.errors import MachineError, UsageError
from dranode.cpu.options import read_options
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.machine.pci import network_functions, numa_node, pcie_root
from dranode.driver.testing import check_plugin
from dranode.gpu.plugin import plugin
from dranode.sim.machines.forms import open_machine
from dranode.sim.machines.scratch import ScratchMachine

SERVER = "sockets=2,numa=2,cores=8,threads=2"


def gpus(description: str) -> list[tuple[int | None, str | None]]:
    machine = open_machine(description)
    found = plugin(machine, {}).discover().hardware.gpus
    return [(numa_node(machine, gpu.address), pcie_root(machine, gpu.address)) for gpu in found]


@pytest.mark.parametrize(
    ("count", "nodes"), [(1, [0]), (2, [0, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (8, [0, 0, 1, 1, 2, 2, 3, 3])]
)
def test_gpus_are_spread_over_numa_nodes_with_a_pcie_root_each(count: int, nodes: list[int]) -> None:
    found = gpus(f"{SERVER},gpus={count}")
    assert [node for node, _ in found] == nodes
    assert len({root for _, root in found}) == count


def test_the_first_gpu_and_the_first_nic_of_a_node_share_a_pcie_root() -> None:
    description = f"{SERVER},gpus=8,nics=4"
    nics = list(network_functions(open_machine(description)))
    assert [(nic.numa_node, nic.network) for nic in nics] == [(node, (f"nic{node}",)) for node in range(4)]
    assert [nic.bridges[0] for nic in nics] == [root for _, root in gpus(description)[::2]]


def test_the_cpus_of_a_node_are_near_the_pcie_roots_of_its_devices() -> None:
    machine = open_machine("sockets=2,cores=4,gpus=2,nics=2")
    devices = CPUPlugin(machine, read_options({"expose_pcie_roots": True})).discover().devices
    roots = [device.attributes["resource.kubernetes.io/pcieRoot"].strings for device in devices]
    assert roots == [("pci0000:10",), ("pci0000:20",)]


def test_the_largest_machine_has_an_address_for_every_device() -> None:
    machine = open_machine("sockets=8,cores=8,gpus=64,nics=64")
    assert len(machine.listdir("sys/bus/pci/devices")) == 4 * 64  # each behind a port


def test_the_queues_of_a_nic_interrupt_the_cpus_of_its_node() -> None:
    machine = open_machine("sockets=2,cores=2,nics=2,interrupts=1")
    lists = [machine.read_bytes(f"proc/irq/{number}/smp_affinity_list").decode().strip() for number in range(24, 29)]
    assert lists == ["0-3", "0", "1", "2", "3"]
    assert machine.read_bytes("sys/class/net/nic1/queues/tx-1/xps_cpus") == b"00000008\n"


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ("memory=0", "memory=0 in the description .* an amount from 1Mi to 99999Gi"),
        ("memory=64GB", "memory=64GB in the description .* an amount from 1Mi to 99999Gi"),
        ("hugepages2m=-1", "whole number from 0 to"),
        ("memory=4Gi,hugepages-1Gi=5", "has 6Gi of huge pages on each NUMA node, more than its 4Gi of memory"),
        ("memory=1,hugepages1g=1,hugepages2m=1", "has 1026Mi of huge pages on each NUMA node, more than its 1Gi"),
        ("gpus=65", "gpus=65 in the description .* must be a whole number from 0 to 64"),
        ("gpus=2:acme", "gpus=2:acme .* one of the vendors nvidia, amd, intel, such as 4:nvidia"),
        ("vfs=8", "vfs=8 in the description .* must be a whole number from 0 to 7"),
        ("gpus=2:amd,vfs=2", "vfs=2 and GPUs of amd, .*; set gpus=2:intel"),
        ("gpus=2:", "gpus=2: .* one of the vendors"),
        ("nic=2", 'unknown key "nic"; the keys are sockets, .*nics, interrupts'),
    ],
)
def test_memory_and_devices_that_cannot_be_are_refused(description: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        open_machine(description)


@pytest.mark.parametrize(
    ("gpus", "vendor", "count"),
    [("2:nvidia", "nvidia", 2), ("2:amd", "amd", 2), ("2:intel", "intel", 2), ("2:intel,vfs=3", "intel", 8)],
)
def test_gpus_of_each_vendor_are_prepared_and_freed_in_every_mode(
    tmp_path: Path, gpus: str, vendor: str, count: int
) -> None:
    machine = ScratchMachine.copy(open_machine(f"sockets=2,cores=2,gpus={gpus}"), tmp_path / "machine")
    driver = plugin(machine, {})
    assert [gpu.vendor for gpu in driver.discover().hardware.gpus] == [vendor] * count
    config = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig"}
    modes = [{**config, "mode": mode} for mode in ("compute", "graphics", "vfio")]
    check_plugin(driver, tmp_path / "state", modes, machine=machine)


def test_a_machine_is_copied_only_into_a_new_folder(tmp_path: Path) -> None:
    copied = ScratchMachine.copy(open_machine("cores=2,gpus=1"), tmp_path / "machine")
    again = open_machine(f"scratch:{tmp_path / 'machine'}")
    assert copied.device_number("dev/nvidia0") == again.device_number("dev/nvidia0") == ("c", 195, 0)
    with pytest.raises(MachineError, match="machine exists already; choose a new folder"):
        ScratchMachine.copy(open_machine("cores=2"), tmp_path / "machine")
    for other in ("host", str(tmp_path / "machine")):
        with pytest.raises(UsageError, match="use cp -r for a folder"):
            ScratchMachine.copy(open_machine(other), tmp_path / "other")
