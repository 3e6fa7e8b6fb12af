from dranode.api.cpuset import CPUSet
from dranode.cpu.layout import cpu_layout
from dranode.cpu.sysfs import read_topology
from dranode.driver.claims.hooks import Box
from dranode.sim.machines.forms import open_machine
from tests.fakes.machine import CPU, NODE, cpu_files, machine


def test_larger_boxes_are_around_smaller_ones() -> None:
    layout = cpu_layout(read_topology(open_machine("sockets=2,numa=2,cores=1,threads=2")))
    assert layout.title == "8 CPUs, 4 cores of 2 threads, 2 packages, 4 NUMA nodes, 4 L3 caches; SMT on"
    assert [(box.title, box.numa, str(box.cpus)) for box in layout.boxes] == [
        ("package 0", None, "0-1,4-5"),
        ("package 1", None, "2-3,6-7"),
    ]
    cpus = CPUSet((3, 7))
    row = Box("L3", cpus, cores=(cpus,))
    assert layout.boxes[1].boxes[1] == Box("NUMA 3", cpus, framed=True, numa=3, boxes=(row,))


def test_boxes_with_the_same_cpus_share_the_numa_nodes_frame() -> None:
    (box,) = cpu_layout(read_topology(open_machine("cores=2"))).boxes
    assert (box.title, box.numa) == ("package 0, NUMA 0", 0)


def test_a_cache_of_several_numa_nodes_is_a_frame_around_them() -> None:
    files = {f"{CPU}/online": "0-3", f"{NODE}/node0/cpulist": "0-1", f"{NODE}/node1/cpulist": "2-3"}
    for cpu in range(4):
        files |= cpu_files(cpu, physical_package_id="0", package_cpus_list="0-3")
        files |= {f"{CPU}/cpu{cpu}/cache/index3/level": "3", f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list": "0-3"}
    (package,) = cpu_layout(read_topology(machine(files))).boxes
    (cache,) = package.boxes
    assert (cache.title, cache.framed) == ("L3", True)
    assert [(box.title, box.numa) for box in cache.boxes] == [("NUMA 0", 0), ("NUMA 1", 1)]


def test_a_numa_node_in_two_packages_is_a_part_in_each() -> None:
    files = {f"{CPU}/online": "0-3", f"{NODE}/node0/cpulist": "0-2", f"{NODE}/node1/cpulist": "3"}
    for cpu in range(4):
        files |= cpu_files(cpu, physical_package_id=str(cpu // 2), core_siblings_list="0-1" if cpu < 2 else "2-3")
    layout = cpu_layout(read_topology(machine(files)))
    inner = [box for outer in layout.boxes for box in outer.boxes]
    assert [(box.title, box.numa) for box in inner if "NUMA" in box.title] == [
        ("part of NUMA 0", 0),
        ("part of NUMA 0", 0),
        ("NUMA 1", 1),
    ]
