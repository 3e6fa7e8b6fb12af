"""`dranode topology --links` on made-up and damaged machines."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dranode.api.errors import MachineError
from dranode.driver.cli.commands import cli
from tests.fakes.doctor import forbid
from tests.fakes.gpu import INTEL, Machine
from tests.fakes.gpu_machines import hgx

NIC = 0x020000
NODES = "sys/devices/system/node"


def server() -> Machine:
    """Eight GPUs, a NIC beside the first of them below one port, and a NIC on its own root complex."""
    made = hgx()
    folder = made.pci("0000:1b:00.1", INTEL, 0x1592, NIC, root="pci0000:19", bridges=("0000:19:01.0",), node=0)
    made.put(f"{folder}/net/eth0/mtu", "1500")
    made.pci("0000:e0:00.0", INTEL, 0x1592, NIC, root="pci0000:de", node=1)
    made.put(f"{NODES}/node0/meminfo", "Node 0 MemTotal:       1048576 kB")
    return made


def ask(machine: Machine, folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(
        cli, ["topology", "--links", "--machine", str(machine.write(folder / "machine")), *arguments]
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def document(machine: Machine, folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ask(machine, folder, "-o", "json"))
    return answer


def test_a_nic_is_next_to_the_gpu_below_its_port_and_far_from_the_other_sockets(tmp_path: Path) -> None:
    found = {one["name"]: one for one in document(server(), tmp_path)["devices"]}
    eth0 = found["eth0"]
    assert (eth0["driver"], eth0["numaNode"], eth0["cpus"], eth0["pcieRoot"]) == (None, 0, "0-55", "pci0000:19")
    assert (eth0["link"], eth0["linkNow"]) == (
        {"gigatransfers": 32.0, "lanes": 16},
        {"gigatransfers": 2.5, "lanes": 16},
    )
    near = {name: between for name, between in eth0["proximity"].items() if name.startswith("gpu-")}
    assert sorted(near.values()) == ["NODE"] * 3 + ["PIX"] + ["SYS"] * 4
    assert near["gpu-0000-1b-00-0"] == "PIX"
    assert found["0000:e0:00.0"]["proximity"]["eth0"] == "SYS"


def test_numa_nodes_have_their_cpus_memory_and_distances(tmp_path: Path) -> None:
    assert document(server(), tmp_path)["numaNodes"] == [
        {"number": 0, "cpus": "0-55", "memoryBytes": 1 << 30, "distances": {"0": 10, "1": 20}},
        {"number": 1, "cpus": "56-111", "memoryBytes": None, "distances": {"0": 20, "1": 10}},
    ]


def test_unreported_links_are_unknown(tmp_path: Path) -> None:
    made = server()
    made.remove("sys/devices/pci0000:19/0000:19:01.0/0000:1b:00.1/max_link_speed")
    made.remove("sys/devices/pci0000:19/0000:19:01.0/0000:1b:00.1/current_link_width")
    made.put("sys/devices/pci0000:de/0000:e0:00.0/numa_node", "-1")
    made.put(f"{NODES}/node1/distance", "20")
    found = document(made, tmp_path)
    devices = {one["name"]: one for one in found["devices"]}
    assert devices["eth0"]["link"] == {"gigatransfers": None, "lanes": None}
    assert devices["eth0"]["linkNow"] == {"gigatransfers": 2.5, "lanes": None}
    assert (devices["0000:e0:00.0"]["numaNode"], devices["0000:e0:00.0"]["proximity"]["eth0"]) == (None, "?")
    assert found["numaNodes"][1]["distances"] == {}


def test_a_numa_node_without_visible_distances_is_named(tmp_path: Path) -> None:
    made = server()
    said = "dranode: it is unknown how far the NUMA nodes 1 are from others"
    for row, known in (("20 10", True), ("20", False)):
        made.put(f"{NODES}/node1/distance", row)
        folder = made.write(tmp_path / str(known))
        assert (said in CliRunner().invoke(cli, ["topology", "--links", "--machine", str(folder)]).stderr) is not known


def test_the_table_has_a_column_for_each_device_and_explains_its_words(tmp_path: Path) -> None:
    drawn = ask(server(), tmp_path)
    assert "32 GT/s x16" in drawn
    for words in ("PIX    at most one PCIe switch", "SYS    the link between NUMA nodes", "1.0 GiB"):
        assert words in drawn
    assert "PHB" not in drawn


def test_omitted_links_are_mentioned_if_there_may_be_some(tmp_path: Path) -> None:
    beside = "links other than PCIe, such as NVLink and xGMI"
    assert f"Not checked: {beside}. Devices may be closer" in ask(server(), tmp_path / "text")
    assert document(server(), tmp_path / "document")["notSeen"] == [beside]
    alone = Machine()
    alone.numa(0, "0-3")
    folder = alone.pci("0000:1b:00.1", INTEL, 0x1592, NIC, root="pci0000:19", bridges=("0000:19:01.0",), node=0)
    alone.put(f"{folder}/net/eth0/mtu", "1500")
    assert "Not checked" not in ask(alone, tmp_path / "alone")
    assert document(alone, tmp_path / "again")["notSeen"] == []


def test_a_machine_without_pci_has_its_numa_nodes(tmp_path: Path) -> None:
    made = Machine()
    made.numa(0, "0-3")
    drawn = ask(made, tmp_path)
    assert "no network controller" in drawn
    assert "0-3" in drawn


def test_a_machine_without_visible_numa_nodes_is_reported_as_such(tmp_path: Path) -> None:
    made = Machine()
    made.put("sys/devices/system/cpu/online", "0-3")
    done = CliRunner().invoke(cli, ["topology", "--links", "--machine", str(made.write(tmp_path / "machine"))])
    assert done.exit_code == 0
    said = "dranode: it is unknown where CPUs and memory are: /sys/devices/system/node has no NUMA node"
    assert said in done.stderr


def test_unreadable_pci_devices_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = server().write(tmp_path / "machine")
    forbid(monkeypatch, folder / "sys/bus/pci/devices")
    done = CliRunner().invoke(cli, ["topology", "--links", "--machine", str(folder)])
    assert isinstance(done.exception, MachineError)
    assert "sys/bus/pci/devices" in str(done.exception)
