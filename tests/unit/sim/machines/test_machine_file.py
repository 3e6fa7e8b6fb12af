"""YAML machines; the short form follows the rules of dra-driver-cpu's sysfs overlay (reference cases A.13)."""

from pathlib import Path

import pytest

from dranode.api.errors import DocumentError
from dranode.cpu.sysfs import read_topology
from dranode.sim.machines.confined import ConfinedRoot, OverlayFiles
from dranode.sim.machines.forms import open_machine
from dranode.sim.machines.machine_file import parse_machine
from tests.fakes.machine import CPU, NODE, machine


def written(folder: Path, text: str) -> str:
    file = folder / "machine.yaml"
    file.write_text(text)
    return str(file)


def laid_over(document: dict[str, str], host: ConfinedRoot) -> ConfinedRoot:
    return ConfinedRoot(OverlayFiles(parse_machine(document)[0], host.files))


def test_the_short_form_is_complete_and_keeps_every_byte(tmp_path: Path) -> None:
    text = f'/{CPU}/online: "0-1\\n"\n/{CPU}/isolated: |\n  1\n'
    root = open_machine(written(tmp_path, text))
    assert root.read_bytes(f"{CPU}/online") == b"0-1\n"
    assert root.read_bytes(f"{CPU}/isolated") == b"1\n"
    assert root.listdir("") == ["sys"]


def test_the_long_form_has_files_links_and_devices(tmp_path: Path) -> None:
    text = """
files:
  /sys/devices/pci0000:00/0000:00:02.0/vendor: "0x10de"
  /proc/devices: "195 nvidia"
links:
  /sys/bus/pci/devices/0000:00:02.0: ../../../devices/pci0000:00/0000:00:02.0
devices:
  /dev/nvidia0: c 195:0
"""
    root = open_machine(written(tmp_path, text))
    assert root.read_bytes("sys/bus/pci/devices/0000:00:02.0/vendor") == b"0x10de"
    assert root.device_number("dev/nvidia0") == ("c", 195, 0)
    assert root.read_bytes("proc/devices") == b"195 nvidia"


def test_base_host_puts_the_files_entries_over_the_host(tmp_path: Path) -> None:
    root = open_machine(written(tmp_path, "base: host\nfiles:\n  /sys/devices/made-up/name: here\n"))
    assert root.read_bytes("sys/devices/made-up/name") == b"here"
    assert "system" in root.listdir("sys/devices")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a YAML machine is a map of /sys/ paths"),
        ("[1, 2]", "a YAML machine is a map of /sys/ paths"),
        ("/sys/a: 7", 'the value for "/sys/a" must be a string, not 7; quote it'),
        (f"/{CPU}/smt/control: on", "must be a string, not True; quote it"),
        ("/proc/value: x", '"/proc/value" must be beneath /sys'),
        ("/sys: x", '"/sys" must be beneath /sys'),
        ("/sysfs/a: x", "must be beneath /sys"),
        ("/sys/devices/../value: x", "is not clean"),
        ("/sys/a//b: x", "is not clean"),
        ("/sys/a/: x", "is not clean"),
        ("sys/a: x", 'unknown key "sys/a"'),
        ('/sys/a: x\n/sys/a/b: "y"', '"/sys/a" is both a file and a folder'),
        ('/sys/a/b: x\n/sys/a: "y"', '"/sys/a" is both a file and a folder'),
        ("/sys/a: x\n/sys/a: y", 'the key "/sys/a" is given twice'),
        (f"/{CPU}/cpu0/node0/x: a\n/{CPU}/cpu0/node1/x: b", "cpu0. has several NUMA nodes"),
        ("/sys/a: [x", r"is not YAML: .*line 2, column 1"),
        ("fils:\n  /sys/a: x", 'unknown key "fils"; use base, files, links, devices'),
        ("base: hots\nfiles: {}", "base can only be \"host\", not 'hots'"),
        ("files: [a]", "files: a map of paths is expected, not a list"),
        ("files:\n  /etc/passwd: x", "must be beneath /sys or /proc"),
        ("files:\n  '': x", '"" must be beneath /sys or /proc'),
        ("links:\n  /sys/a: ''", 'the link "/sys/a" has no target'),
        ("devices:\n  /dev/a: 226:0", 'not a type and numbers such as "c 226:128"|must be a string'),
        ("devices:\n  /sys/a: c 1:1", "must be beneath /dev"),
    ],
)
def test_a_violated_rule_is_named(tmp_path: Path, text: str, message: str) -> None:
    place = written(tmp_path, text)
    with pytest.raises(DocumentError, match=message) as refusal:
        open_machine(place)
    assert place in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_overlay_files_shadow_and_folders_merge() -> None:
    host = machine(
        {"sys/cpu/base-only": "b", "sys/cpu/online": "0-3\n", "sys/cpu/overridden": "h"},
        {"sys/links/online": "../cpu/online"},
    )
    over = {"/sys/cpu/online": "0-1\n", "/sys/cpu/overridden": "o", "/sys/cpu/virtual/value": "v"}
    root = laid_over(over, host)
    assert root.listdir("sys/cpu") == ["base-only", "online", "overridden", "virtual"]
    assert root.read_bytes("sys/cpu/online") == b"0-1\n"
    assert root.read_bytes("sys/cpu/base-only") == b"b"
    assert root.read_bytes("sys/cpu/virtual/value") == b"v"
    assert root.readlink("sys/links/online") == "../cpu/online"
    assert root.read_bytes("sys/links/online") == b"0-1\n"


def test_an_overlaid_node_hides_the_hosts_only_in_listings() -> None:
    host = machine({f"{CPU}/cpu2/topology/core_id": "0", f"{CPU}/cpu2/node0/x": "host", f"{CPU}/cpu3/node0/x": "host"})
    root = laid_over({f"/{CPU}/cpu2/node1/x": "over"}, host)
    assert root.listdir(f"{CPU}/cpu2") == ["node1", "topology"]
    assert root.read_bytes(f"{CPU}/cpu2/node0/x") == b"host"
    assert root.listdir(f"{CPU}/cpu3") == ["node0"]


def test_discovery_through_an_overlay() -> None:
    host = machine(
        {f"{CPU}/online": "0-1\n", f"{NODE}/node0/cpulist": "0-1\n"}
        | {f"{CPU}/cpu{cpu}/topology/physical_package_id": "1\n" for cpu in range(2)}
    )
    over = {
        f"/{CPU}/cpu0/topology/physical_package_id": "7",
        f"/{NODE}/node0/cpulist": "0",
        f"/{NODE}/node1/cpulist": "1",
        f"/{CPU}/cpu1/node1/cpulist": "1",
    }
    topology = read_topology(laid_over(over, host))
    assert topology.cpus[0].package == 7
    assert topology.cpus[1].numa == 1
    assert str(topology.numa[1]) == "1"


def test_a_machine_with_a_single_high_cpu_number_is_read_exactly() -> None:
    cpu = f"/{CPU}/cpu999"
    tree = {
        f"/{CPU}/online": "999",
        f"/{CPU}/smt/control": "on",
        f"{cpu}/node5/cpulist": "998-999",
        f"/{NODE}/node5/cpulist": "998-999",
        f"{cpu}/topology/physical_package_id": "7",
        f"{cpu}/topology/core_id": "3",
        f"{cpu}/cache/index3/level": "3",
        f"{cpu}/cache/index3/id": "11",
        f"{cpu}/cache/index3/shared_cpu_list": "998-999",
    }
    topology = read_topology(laid_over(tree, machine({})))
    only = topology.cpus[999]
    assert (only.package, only.core_id, only.numa, only.l3_id, topology.smt) == (7, 3, 5, 11, True)
    assert str(topology.online) == "999"


def test_a_path_longer_than_linux_allows_is_refused() -> None:
    with pytest.raises(DocumentError, match=r'"/sys/a/a/.*" has 8006 characters, and Linux takes up to 4096'):
        parse_machine({"/sys/" + "a/" * 4000 + "b": "1"})
