"""Bug reports about unusual hardware and firmware."""

import pytest

from dranode.api.cpuset import CPUSet, mask_text
from dranode.api.errors import ClaimConflictError, MachineError
from dranode.api.resource import DeviceRequestAllocationResult, ResourceClaimConsumerReference
from dranode.cpu.sysfs import read_topology
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult, Config
from dranode.driver.claims.held import ClaimRef, Held, HeldDevice, Holding
from dranode.driver.claims.record import ClaimState, record_of
from dranode.driver.machine.pci import pcie_root, read_function
from dranode.gpu.config import parse_gpu_config
from dranode.gpu.grants import gpu_sources, grant_gpus
from dranode.gpu.scan import scan
from dranode.memory.devices import memory_impairments, memory_inventory
from dranode.memory.options import MemoryOptions
from dranode.memory.sysfs import read_memory
from dranode.sim.machines.tree import Link
from tests.fakes.gpu import NVIDIA, VGA, Machine
from tests.fakes.gpu_machines import hgx
from tests.fakes.machine import CPU, cpu_files, machine
from tests.fakes.memory import claim, granted, node_files, result

HOLDER = ClaimRef("team", "holder", "uid-holder")
PASSED = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GPUConfig", "mode": "vfio"}


def test_a_cpu_without_topology_files_belongs_to_the_package_that_lists_it() -> None:
    """A CPU is online and has no topology folder. A package of its own would be a socket too many."""
    files = {f"{CPU}/online": "0-3", f"{CPU}/cpu3/uevent": ""}
    for cpu in range(3):
        files |= cpu_files(cpu, physical_package_id="1", package_cpus_list="0-3")
    topology = read_topology(machine(files))
    assert topology.packages == {1: CPUSet(range(4))}
    assert topology.warnings == ("CPUs 3 have no physical_package_id, but other CPUs have one",)


@pytest.mark.parametrize(
    "above",
    [
        "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/000000c1-0001-0000-3130-444532304235",
        "platform/d0070000.pcie",
    ],
)
def test_a_pcie_root_below_a_hypervisors_bus_or_a_platform_controller_is_found(above: str) -> None:
    function = "0001:00:00.0"
    folder = f"sys/devices/{above}/pci0001:00/{function}"
    root = machine({f"{folder}/numa_node": "-1"}, {f"sys/bus/pci/devices/{function}": f"../../../{folder[4:]}"})
    assert pcie_root(root, function) == "pci0001:00"
    assert read_function(root, function).bridges == ("pci0001:00",)


def test_a_gpu_with_mig_instances_is_not_published_as_a_whole() -> None:
    """A program finds no GPU in a container that has the node of such a GPU but none of its instances."""
    server = hgx()
    for path in ("gpu1/mig/gi1/access", "gpu1/mig/gi1/ci0/access", "gpu1/mig/gi13/access"):
        server.put(f"proc/driver/nvidia/capabilities/{path}", "DeviceFileMinor: 30")
    server.put("proc/driver/nvidia/capabilities/gpu2/mig", {})
    inventory = scan(server.root())
    assert len(inventory.gpus) == 7
    assert list(inventory.left_out) == ["0000:43:00.0"]
    assert "MIG is on, with 2 instances" in inventory.left_out["0000:43:00.0"]


def test_nvidia_device_nodes_that_systemd_would_revoke_are_named() -> None:
    """A runtime names device nodes to systemd by links in /dev/char; a daemon-reload revokes nodes without a link."""
    server = hgx()
    assert scan(server.root()).warnings == ()
    for minor in range(6):
        # A driver in a container has its nodes there, where this process does not see them.
        folder = "/run/nvidia/driver/dev" if minor > 2 else ".."
        server.put(f"dev/char/195:{minor}", Link(f"{folder}/nvidia{minor}"))
    (warning,) = scan(server.root()).warnings
    assert "195:6, 195:7" in warning
    assert "daemon-reload" in warning


def test_held_memory_stays_healthy_when_the_last_cpu_of_its_numa_node_goes_offline() -> None:
    asked = claim([result("memory-numa1", "1Gi")])
    pods = (ResourceClaimConsumerReference(resource="pods", name="p", uid="u"),)
    record = record_of(asked, granted(asked), pods, ClaimState.COMPLETED)

    def impairments(online: str, gib: int = 4) -> list[str]:
        files = {f"{CPU}/online": online, **node_files(0, "0-1"), **node_files(1, "2-3", gib)}
        inventory = memory_inventory(read_memory(machine(files)), MemoryOptions())
        return [each.message for each in memory_impairments(inventory, (record,))]

    assert impairments("0-3") == impairments("0-1") == []
    assert "but the machine has only 0 for claims now" in impairments("0-1", gib=0)[0]


@pytest.mark.parametrize(("group", "conflict"), [(15, True), (16, False), (None, False)])
def test_gpus_of_one_iommu_group_are_not_given_to_two_virtual_machines(group: int | None, conflict: bool) -> None:  # noqa: FBT001 - a table
    node = Machine()
    node.numa(0, "0-3")
    node.driver("vfio-pci")
    for address, its in (("0000:01:00.0", None if group is None else 15), ("0000:02:00.0", group)):
        node.pci(address, NVIDIA, 0x2571, VGA, driver="vfio-pci", group=its)
    config = Config("FromClaim", parse_gpu_config(Config("FromClaim", PASSED, "config[0]")), "config[0]")
    gpus = scan(node.root())

    def give(*devices: str, held: Held) -> None:
        results = (
            DeviceRequestAllocationResult(request="vm", driver="dra.gpu", pool="node", device=each) for each in devices
        )
        asked = AllocatedClaim(
            ClaimRef("team", "vm", "uid-vm"), tuple(AllocatedResult(each, (config,)) for each in results)
        )
        grant_gpus(asked, held, gpus, dict.fromkeys(("0000:01:00.0", "0000:02:00.0"), "vfio-pci"))

    first, second = (gpu.name for gpu in gpus.gpus)
    give(first, second, held=Held())
    held = Held.of((Holding(HOLDER, (HeldDevice(first, gpu_sources(first, None)),)),))
    if not conflict:
        give(second, held=held)
        return
    with pytest.raises(ClaimConflictError, match="of the same IOMMU group"):
        give(second, held=held)


@pytest.mark.parametrize("mask", [True, False], ids=["with a mask", "without"])
def test_a_cpu_list_that_an_old_kernel_truncated_is_not_trusted(*, mask: bool) -> None:
    """Every second CPU of 2,048 is a list of more than a page, which kernels before 5.15 truncate within a number."""
    even, odd = (CPUSet(range(first, 2048, 2)) for first in (0, 1))
    files = {f"{CPU}/online": "0-2047"}
    for node, cpus in enumerate((even, odd)):
        whole = ",".join(str(cpu) for cpu in cpus)
        assert len(whole) > 4096
        files[f"sys/devices/system/node/node{node}/cpulist"] = whole[:4095]
        if mask:
            files[f"sys/devices/system/node/node{node}/cpumap"] = mask_text(cpus)
    if mask:
        assert read_topology(machine(files)).numa == {0: even, 1: odd}
    else:
        with pytest.raises(MachineError, match=r"4095 characters, where kernels before 5\.15 cut a list"):
            read_topology(machine(files))
