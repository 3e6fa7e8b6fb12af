from __future__ import annotations

import pytest

from dranode.cpu.blocks import BlockLine
from dranode.cpu.draw import picture
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.machine.forms import open_machine
from tests.fakes.machine import CPU, NODE, cpu_files, machine


def text(lines: tuple[BlockLine, ...]) -> str:
    return "\n".join("".join(words for words, _ in line) for line in lines)


def drawn(description: str, holders: dict[str, str] | None = None, width: int = 80) -> str:
    held = {claim: CPUSet.parse(cpus) for claim, cpus in (holders or {}).items()}
    return text(picture(read_topology(open_machine(description)), held, width))


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
        drawn("cores=4")
        == """\
4 CPUs, 4 cores, 1 package, 1 NUMA node, 1 L3 cache; SMT off

╭─ package 0, NUMA 0 ─╮
│ L3  0  1  2  3      │
╰─────────────────────╯"""
    )


def test_nodes_stand_in_packages_and_holders_have_letters() -> None:
    assert (
        drawn("sockets=2,numa=2,cores=2,threads=2", {"ml/train": "3,5,11", "default/a": "0,8"})
        == """\
16 CPUs, 8 cores of 2 threads, 2 packages, 4 NUMA nodes, 4 L3 caches; SMT on

╭─ package 0 ─────────────────────╮ ╭─ package 1 ─────────────────────╮
│ ╭─ NUMA 0 ───╮ ╭─ NUMA 1 ───╮   │ │ ╭─ NUMA 2 ────╮ ╭─ NUMA 3 ────╮ │
│ │ L3  0,8 A  │ │ L3  2,10   │   │ │ │ L3  4,12    │ │ L3  6,14    │ │
│ │     1,9    │ │     3,11 B │   │ │ │     5,13 B· │ │     7,15    │ │
│ ╰────────────╯ ╰────────────╯   │ │ ╰─────────────╯ ╰─────────────╯ │
╰─────────────────────────────────╯ ╰─────────────────────────────────╯

A default/a  0,8
B ml/train  3,5,11
· free  1-2,4,6-7,9-10,12-15"""
    )


def test_types_isolated_and_offline_cpus_are_shown() -> None:
    lines = text(picture(hybrid(), {"default/web": CPUSet.parse("4")}, 80)).splitlines()
    assert lines[1] == "offline 6-7; isolated 1,4; p-core 0-3; e-core 4-5"
    assert "│ L3 p-core  0,~1  2,3 │" in lines
    assert "│ L3 e-core  ~4 A  5   │" in lines
    assert lines[-1] == "~ isolated"


def test_a_node_around_packages_is_the_outer_frame() -> None:
    files = {f"{CPU}/online": "0-3", f"{NODE}/node0/cpulist": "0-3"}
    for cpu in range(4):
        files |= cpu_files(cpu, physical_package_id=str(cpu % 2), core_siblings_list="0,2" if cpu % 2 == 0 else "1,3")
    lines = text(picture(read_topology(machine(files)), {}, 80)).splitlines()
    assert lines[2].startswith("╭─ NUMA 0 ")
    assert lines[3] == "│ ╭─ package 0 ─╮ ╭─ package 1 ─╮ │"
    assert lines[4] == "│ │ 0  2        │ │ 1  3        │ │"


def test_nodes_with_memory_alone_and_warnings_are_shown() -> None:
    files = {f"{CPU}/online": "0-1", f"{NODE}/has_memory": "0-2"}
    files |= {f"{NODE}/node{node}/cpulist": cpus for node, cpus in ((0, "0-1"), (1, "1"), (2, ""))}
    lines = text(picture(read_topology(machine(files)), {}, 80)).splitlines()
    assert lines[1] == "NUMA nodes with memory alone 1-2"
    assert lines[2] == "warning: the NUMA nodes 0 and 1 both claim cpu1; the lower has it"


def test_from_257_cpus_on_a_core_is_one_sign_and_the_row_names_its_cpus() -> None:
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


def test_styles_say_nothing_that_the_text_does_not() -> None:
    lines = picture(read_topology(open_machine("cores=2")), {"a/b": CPUSet.parse("1")}, 80)
    held = [(words, style) for line in lines for words, style in line if "cyan" in style]
    assert held == [("1 ", "bold cyan"), ("A", "bold cyan"), ("A", "bold cyan")]
