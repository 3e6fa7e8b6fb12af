"""Where PCI functions are: the root complex and the NUMA node, from sysfs."""

import pytest

from dranode.driver import Root, numa_node, pcie_root
from tests.fakes.machine import machine

ADDRESS = "0000:17:00.0"
FOLDER = f"sys/devices/pci0000:16/0000:16:01.0/{ADDRESS}"
LINK = {f"sys/bus/pci/devices/{ADDRESS}": f"../../../devices/pci0000:16/0000:16:01.0/{ADDRESS}"}
NODES = {
    "sys/devices/system/node/node0/cpumap": "0f",
    "sys/devices/system/node/node1/cpumap": "f0",
    "sys/devices/system/node/node9/cpumap": "00",
}


def server(files: dict[str, str], nodes: dict[str, str] = NODES) -> Root:
    placed = {f"{FOLDER}/{name}": content for name, content in files.items()}
    return machine({f"{FOLDER}/class": "0x030000", **placed, **nodes}, LINK)


def test_the_root_complex_comes_from_the_target_of_the_functions_link() -> None:
    assert pcie_root(server({}), ADDRESS) == "pci0000:16"


@pytest.mark.parametrize(
    ("link", "address"),
    [
        (None, ADDRESS),
        (f"../../../devices/pci10000:e0/10000:e0:06.0/{ADDRESS}", ADDRESS),
        (f"../../../devices/platform/soc/{ADDRESS}", ADDRESS),
        ("../../../devices/pci0000:16/0000:17:00.1", ADDRESS),
        (None, "no address"),
    ],
    ids=["no such function", "an extended domain", "no PCI bridge", "another function", "no address"],
)
def test_an_unknown_root_complex_is_none(link: str | None, address: str) -> None:
    links = {f"sys/bus/pci/devices/{ADDRESS}": link} if link else {}
    assert pcie_root(machine({"proc/x": ""}, links), address) is None


@pytest.mark.parametrize(
    ("files", "node"),
    [
        ({"numa_node": "1"}, 1),
        ({"numa_node": "-1", "local_cpus": "0f"}, None),
        # A GPU's own memory is a NUMA node without CPUs.
        ({"numa_node": "9", "local_cpus": "f0"}, 1),
        ({"local_cpus": "0f"}, 0),
        ({"local_cpus": "60"}, 1),
        ({"local_cpus": "ff"}, None),
        ({"local_cpus": "00"}, None),
        ({"numa_node": "near"}, None),
        ({}, None),
    ],
)
def test_the_numa_node_is_that_of_the_functions_local_cpus(files: dict[str, str], node: int | None) -> None:
    assert numa_node(server(files), ADDRESS) == node


@pytest.mark.parametrize("cpumap", [None, "0f\n0f\n", ""], ids=["missing", "twice", "empty"])
def test_a_node_without_a_cpu_list_has_the_cpus_that_link_to_it(cpumap: str | None) -> None:
    nodes = {path: text for path, text in NODES.items() if "node0" not in path}
    nodes["sys/devices/system/node/node0/" + ("cpumap" if cpumap is not None else "meminfo")] = cpumap or ""
    links = {f"sys/devices/system/cpu/cpu{cpu}/node{cpu // 4}": f"../../node/node{cpu // 4}" for cpu in range(8)}
    files = {f"{FOLDER}/class": "0x030000", f"{FOLDER}/local_cpus": "0f", **nodes}
    assert numa_node(machine(files, LINK | links), ADDRESS) == 0
    assert numa_node(machine(files, LINK), ADDRESS) is None


def test_a_kernel_without_numa_nodes_is_trusted() -> None:
    assert numa_node(server({"numa_node": "1"}, {}), ADDRESS) == 1
    assert numa_node(server({}, {}), ADDRESS) is None


def test_a_missing_function_has_no_node() -> None:
    assert numa_node(machine({"proc/x": ""}), ADDRESS) is None
