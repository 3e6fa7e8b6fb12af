""""""

import json
import re

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.cpu.layout import cpu_layout
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.show.picture.fleet import DeviceKey, FleetClaim, FleetDevice, FleetMoment, FleetNode, FleetPicture
from dranode.show.picture.node import NodePicture, PlacedDevice
from dranode.show.picture.page import compact
from dranode.show.picture.text import BlockLine, node_text
from dranode.sim.machines.forms import open_machine
from tests.fakes.fleets import training_fleet
from tests.fakes.machine import CPU, NODE, cpu_files, machine


def text(lines: tuple[BlockLine, ...]) -> str:
    return "\n".join("".join(words for words, _ in line).rstrip() for line in lines)


def drawn(description: str, holders: dict[str, str] | None = None, width: int = 80) -> str:
    return text(picture(read_topology(open_machine(description)), holders or {}, width))


def picture(
    topology: Topology, holders: dict[str, str], width: int, *devices: PlacedDevice, marked: bool = True
) -> tuple[BlockLine, ...]:
    held = {claim: CPUSet.parse(cpus) for claim, cpus in holders.items()}
    return node_text(NodePicture(cpu_layout(topology), held, devices), width, marked=marked)


def hybrid() -> Topology:
    files = {f"{CPU}/online": "0-5", f"{CPU}/present": "0-7", f"{CPU}/isolated": "1,4", f"{NODE}/node0/cpulist": "0-5"}
    files |= {"sys/devices/cpu_atom/cpus": "4-5"}
    for cpu in range(6):
        core = "0-1" if cpu < 2 else "2-3" if cpu < 4 else str(cpu)
        files |= cpu_files(cpu, core_cpus_list=core, package_cpus_list="0-5", physical_package_id="0")
        files |= {f"{CPU}/cpu{cpu}/cache/index3/level": "3", f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list": "0-5"}
    return read_topology(machine(files))


def test_a_small_machine_is_one_frame() -> None:
    assert (
        text(picture(read_topology(open_machine("cores=4")), {}, 80, marked=False))
        == """\
4 CPUs, 4 cores, 1 package, 1 NUMA node, 1 L3 cache; SMT off

╭─ package 0, NUMA 0 ─╮
│ L3  0  1  2  3      │
╰─────────────────────╯"""
    )


def test_nodes_are_inside_packages_and_holders_have_letters() -> None:
    assert (
        drawn("sockets=2,numa=2,cores=2,threads=2", {"ml/train": "3,5,11", "default/a": "0,8"})
        == """\
16 CPUs, 8 cores of 2 threads, 2 packages, 4 NUMA nodes, 4 L3 caches; SMT on

╭─ package 0 ─────────────────────╮ ╭─ package 1 ─────────────────────╮
│ ╭─ NUMA 0 ────╮ ╭─ NUMA 1 ────╮ │ │ ╭─ NUMA 2 ────╮ ╭─ NUMA 3 ────╮ │
│ │ L3  0,8 A   │ │ L3  2,10    │ │ │ │ L3  4,12    │ │ L3  6,14    │ │
│ │     1,9     │ │     3,11 B  │ │ │ │     5,13 B· │ │     7,15    │ │
│ ╰─────────────╯ ╰─────────────╯ │ │ ╰─────────────╯ ╰─────────────╯ │
╰─────────────────────────────────╯ ╰─────────────────────────────────╯

A default/a  0,8
B ml/train  3,5,11
· free  1-2,4,6-7,9-10,12-15"""
    )


def test_types_isolated_and_offline_cpus_are_shown() -> None:
    lines = text(picture(hybrid(), {"default/web": "4"}, 80)).splitlines()
    assert lines[1] == "offline 6-7; isolated 1,4; p-core 0-3; e-core 4-5"
    assert "│ L3 p-core  0,~1     2,3     │" in lines
    assert "│ L3 e-core  ~4 A     5       │" in lines
    assert lines[-1] == "~ isolated"


def test_a_node_around_packages_is_the_outer_frame() -> None:
    files = {f"{CPU}/online": "0-3", f"{NODE}/node0/cpulist": "0-3"}
    for cpu in range(4):
        files |= cpu_files(cpu, physical_package_id=str(cpu % 2), core_siblings_list="0,2" if cpu % 2 == 0 else "1,3")
    lines = text(picture(read_topology(machine(files)), {}, 80, marked=False)).splitlines()
    assert lines[2].startswith("╭─ NUMA 0 ")
    assert lines[3] == "│ ╭─ package 0 ─╮ ╭─ package 1 ─╮ │"
    assert lines[4] == "│ │ 0  2        │ │ 1  3        │ │"


def test_nodes_with_only_memory_and_warnings_are_shown() -> None:
    files = {f"{CPU}/online": "0-1", f"{NODE}/has_memory": "0-2"}
    files |= {f"{NODE}/node{node}/cpulist": cpus for node, cpus in ((0, "0-1"), (1, "1"), (2, ""))}
    lines = text(picture(read_topology(machine(files)), {}, 80)).splitlines()
    assert lines[1] == "NUMA nodes with memory only: 1-2"
    assert lines[2] == "warning: NUMA nodes 0 and 1 both list cpu1; the lower one is used"


def test_above_256_cpus_a_core_is_one_character_and_the_row_has_numbers() -> None:
    shown = drawn("sockets=2,numa=4,l3=2,cores=16,threads=2", {"default/a": "0-1,256-257", "ml/b": "5"}, 120)
    assert "│ L3 0-15,256-271     AA···+··········" in shown
    assert "+ threads of one core held differently" in shown
    assert len(shown.splitlines()) < 40


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "description",
    ["cores=4", "sockets=2,numa=4,cores=8,threads=2", "sockets=2,numa=4,l3=2,cores=16,threads=2", "threads=8,cores=20"],
)
def test_the_picture_fits_the_width(description: str, width: int) -> None:
    held = {"default/a": "0-1"}
    frame = [line for line in drawn(description, held, width).splitlines() if line.startswith(("│", "╭", "╰"))]
    assert frame
    assert max(map(len, frame)) <= width
    assert all(line.endswith(("│", "╮", "╰", "╯")) for line in frame)
    assert {line.count("╭") + line.count("╰") > 0 or line.count("│") % 2 == 0 for line in frame} == {True}


def test_letters_run_out_gracefully() -> None:
    shown = drawn("cores=60", {f"ns/c{cpu:02d}": str(cpu) for cpu in range(60)})
    assert "51 z" in shown
    assert "52 #" in shown


def test_colors_say_nothing_that_the_text_does_not_say() -> None:
    lines = picture(read_topology(open_machine("cores=2")), {"a/b": "1"}, 80)
    held = [(words, style) for line in lines for words, style in line if "cyan" in style]
    assert held == [("1 ", "bold cyan"), ("A", "bold cyan"), ("A", "bold cyan")]


def test_devices_are_in_their_numa_node_with_their_holders_letters() -> None:
    topology = read_topology(open_machine("numa=2,cores=2"))
    devices = (
        PlacedDevice("gpu.example.com", "gpu-0", 0, holders=("ml/train",)),
        PlacedDevice("gpu.example.com", "gpu-1", 1, shared=True, holders=("default/a", "ml/train")),
        PlacedDevice("nic.example.com", "eth0", 1, taints=("example.com/down=:NoSchedule",)),
        PlacedDevice("nic.example.com", "eth1"),
    )
    assert (
        text(picture(topology, {"ml/train": "1"}, 80, *devices))
        == """\
4 CPUs, 4 cores, 1 package, 2 NUMA nodes, 2 L3 caches; SMT off

╭─ package 0 ───────────────────────╮
│ ╭─ NUMA 0 ─────╮ ╭─ NUMA 1 ─────╮ │
│ │ L3  0    1 A │ │ L3  2    3   │ │
│ │ gpu-0 A      │ │ gpu-1 AB     │ │
│ ╰──────────────╯ │ !eth0        │ │
│                  ╰──────────────╯ │
╰───────────────────────────────────╯
NUMA node unknown
eth1

A ml/train  1; gpu-0, gpu-1
B default/a  gpu-1
· free  0,2-3
! eth0 is tainted: example.com/down=:NoSchedule"""
    )


def test_devices_of_a_node_with_unknown_cpus_have_boxes_too() -> None:
    devices = [PlacedDevice("gpu.example.com", f"gpu-{number}", number // 2) for number in range(4)]
    lines = text(node_text(NodePicture(None, devices=tuple(devices)), 80)).splitlines()
    assert lines[0] == "4 devices; CPUs are not shown, because no driver reports them"
    assert lines[2:5] == ["╭─ NUMA 0 ─╮ ╭─ NUMA 1 ─╮", "│ gpu-0    │ │ gpu-2    │", "│ gpu-1    │ │ gpu-3    │"]
    assert node_text(NodePicture(None), 80) == ()


def test_a_long_list_of_devices_is_cut_and_the_rest_is_counted() -> None:
    devices = [PlacedDevice("nic.example.com", f"vf-{number}", 0, holders=("a/b",)) for number in range(64)]
    lines = text(node_text(NodePicture(None, devices=tuple(devices)), 80)).splitlines()
    assert sum("vf-" in line and line.startswith("│") for line in lines) == 11
    assert "+53 of nic.example.com, 53 held" in "".join(lines)


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("holders", [{"a/b": "0"}, {"a/b": "0-3,16", "c/d": "17-19"}, {"a/b": "0-31"}])
def test_a_nodes_layout_does_not_depend_on_what_is_held(holders: dict[str, str], width: int) -> None:
    description = "sockets=2,numa=2,cores=4,threads=2"
    device = PlacedDevice("gpu.example.com", "gpu-0", 1)
    topology = read_topology(open_machine(description))
    before = text(picture(topology, {}, width, device)).splitlines()
    after = text(picture(topology, holders, width, replace(device, holders=("a/b",)))).splitlines()
    unmarked = [re.sub(r" [AB·]{1,2}(?= )", lambda mark: " " * len(mark[0]), line) for line in after]
    assert unmarked[: len(before)] == before


def test_nodes_with_the_same_devices_are_written_once() -> None:
    document = compact(training_fleet(100))
    # Every GPU has its own serial number, and the tainted ones are a kind of their own.
    assert len(document["kinds"]) == 2
    assert [node[0] for node in document["nodes"]][:2] == ["worker-0", "worker-1"]
    own = document["nodes"][7][4]
    assert own[4] == [("uuid", "GPU-00000007-0000-4222-8333-444455556666")]


def test_shares_lead_to_their_device() -> None:
    document = compact(training_fleet(2))
    claim = next(claim for claim in document["moments"][0]["claims"] if claim[0] == "ml/train-worker-1-3")
    offset = len(document["kinds"][document["nodes"][0][1]])
    names = [document["kinds"][document["nodes"][1][1]][share[0] - offset][1] for share in claim[2]]
    assert names == ["gpu-3", "mlx5-3", "cpudevnuma001"]
    amounts = document["moments"][0]["amounts"]
    assert [amounts[number] for number in claim[2][2][1]] == [("cpu", "4", 4)]
    assert claim[1] == [[len("train-worker-1-3"), "-0"]]  # in the claim's namespace
    assert claim[4] == 1795255200


def test_unusual_names_and_times_are_kept() -> None:
    picture = training_fleet(1)
    claims = tuple(
        FleetClaim("ns/web-gpu-x7k", (pod,), created=created)
        for pod, created in (("ns/web", "2026-11-21T10:00:00Z"), ("ns/other", "yesterday"), ("ns/web-gpu-x7k", ""))
    )
    written = compact(replace(picture, moments=(FleetMoment("now", claims),)))["moments"][0]["claims"]
    assert [claim[1:] for claim in written] == [
        [[[3]], [], [], 1795255200],
        [[[0, "other"]], [], [], "yesterday"],
        [[[11]]],
    ]


def test_attributes_that_do_not_fit_are_left_out_and_named() -> None:
    nodes = tuple(
        FleetNode(
            f"n{number}",
            (FleetDevice(DeviceKey("d", f"n{number}", "x"), attributes={"serial": f"{number:04d}" * 500}),),
        )
        for number in range(200)
    )
    document = compact(FleetPicture("t", nodes, training_fleet(1).moments))
    assert document["notes"] == ["to keep this page small, some devices are shown without serial"]
    assert 0 < sum(bool(node[4]) for node in document["nodes"]) < 200
    few = compact(FleetPicture("t", nodes[:10], training_fleet(1).moments))
    assert few["notes"] == []


def test_the_document_survives_json() -> None:
    picture = training_fleet(3, compared=True)
    assert json.loads(json.dumps(compact(picture)))["waiting"][0][0] == "ml/big-0"
    assert compact(replace(picture, facts=("a fact",)))["facts"] == ["a fact"]
