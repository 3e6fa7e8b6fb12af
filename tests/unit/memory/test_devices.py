import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.resource import Device, DeviceAttribute
from dranode.driver.claims.plugin import Inventory
from dranode.driver.machine.folder import HostRoot
from dranode.driver.slices.publishable import publishable
from dranode.memory.devices import memory_devices, memory_left_out, published_memory
from dranode.memory.machine import MachineMemory, MemoryNode, PagePool
from dranode.memory.options import ORDINARY, MemoryGroupBy, MemoryOptions, parse_reserved
from dranode.memory.plugin import MemoryPlugin
from dranode.memory.sysfs import read_memory
from dranode.sim.machines.forms import open_machine
from tests.fakes.machine import write_machine
from tests.fakes.memory import GIB, MIB

NUMA = MemoryOptions()
SOCKET = MemoryOptions(group_by=MemoryGroupBy.SOCKET)
MACHINE = MemoryOptions(group_by=MemoryGroupBy.MACHINE)
LISTS = MemoryOptions(numa_node_list=True)
FOUR = read_memory(open_machine("sockets=2,numa=2,cores=4,memory=8,hugepages2m=64,hugepages1g=2"))


def devices(options: MemoryOptions, machine: MachineMemory = FOUR) -> dict[str, Device]:
    return {device.name: published_memory(device, options) for device in memory_devices(machine, options)}


def sizes(options: MemoryOptions, machine: MachineMemory = FOUR) -> dict[str, str]:
    return {name: str(device.capacity["size"].value) for name, device in devices(options, machine).items()}


def attribute(options: MemoryOptions, device: str, name: str) -> DeviceAttribute | None:
    return devices(options)[device].attributes.get(name)


def test_every_node_has_a_device_of_each_kind_of_memory() -> None:
    assert sizes(NUMA) == {
        **{f"memory-numa{node}": "6016Mi" for node in range(4)},
        **{f"hugepages-2m-numa{node}": "128Mi" for node in range(4)},
        **{f"hugepages-1g-numa{node}": "2Gi" for node in range(4)},
    }


def test_sockets_and_the_machine_have_the_sum_of_their_nodes() -> None:
    assert sizes(SOCKET) == {
        **dict.fromkeys(("memory-socket0", "memory-socket1"), "12032Mi"),
        **dict.fromkeys(("hugepages-2m-socket0", "hugepages-2m-socket1"), "256Mi"),
        **dict.fromkeys(("hugepages-1g-socket0", "hugepages-1g-socket1"), "4Gi"),
    }
    assert sizes(MACHINE) == {
        "memory-machine": "24064Mi",
        "hugepages-2m-machine": "512Mi",
        "hugepages-1g-machine": "8Gi",
    }


def test_reserved_memory_is_not_published() -> None:
    reserved = parse_reserved("0:memory=1Gi,hugepages-2Mi=128Mi;1:1Gi,hugepages-1Gi=1Gi")
    found = sizes(replace(NUMA, reserved=reserved))
    assert [found.get(f"memory-numa{node}") for node in range(3)] == ["4992Mi", "4992Mi", "6016Mi"]
    # A pool with nothing left is not a device.
    assert [found.get(f"hugepages-2m-numa{node}") for node in range(2)] == [None, "128Mi"]
    assert [found.get(f"hugepages-1g-numa{node}") for node in range(2)] == ["2Gi", "1Gi"]
    assert sizes(replace(MACHINE, reserved=reserved))["memory-machine"] == "22016Mi"


def test_pages_that_others_use_are_published_neither_as_pages_nor_as_memory() -> None:
    machine = MachineMemory((MemoryNode(0, 4 * GIB, {2 * MIB: PagePool(512, others=12)}),))
    assert sizes(NUMA, machine) == {"memory-numa0": "3Gi", "hugepages-2m-numa0": "1000Mi"}


def test_amounts_are_whole_steps() -> None:
    machine = MachineMemory((MemoryNode(0, 4 * GIB + 300, {2 * MIB: PagePool(1)}),))
    found = devices(NUMA, machine)
    assert str(found["memory-numa0"].capacity["size"].value) == "4094Mi"
    policy = found["memory-numa0"].capacity["size"].request_policy
    assert policy is not None
    assert policy.valid_range is not None
    assert (str(policy.default), str(policy.valid_range.min), str(policy.valid_range.step)) == ("1Mi", "1Mi", "1Mi")
    # A single page has no range: the API server requires a step above the minimum.
    alone = found["hugepages-2m-numa0"].capacity["size"].request_policy
    assert alone is not None
    assert (alone.valid_range, [str(value) for value in alone.valid_values]) == (None, ["2Mi"])


def test_attributes_have_page_size_and_place() -> None:
    huge = devices(NUMA)["hugepages-2m-numa3"].attributes
    assert huge == {
        "dra.memory/pageSize": DeviceAttribute(string="2m"),
        "dra.memory/hugeTLB": DeviceAttribute(bool_=True),
        "resource.kubernetes.io/numaNode": DeviceAttribute(int_=3),
        "dra.memory/socketID": DeviceAttribute(int_=1),
    }
    assert attribute(NUMA, "memory-numa0", "dra.memory/pageSize") is None
    assert attribute(NUMA, "memory-numa0", "dra.memory/hugeTLB") == DeviceAttribute(bool_=False)


def test_the_numa_node_is_a_number_or_a_list_with_near_nodes() -> None:
    name = "resource.kubernetes.io/numaNode"
    assert attribute(LISTS, "memory-numa2", name) == DeviceAttribute(ints=(2, 3))
    assert attribute(SOCKET, "memory-socket1", name) is None
    assert attribute(replace(SOCKET, numa_node_list=True), "memory-socket1", name) == DeviceAttribute(ints=(2, 3))
    assert attribute(replace(MACHINE, numa_node_list=True), "memory-machine", name) == DeviceAttribute(
        ints=(0, 1, 2, 3)
    )


def test_attribute_names_of_other_drivers_are_published_on_demand() -> None:
    theirs = ("dra.memory/numaNode", "dra.cpu/numaNode", "dra.cpu/numaNodeID", "dra.net/numaNode")
    compat = MemoryOptions(compat_attributes=True)
    assert [attribute(compat, "memory-numa1", name) for name in theirs] == [DeviceAttribute(int_=1)] * 4
    assert attribute(compat, "hugepages-1g-numa1", "resource.kubernetes.io/pageSize") == DeviceAttribute(string="1g")
    assert attribute(compat, "hugepages-1g-numa1", "resource.kubernetes.io/hugeTLB") == DeviceAttribute(bool_=True)
    assert not set(devices(NUMA)["memory-numa1"].attributes) & {*theirs, "resource.kubernetes.io/pageSize"}


def test_claims_count_against_the_node_by_the_resource_of_their_page_size() -> None:
    mapped = devices(MemoryOptions(node_allocatable_mapping=True))
    assert list(mapped["memory-numa0"].node_allocatable_resources) == ["memory"]
    assert list(mapped["hugepages-2m-numa0"].node_allocatable_resources) == ["hugepages-2Mi"]
    mapping = mapped["hugepages-1g-numa0"].node_allocatable_resources["hugepages-1Gi"].mapping
    assert mapping is not None
    assert (mapping.capacity_key, str(mapping.capacity_multiplier)) == ("size", "1")
    assert devices(NUMA)["memory-numa0"].node_allocatable_resources == {}


def test_a_node_whose_memory_is_all_reserved_or_huge_pages_is_named() -> None:
    machine = MachineMemory((MemoryNode(0, 4 * GIB, {2 * MIB: PagePool(1024)}), MemoryNode(1, 4 * GIB)))
    for reserved, said in ((3 * GIB, True), (2 * GIB - MIB, False)):
        options = MemoryOptions(reserved={(0, ORDINARY): reserved, (1, ORDINARY): GIB})
        names = [device.name for device in memory_devices(machine, options)]
        assert ("memory-numa0" not in names) is said
        assert (
            list(memory_left_out(machine, options))
            == ["no claim gets ordinary memory of NUMA nodes 0: --reserved-memory reserves all of it"] * said
        )


def test_memory_without_cpus_is_not_published_and_named() -> None:
    # A GPU's memory, or memory attached by CXL.
    machine = MachineMemory((MemoryNode(0, GIB), MemoryNode(1, GIB, cpus=False)))
    assert sizes(NUMA, machine) == {"memory-numa0": "1Gi"}
    assert list(memory_left_out(machine, NUMA)) == ["the memory of NUMA nodes without CPUs is in no device: 1"]


def test_a_node_whose_socket_is_unknown_is_in_no_socket_and_named() -> None:
    machine = MachineMemory((MemoryNode(0, GIB, socket=0), MemoryNode(1, GIB)))
    assert sizes(SOCKET, machine) == {"memory-socket0": "1Gi"}
    assert len(list(memory_left_out(machine, SOCKET))) == 1
    assert list(memory_left_out(machine, NUMA)) == []


@pytest.mark.parametrize("group_by", list(MemoryGroupBy))
@pytest.mark.parametrize("every", [False, True])
def test_published_devices_are_valid(group_by: MemoryGroupBy, *, every: bool) -> None:
    options = MemoryOptions(
        group_by=group_by, numa_node_list=every, compat_attributes=every, node_allocatable_mapping=every
    )
    inventory = Inventory(tuple(devices(options).values()))
    assert publishable(inventory) == inventory


def test_memory_of_nodes_that_pods_may_not_use_is_not_published(tmp_path: Path) -> None:
    write_machine(tmp_path, "sockets=2,numa=1,cores=2,memory=8,hugepages2m=64")
    cgroup = tmp_path / "sys/fs/cgroup/cpuset/kubepods"
    cgroup.mkdir(parents=True)
    (cgroup / "cpuset.effective_mems").write_text("1\n")
    made = MemoryPlugin(HostRoot(str(tmp_path)), NUMA)
    inventory = made.discover()
    assert all(device.name.endswith("-numa1") for device in inventory.devices)
    assert made.pool(inventory).mems == CPUSet((1,))
    problem = next(each for each in made.problems(inventory) if each.code == "pods-cgroup-memory")
    assert problem.what in inventory.warnings
    assert "NUMA nodes 0" in problem.what
    assert "/sys/fs/cgroup/cpuset/kubepods" in problem.what
    # Reserving memory on that node is not an error, since the cgroup may change.
    kept = MemoryPlugin(HostRoot(str(tmp_path)), replace(NUMA, reserved=parse_reserved("0:1Gi"))).discover()
    assert all(device.name.endswith("-numa1") for device in kept.devices)


def test_memory_is_read_again_when_the_nodes_of_pods_change(tmp_path: Path) -> None:
    write_machine(tmp_path, "sockets=2,numa=1,cores=2,memory=8")
    cgroup = tmp_path / "sys/fs/cgroup/cpuset/kubepods"
    cgroup.mkdir(parents=True)
    (cgroup / "cpuset.effective_mems").write_text("0-1\n")
    made = MemoryPlugin(HostRoot(str(tmp_path)), NUMA)
    made.discover()
    (cgroup / "cpuset.effective_mems").write_text("0\n")
    next(made.watch(threading.Event()))
    assert all(device.name.endswith("-numa0") for device in made.discover().devices)
