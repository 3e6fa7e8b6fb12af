import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dranode.api.cpuset import CPUSet
from dranode.cpu.layout import cpu_layout
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.show.picture.node import NodePicture
from dranode.show.picture.text import node_text
from dranode.sim.machines.forms import open_machine
from tests.fakes.machine import CPU, NODE, machine

cpu_lists = st.sets(st.integers(0, 9), max_size=10).map(lambda cpus: str(CPUSet(cpus)))
masks = st.integers(0, 0x3FF).map(lambda mask: f"{mask:x}")
SOURCES = {
    "topology/core_cpus_list": cpu_lists,
    "topology/thread_siblings": masks,
    "topology/package_cpus_list": cpu_lists,
    "topology/physical_package_id": st.integers(-1, 3).map(str),
    "topology/core_id": st.integers(0, 3).map(str),
    "cache/index3/level": st.sampled_from(["2", "3"]),
    "cache/index3/shared_cpu_list": cpu_lists,
    "online": st.sampled_from(["0", "1"]),
}


@st.composite
def contradictory_machines(draw: st.DrawFn) -> dict[str, str]:
    """Files in which every CPU reports arbitrary values."""
    files = {}
    if draw(st.booleans()):
        files[f"{CPU}/online"] = str(CPUSet(draw(st.sets(st.integers(0, 9), min_size=1))))
    else:
        files[f"{CPU}/cpu0/topology/core_id"] = "0"
    for cpu in range(10):
        for name, contents in SOURCES.items():
            path = f"{CPU}/cpu{cpu}/{name}"
            if path not in files and draw(st.booleans()) and (cpu or name != "online"):
                files[path] = draw(contents)
    for node in draw(st.sets(st.integers(0, 300), max_size=4)):
        files[f"{NODE}/node{node}/cpulist"] = draw(cpu_lists)
    return files


def assert_hangs_together(topology: Topology) -> None:
    online = topology.online
    assert CPUSet.union(topology.cores) == online
    for parts in (topology.cores, tuple(topology.packages.values()), topology.l3, tuple(topology.numa.values())):
        assert sum(map(len, parts)) == len(CPUSet.union(parts))
        assert CPUSet.union(parts) <= online
        assert all(parts)
        assert [part.first() for part in parts] == sorted(part.first() for part in parts)
    for cpu in topology.cpus.values():
        assert cpu.id in topology.cores[cpu.core]
        assert cpu.package == -1 or cpu.id in topology.packages[cpu.package]
        assert cpu.l3 is None or cpu.id in topology.l3[cpu.l3]
        assert cpu.numa is None or cpu.id in topology.numa[cpu.numa]
    assert topology.offline.isdisjoint(online)


@given(contradictory_machines())
@settings(max_examples=60)
def test_every_online_cpu_has_one_place_whatever_the_files_say(files: dict[str, str]) -> None:
    topology = read_topology(machine(files))
    assert_hangs_together(topology)
    told = files.get(f"{CPU}/online")
    assert told is None or str(topology.online) == told
    assert len(set(topology.warnings)) == len(topology.warnings) <= 9


@given(*(st.integers(1, 4) for _ in range(5)))
@settings(max_examples=30)
def test_a_description_reads_back_with_the_same_numbers(
    sockets: int, numa: int, l3: int, cores: int, threads: int
) -> None:
    description = f"sockets={sockets},numa={numa},l3={l3},cores={cores},threads={threads}"
    topology = read_topology(open_machine(description))
    assert_hangs_together(topology)
    assert len(topology.packages) == sockets
    assert len(topology.numa) == sockets * numa
    assert len(topology.l3) == sockets * numa * l3
    assert len(topology.cores) == sockets * numa * l3 * cores
    assert len(topology.cpus) == len(topology.cores) * threads
    for core in topology.cpus.values():
        assert core.id % len(topology.cores) == core.core


@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 6), st.integers(1, 3), st.integers(60, 130), st.data())
@settings(max_examples=30)
def test_a_picture_shows_every_cpu_once_with_every_holder(  # noqa: PLR0917 - hypothesis fills them
    sockets: int, numa: int, cores: int, threads: int, width: int, data: st.DataObject
) -> None:
    topology = read_topology(open_machine(f"sockets={sockets},numa={numa},cores={cores},threads={threads}"))
    held = CPUSet(data.draw(st.sets(st.sampled_from(sorted(topology.cpus)))))
    picture = NodePicture(cpu_layout(topology), {"ns/claim": held} if held else {})
    lines = ["".join(words for words, _ in line) for line in node_text(picture, width)]
    rows = [re.sub(r"╭─ [^╮]*╮", "", line) for line in lines if line.startswith("│")]
    body = " ".join(rows).replace("│", " ")
    cells = [cell for cell in body.split() if cell[0].isdigit()]
    assert sorted(int(cpu) for cell in cells for cpu in cell.split(",")) == sorted(topology.cpus)
    assert any(line == f"A ns/claim  {held}" for line in lines) == bool(held)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "a/c", "d/e", "d/f"]).map(lambda path: f"sys/{path}-link"),
        st.text("./abcdef-link", min_size=1, max_size=12),
        max_size=5,
    ),
    st.text("./abcdef-linksy", max_size=20),
)
@settings(max_examples=100)
def test_links_never_lead_out_of_the_tree(links: dict[str, str], asked: str) -> None:
    root = machine({"sys/file": "x"}, links)
    for path in (asked, *links):
        try:
            real = root.resolve(path)
        except OSError:
            continue
        assert ".." not in real.split("/")
        assert root.resolve(real) == real
