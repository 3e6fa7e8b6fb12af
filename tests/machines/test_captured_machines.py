"""Captured machines (hwloc's test data, beside the repository) against hwloc's independent answer."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.driver.machine.root import Root
from dranode.memory.sysfs import read_memory
from dranode.sim.machines.forms import open_machine
from dranode.tools.readers.capture import record, write_archive

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "machines"
EXPECTED: dict[str, Any] = (
    json.loads((CAPTURES / "expected.json").read_text()) if (CAPTURES / "expected.json").exists() else {}
)
# Without the captures there is a single skipped case, which says so.
NAMES: list[Any] = sorted(EXPECTED) or [
    pytest.param("", marks=pytest.mark.skip(reason="no captured machines in ../shared/machines"))
]

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


@pytest.mark.skipif(not EXPECTED, reason="no captured machines in ../shared/machines")
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
