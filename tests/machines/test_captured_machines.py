"""Captured machines (hwloc's test data, beside the repository) against hwloc's independent answer."""

import json
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.resource import Node, ObjectMeta, ResourceSlice
from dranode.cpu.options import CPUOptions, DeviceMode, GroupBy, Isolation, Threads
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.driver.claims.plugin import Inventory
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_plugins
from dranode.driver.slices.desired import desired_slices
from dranode.driver.slices.plan import complete_slice
from dranode.driver.slices.publishable import publishable
from dranode.gpu.devices import gpu_devices
from dranode.gpu.inventory import GPUInventory
from dranode.gpu.scan import scan
from dranode.memory.devices import memory_devices, memory_left_out, published_memory
from dranode.memory.options import MemoryGroupBy, MemoryOptions
from dranode.memory.sysfs import read_memory
from dranode.sim.allocator.features import Features
from dranode.sim.bundle.offers import offers_for
from dranode.sim.cluster.pods import ClusterDocuments
from dranode.sim.machines.forms import open_machine
from dranode.tools.diagnosis.rules import diagnose
from dranode.tools.readers.capture import record, write_archive
from dranode.tools.readers.examine import judged_options
from dranode.tools.readers.host import NodeHost
from dranode.tools.readers.system import read_system
from tests.fakes.cpu_filling import filled
from tests.fakes.doctor import FakeNode, volume
from tests.fakes.gpu_machines import power

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "machines"
EXPECTED: dict[str, Any] = (
    json.loads((CAPTURES / "expected.json").read_text()) if (CAPTURES / "expected.json").exists() else {}
)
# Without the captures there is a single skipped case, which says so.
NAMES: list[Any] = sorted(EXPECTED) or [
    pytest.param("", marks=pytest.mark.skip(reason="no captured machines in ../shared/machines"))
]

SKIP = pytest.mark.skipif(not EXPECTED, reason="no captured machines in ../shared/machines")

# (archive, key of expected.json) -> (file and its value, the kernel's fact, our answer).
DIFFERENCES = {
    ("64amd64-4s2n4ca2co", "cores"): (
        "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
        "0-1",
        "AMD family 15h: to the kernel the halves of a compute unit are threads, to hwloc cores, for core_id differs",
        [f"{cpu}-{cpu + 1}" for cpu in range(0, 64, 2)],
    ),
}


def archive(name: str) -> str:
    return str(CAPTURES / f"{name}.tar.bz2")


@cache
def captured(name: str) -> Root:
    """A captured machine, unpacked once for all tests."""
    return open_machine(archive(name))


def answer(topology: Topology) -> dict[str, Any]:
    return {
        "cpus": str(topology.online),
        "cores": [str(cpus) for cpus in topology.cores],
        "packages": [str(cpus) for cpus in topology.packages.values()],
        "l3": [str(cpus) for cpus in topology.l3],
        "numa": {str(node): str(cpus) for node, cpus in topology.numa.items()},
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_reader_agrees_with_hwloc_except_for_the_listed_differences(name: str) -> None:
    root = captured(name)
    ours = answer(read_topology(root))
    for key, value in ours.items():
        theirs = EXPECTED[name][key]
        if (name, key) in DIFFERENCES:
            path, content, _, wanted = DIFFERENCES[name, key]
            assert root.read_bytes(path).decode().strip() == content
            assert value == wanted
            assert value != theirs
        elif isinstance(value, list):
            assert set(value) == set(theirs), key
        else:
            assert value == theirs, key


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_of_a_capture_reads_the_same(name: str, tmp_path: Path) -> None:
    root = captured(name)
    copy = tmp_path / "copy.tar.gz"
    write_archive(record(root), copy)
    again = open_machine(str(copy))
    assert read_topology(again) == read_topology(root)
    assert read_memory(again) == read_memory(root)
    assert copy.stat().st_size < 1 << 20


@SKIP
def test_the_special_feature_of_each_capture_is_read() -> None:
    offlines = read_topology(captured("16em64t-4s2c2t-offlines"))
    assert str(offlines.offline) == "2,5,13-14"
    buggy = read_topology(captured("8em64t-2s2ca2c-buggynuma"))
    assert buggy.warnings == ("NUMA nodes 0 and 1 both list cpu0; the lower one is used",)
    gpu_nodes = read_topology(captured("nvidiagpunumanodes"))
    assert gpu_nodes.memory_nodes == {0, 8, *range(250, 256)}
    assert gpu_nodes.smt
    arm = read_topology(captured("128arm-2pa2n8cluster4co"))
    assert list(arm.packages) == [36, 8442]
    assert not arm.smt


# --- The memory of captured machines (hwloc's test data, beside the repository) ---


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


@SKIP
def test_memory_of_gpus_is_not_published() -> None:
    machine = read_memory(captured("nvidiagpunumanodes"))
    assert [device.name for device in memory_devices(machine, MemoryOptions())] == ["memory-numa0", "memory-numa8"]
    assert list(memory_left_out(machine, MemoryOptions())) == [
        "the memory of NUMA nodes without CPUs is in no device: 250-255"
    ]


# --- Everything that captured machines publish can be allocated (hwloc's test data, beside the repository) ---


FORMS = (
    *(
        CPUOptions(group_by=group_by, threads=threads)
        for group_by in GroupBy
        for threads in (Threads.ANY, Threads.FULL_CORE)
    ),
    *(CPUOptions(mode=DeviceMode.INDIVIDUAL, threads=threads) for threads in (Threads.ANY, Threads.FULL_CORE)),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_that_fits_a_captured_machines_slices_is_granted(name: str) -> None:
    machine = read_topology(captured(name))
    for form in FORMS:
        for kept in (
            form,
            form._replace(keep_shared=True),
            form._replace(max_isolation=Isolation.QUIET),
            form._replace(keep_shared=True, reserved=machine.cores[0]),
            form._replace(reserved=CPUSet((machine.online.first(),))),
        ):
            left = filled(machine, kept, cycle((1, 3, 2)))
            lacks = not (kept.keep_shared or kept.reserved or kept.max_isolation is not Isolation.CPUSET)
            assert bool(left) is not lacks, kept


# --- Devices of captured machines that belong together (hwloc's test data, beside the repository) ---


DRIVERS = ("cpu", "memory", "gpu")
ATTRIBUTES = ("resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot")


def published(name: str) -> list[ResourceSlice]:
    slices = []
    for plugin in load_plugins(DRIVERS, captured(name), {"node_name": "n"}):
        specs = desired_slices(plugin.driver, "n", publishable(plugin.discover()))
        slices += [complete_slice(spec, index, len(specs)) for index, spec in enumerate(specs)]
    return slices


@pytest.mark.parametrize("name", NAMES)
def test_bundles_are_all_devices_of_each_value_and_their_templates_fit(name: str) -> None:
    slices = published(name)
    expected: dict[tuple[str, object], set[tuple[str, str]]] = defaultdict(set)
    for one in slices:
        for device in one.spec.devices:
            for attribute in ATTRIBUTES:
                value = device.attributes.get(attribute)
                if value is not None:
                    expected[attribute, value.string if value.int_ is None else value.int_].add(
                        (one.spec.driver, device.name)
                    )
    cluster = ClusterDocuments(tuple(slices), (), (Node(metadata=ObjectMeta(name="n")),), ())
    offers = offers_for(cluster, Features())
    found = {
        (bundle.attribute, bundle.value): {(each.pool.driver, each.device.name) for each in bundle.devices}
        for bundle in offers.bundles
    }
    assert found == expected
    assert len(found) == len(offers.bundles)
    assert [offer.proof.problem for offer in offers.offers if not offer.proof.count] == []
    whole = [offer for offer in offers.offers if offer.shape.name.startswith("numa-node")]
    assert bool(whole) == any(attribute == ATTRIBUTES[0] for attribute, _ in expected)


# --- `doctor` finds nothing on healthy nodes with captured hardware (hwloc's test data, beside the repository) ---


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_node_of_captured_hardware_has_no_findings(name: str) -> None:
    machine = captured(name)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="d") as folder:
        node = FakeNode(Path(folder), stack)
        facts = node.facts()
        options, _ = judged_options(("cpu",), machine, "worker", node.options)
        unseen: list[str] = []
        # Findings about the hardware's own files: isolated CPUs and cgroups.
        system = read_system(NodeHost(Path(folder), machine), options, unseen, statvfs=volume)
        assert options.refusals == ()
        found = diagnose(type(facts)(options, facts.kubelet, facts.runtime, facts.node, facts.cluster, system))
    # One capture has contradictory NUMA nodes, which the driver logs.
    odd = ["hardware-odd"] if "buggynuma" in name else []
    assert [finding.code for finding in found if finding.code != "cgroup-v1"] == odd
    # A capture has no processes.
    assert [sentence for sentence in unseen if "CPU affinity" not in sentence] == []


# --- GPUs on captured machines; the captures are only beside the repository ---


@SKIP
def test_gpus_with_numa_nodes_are_read_like_the_made_up_machine() -> None:
    found = scan(captured("nvidiagpunumanodes"))
    assert found == scan(power().root())
    assert [gpu.memory_node for gpu in found.gpus] == [255, 254, 253, 252, 251, 250]
    numbers = [device.attributes["resource.kubernetes.io/numaNode"].int_ for device in gpu_devices(found, shared=False)]
    assert numbers == [0, 0, 0, 8, 8, 8]


@SKIP
@pytest.mark.parametrize("name", ["40intel64-2g2n4c+pcilocality", "2pa-pcidomain32bits"])
def test_displays_of_boards_and_hypervisors_are_not_gpus(name: str) -> None:
    assert scan(captured(name)) == GPUInventory()
