"""The memory of captured machines (hwloc's test data, beside the repository)."""

import pytest

from dranode.cpu.sysfs import read_topology
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.publishable import publishable
from dranode.memory.devices import memory_devices, memory_left_out, published_memory
from dranode.memory.options import MemoryGroupBy, MemoryOptions
from dranode.memory.sysfs import read_memory
from tests.machines.test_captured_machines import EXPECTED, NAMES, captured


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_driver_reads_the_same_numa_nodes_as_the_cpu_driver(name: str) -> None:
    root = captured(name)
    memory, topology = read_memory(root), read_topology(root)
    assert {node.id for node in memory.nodes} == topology.memory_nodes
    # Where two nodes list a CPU, the CPU driver assigns it to one of them; the other's memory exists all the same.
    claimed_twice = any("both list" in warning for warning in topology.warnings)
    with_cpus = {node.id for node in memory.nodes if node.cpus}
    assert with_cpus >= set(topology.numa) & topology.memory_nodes
    assert claimed_twice or with_cpus == set(topology.numa) & topology.memory_nodes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group_by", list(MemoryGroupBy))
def test_all_memory_is_published_or_reported_as_left_out(name: str, group_by: MemoryGroupBy) -> None:
    options = MemoryOptions(group_by=group_by, numa_node_list=True)
    machine = read_memory(captured(name))
    devices = memory_devices(machine, options)
    inventory = Inventory(tuple(published_memory(device, options) for device in devices))
    assert publishable(inventory) == inventory
    total = sum(node.total - node.unseen for node in machine.nodes if any(node in each.nodes for each in devices))
    lost = total - sum(device.size for device in devices)
    assert 0 <= lost <= sum(device.step - 1 for device in devices)
    assert devices or list(memory_left_out(machine, options))


@pytest.mark.skipif(not EXPECTED, reason="no captured machines in ../shared/machines")
def test_memory_of_gpus_is_not_published() -> None:
    machine = read_memory(captured("nvidiagpunumanodes"))
    assert [device.name for device in memory_devices(machine, MemoryOptions())] == ["memory-numa0", "memory-numa8"]
    assert list(memory_left_out(machine, MemoryOptions())) == [
        "NUMA nodes 250-255 have memory and no CPU: they are in no device"
    ]
