from dranode.cpu.sysfs import read_topology
from dranode.sim.machines.forms import open_machine


def test_counts_are_per_parent_and_second_threads_have_the_higher_numbers() -> None:
    topology = read_topology(open_machine("sockets=2,numa=2,l3=4,cores=4,threads=2"))
    assert str(topology.online) == "0-127"
    assert [str(cpus) for cpus in topology.packages.values()] == ["0-31,64-95", "32-63,96-127"]
    assert {node: str(cpus) for node, cpus in topology.numa.items()} == {
        0: "0-15,64-79",
        1: "16-31,80-95",
        2: "32-47,96-111",
        3: "48-63,112-127",
    }
    assert [str(cpus) for cpus in topology.l3][:3] == ["0-3,64-67", "4-7,68-71", "8-11,72-75"]
    assert len(topology.l3) == 16
    assert [str(cpus) for cpus in topology.cores][:2] == ["0,64", "1,65"]
    assert topology.smt
    assert topology.memory_nodes == {0, 1, 2, 3}
    assert topology.warnings == ()


def test_a_count_that_is_left_out_is_one() -> None:
    topology = read_topology(open_machine("cores=3"))
    assert (len(topology.packages), len(topology.numa), len(topology.l3), len(topology.cores)) == (1, 1, 1, 3)
    assert not topology.smt


def test_core_ids_repeat_in_every_package_as_on_real_servers() -> None:
    topology = read_topology(open_machine("sockets=2,cores=2"))
    assert [cpu.core_id for cpu in topology.cpus.values()] == [0, 1, 0, 1]
    assert [cpu.l3_id for cpu in topology.cpus.values()] == [0, 0, 1, 1]


def test_nodes_have_distances_and_memory() -> None:
    root = open_machine("sockets=2,numa=2,cores=1")
    assert root.read_bytes("sys/devices/system/node/node1/distance") == b"12 10 32 32\n"
    assert b"MemTotal:       4194304 kB" in root.read_bytes("sys/devices/system/node/node1/meminfo")
    assert root.resolve("sys/devices/system/cpu/cpu2/node2") == "sys/devices/system/node/node2"


def test_nodes_have_huge_pages_as_the_description_says() -> None:
    def pool(description: str, size: int, name: str = "nr") -> bytes:
        folder = "sys/devices/system/node/node0/hugepages"
        return open_machine(description).read_bytes(f"{folder}/hugepages-{size}kB/{name}_hugepages")

    assert pool("cores=4", 2048) == pool("cores=4", 2048, "free") == b"512\n"
    assert pool("cores=4", 1 << 20) == b"1\n"
    assert pool("cores=1,memory=2", 2048) == b"0\n"
    assert pool("memory=64,hugepages2m=7,hugepages1g=48", 2048) == b"7\n"
    assert pool("memory=64,hugepages2m=7,hugepages1g=48", 1 << 20) == b"48\n"
    assert pool("cores=4,hugepages2m=0", 2048, "surplus") == b"0\n"
    meminfo = open_machine("memory=64,hugepages1g=48,hugepages2m=0").read_bytes("sys/devices/system/node/node0/meminfo")
    assert b"MemTotal:       67108864 kB" in meminfo
    assert b"MemFree:        16777216 kB" in meminfo


def test_a_machine_of_sixteen_thousand_cpus_can_be_read() -> None:
    topology = read_topology(open_machine("sockets=4,numa=4,l3=16,cores=32,threads=2"))
    assert len(topology.cpus) == 16_384
    assert len(topology.cores) == 8_192
    assert str(topology.cores[-1]) == "8191,16383"
