import errno
import os

import pytest

from dranode.api.errors import MachineError
from dranode.memory.devices import memory_devices, memory_left_out
from dranode.memory.machine import MachineMemory, PagePool
from dranode.memory.options import MemoryOptions
from dranode.memory.sysfs import read_memory
from dranode.sim.machines.confined import ConfinedRoot
from dranode.sim.machines.forms import open_machine
from dranode.tools.readers.capture import record
from tests.fakes.machine import CPU, NODE, machine
from tests.fakes.memory import GIB, MIB, node_files, one_node, pages

HUGE = 2 * MIB
POOL = f"{NODE}/node0/hugepages/hugepages-2048kB"
MACHINE_POOL = "sys/kernel/mm/hugepages/hugepages-2048kB"
# The cgroup above all pods: cgroup v2 with systemd, cgroup v1, v2 beside v1, and below a cgroupRoot of kubelet.
STATS = (
    "sys/fs/cgroup/kubepods.slice/hugetlb.2MB.numa_stat",
    "sys/fs/cgroup/hugetlb/kubepods/hugetlb.2MB.numa_stat",
    "sys/fs/cgroup/unified/kubepods/hugetlb.2MB.numa_stat",
    "sys/fs/cgroup/container.slice/container-kubepods.slice/hugetlb.2MB.numa_stat",
)


def read(files: dict[str, str]) -> MachineMemory:
    return read_memory(machine(files))


def without(files: dict[str, str], *paths: str) -> dict[str, str]:
    assert set(paths) <= files.keys()
    return {path: text for path, text in files.items() if path not in paths}


class TestNodes:
    def test_a_node_that_is_named_elsewhere_without_a_folder_is_reported(self) -> None:
        files = {f"{CPU}/online": "0-1", **node_files(0, "0-1", 4)}
        assert read(files).warnings == ()
        (warning,) = read(files | {f"{NODE}/online": "0-1"}).warnings
        assert warning == f"the NUMA nodes 1 of /{NODE}/online are not known: they have no folder there"

    @pytest.mark.parametrize(("all_of_them", "missed"), [("16", True), ("0", False)])
    def test_huge_pages_missing_in_the_nodes_folders_are_reported(self, all_of_them: str, *, missed: bool) -> None:
        files = {
            f"{CPU}/online": "0-3",
            **node_files(0, "0-1", 4),
            **pages(0, 2048, 16),
            **node_files(1, "2-3", 4),
            f"{MACHINE_POOL}/nr_hugepages": all_of_them,
            f"{MACHINE_POOL}/resv_hugepages": "0",
        }
        said = (
            "huge pages of 2048 kB are left out on NUMA nodes 1: /sys/kernel/mm/hugepages has some, but these nodes "
            "have no folder hugepages-2048kB; claims do not get that much of their memory"
        )
        assert read(files).warnings == ((said,) if missed else ())

    def test_memory_that_may_be_hidden_huge_pages_is_not_counted_as_ordinary(self) -> None:
        files = {
            f"{CPU}/online": "0-3",
            **node_files(0, "0-1", 4),
            **pages(0, 2048, 16),
            **node_files(1, "2-3", 4),
            f"{MACHINE_POOL}/nr_hugepages": "48",
            f"{MACHINE_POOL}/resv_hugepages": "0",
        }
        uncounted = without(files | pages(1, 2048, 32), f"{NODE}/node1/hugepages/hugepages-2048kB/nr_hugepages")
        for unseen in (files, uncounted):
            sizes = {device.name: device.size for device in memory_devices(read(unseen), MemoryOptions())}
            assert sizes == {
                "memory-numa0": 4 * GIB - 16 * HUGE,
                "memory-numa1": 4 * GIB - 32 * HUGE,
                "hugepages-2m-numa0": 16 * HUGE,
            }

    def test_each_node_has_its_memory_and_its_huge_pages_of_every_size(self) -> None:
        two = {
            f"{CPU}/online": "0-3",
            **node_files(0, "0-1", 4),
            **pages(0, 2048, 16),
            **pages(0, 1 << 20, 1),
            **node_files(1, "2-3", 8),
            **pages(1, 2048, 0),
            **pages(1, 1 << 20, 3),
        }
        nodes = read(two).nodes
        assert [(node.id, node.total) for node in nodes] == [(0, 4 * GIB), (1, 8 * GIB)]
        assert nodes[0].pools == {HUGE: PagePool(16), GIB: PagePool(1)}
        assert nodes[1].pools == {HUGE: PagePool(0), GIB: PagePool(3)}
        assert read(two).page_sizes == (HUGE, GIB)
        assert read(two).warnings == ()

    def test_a_node_without_meminfo_is_left_out_and_named(self) -> None:
        files = {**one_node(), **node_files(1, "2-3")}
        found = read(without(files, f"{NODE}/node1/meminfo"))
        assert [node.id for node in found.nodes] == [0]
        assert found.warnings == (f"NUMA node 1 is left out: it has no file /{NODE}/node1/meminfo",)

    def test_a_node_without_memory_is_left_out(self) -> None:
        assert [node.id for node in read({**one_node(), **node_files(1, "2-3", 0)}).nodes] == [0]

    def test_a_node_without_memory_is_not_missing_huge_pages(self) -> None:
        pool = {f"{MACHINE_POOL}/nr_hugepages": "16", f"{MACHINE_POOL}/resv_hugepages": "0"}
        found = read({**one_node(), **pages(0, 2048, 16), **node_files(1, "2-3", 0), **pool})
        assert (found.warnings, found.unseen_pages) == ((), frozenset())

    def test_no_memory_at_all_is_refused(self) -> None:
        with pytest.raises(MachineError, match="no NUMA node has memory, according to the meminfo files"):
            read(without(one_node(), f"{NODE}/node0/meminfo"))

    def test_the_only_node_has_the_machines_memory_if_it_has_no_meminfo(self) -> None:
        files = without(one_node(), f"{NODE}/node0/meminfo")
        (node,) = read({**files, "proc/meminfo": "\nMemTotal:        2097152 kB\n"}).nodes
        assert (node.id, node.total) == (0, 2 * GIB)

    @pytest.mark.parametrize(
        "path",
        [
            "sys/fs/cgroup/kubepods.slice/memory.max",
            "sys/fs/cgroup/memory.max",
            "sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes",
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
        ],
    )
    def test_more_memory_than_pods_may_use_together_is_reported(self, path: str) -> None:
        v2, v1 = "sys/fs/cgroup/kubepods.slice/memory.max", "sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes"
        for limit, said in ((GIB, True), (1 << 50, False)):
            found = read({**one_node(), v2: "max", v1: "9223372036854771712", path: f"{limit}"})
            left_out = list(memory_left_out(found, MemoryOptions()))
            assert any("is limited to 1Gi of memory" in sentence for sentence in left_out) is said

    def test_without_numa_the_machine_is_node_0(self) -> None:
        files = {
            f"{CPU}/online": "0-1",
            "proc/meminfo": "MemTotal:        2097152 kB\nMemFree:  12 kB\n",
            f"{MACHINE_POOL}/nr_hugepages": "4",
            f"{MACHINE_POOL}/free_hugepages": "4",
            f"{MACHINE_POOL}/surplus_hugepages": "0",
            f"{MACHINE_POOL}/resv_hugepages": "0",
        }
        (node,) = read(files).nodes
        assert (node.id, node.total, node.pools, node.cpus) == (0, 2 * GIB, {HUGE: PagePool(4)}, True)

    def test_a_capture_of_a_machine_without_numa_has_its_memory(self) -> None:
        names = ("nr", "free", "surplus", "resv")
        files = {
            f"{CPU}/online": "0-1",
            "proc/meminfo": "MemTotal:        2097152 kB\n",
            **{f"{MACHINE_POOL}/{name}_hugepages": "4" if name in ("nr", "free") else "0" for name in names},
        }
        recording = record(machine(files))
        captured = machine({path: content.decode() for path, content in recording.files.items()})
        assert read_memory(captured) == read(files)

    def test_without_numa_and_meminfo_nothing_is_known(self) -> None:
        with pytest.raises(MachineError, match="neither /sys/devices/system/node nor /proc/meminfo says"):
            read({f"{CPU}/online": "0-1"})

    def test_a_machine_without_a_visible_sysfs_is_not_taken_for_one_without_numa(self) -> None:
        with pytest.raises(MachineError, match="so the NUMA nodes are not known"):
            read({"proc/meminfo": "MemTotal:        2097152 kB\n"})

    @pytest.mark.parametrize("text", ["", "Node 0 MemFree: 12 kB", "Node 0 MemTotal: lots", "\0\0"])
    def test_a_damaged_meminfo_is_refused_with_its_name(self, text: str) -> None:
        with pytest.raises(MachineError, match=f"/{NODE}/node0/meminfo has no line MemTotal"):
            read({**one_node(), f"{NODE}/node0/meminfo": text})

    def test_the_cpus_of_a_node_are_those_that_are_online(self) -> None:
        files = {f"{CPU}/online": "0-1", **node_files(0, "0-1"), **node_files(1, "2-3"), **node_files(2, "")}
        assert [node.cpus for node in read(files).nodes] == [True, False, False]
        assert [node.cpus for node in read(without(files, f"{CPU}/online")).nodes] == [True, True, False]


class TestHugePages:
    def test_surplus_pages_do_not_count(self) -> None:
        assert read({**one_node(), **pages(0, 2048, 10, surplus=3)}).nodes[0].pools[HUGE] == PagePool(7)

    def test_a_kernel_without_huge_pages_has_none(self) -> None:
        assert read(one_node()).nodes[0].pools == {}

    def test_without_the_number_of_pages_the_size_is_left_out_and_named(self) -> None:
        found = read(without({**one_node(), **pages(0, 2048, 4)}, f"{POOL}/nr_hugepages"))
        assert found.nodes[0].pools == {}
        assert found.warnings == (f"huge pages are left out: there is no file /{POOL}/nr_hugepages",)

    def test_without_the_number_of_free_pages_they_may_be_in_use(self) -> None:
        files = {**one_node(), **pages(0, 2048, 4)}
        found = read(without(files, f"{POOL}/free_hugepages"))
        assert found.nodes[0].pools[HUGE] == PagePool(4, others=4)
        assert "may be in use" in found.warnings[0]

    def test_without_the_number_of_surplus_pages_all_may_be_surplus(self) -> None:
        files = without({**one_node(), **pages(0, 2048, 4)}, f"{POOL}/surplus_hugepages")
        found = read(files)
        assert found.nodes[0].pools[HUGE] == PagePool(4, others=4)
        assert found.warnings == (
            f"huge pages of 2048 kB may be surplus, so claims get none: there is no file /{POOL}/surplus_hugepages",
        )
        none = read({**files, f"{POOL}/nr_hugepages": "0", f"{POOL}/free_hugepages": "0"})
        assert (none.nodes[0].pools, none.warnings) == ({HUGE: PagePool(0)}, ())

    @pytest.mark.parametrize("name", ["nr_hugepages", "free_hugepages", "surplus_hugepages"])
    @pytest.mark.parametrize("text", ["many", "-1", "1 2"])
    def test_a_damaged_number_is_refused_with_its_name(self, name: str, text: str) -> None:
        with pytest.raises(MachineError, match=f'/{POOL}/{name} should be a number, but is "{text}"'):
            read({**one_node(), **pages(0, 2048, 4), f"{POOL}/{name}": text})

    @pytest.mark.parametrize("stat", STATS)
    def test_pages_in_use_outside_pods_belong_to_others(self, stat: str) -> None:
        files = {**one_node(), **pages(0, 2048, 10, free=4), stat: f"total={4 * HUGE} N0={4 * HUGE}\n"}
        assert read(files).nodes[0].pools[HUGE] == PagePool(10, others=2)

    def test_of_cgroup_v1s_two_lines_the_hierarchical_one_counts(self) -> None:
        text = f"total=0 N0=0\nhierarchical_total={6 * HUGE} N0={6 * HUGE}\n"
        files = {**one_node(), **pages(0, 2048, 10, free=4), STATS[1]: text}
        assert read(files).nodes[0].pools[HUGE] == PagePool(10)

    def test_pages_reserved_outside_pods_are_kept_back_on_each_node_with_free_ones(self) -> None:
        files = {
            **one_node(),
            **pages(0, 2048, 10),
            **node_files(1, "2-3"),
            **pages(1, 2048, 8, free=2),
            f"{MACHINE_POOL}/nr_hugepages": "18",
            f"{MACHINE_POOL}/resv_hugepages": "5",
            STATS[0]: f"total={6 * HUGE} N0=0 N1={6 * HUGE}",
        }
        assert [node.pools[HUGE] for node in read(files).nodes] == [PagePool(10, others=5), PagePool(8, others=2)]

    @pytest.mark.parametrize(
        ("folder", "promised", "used"),
        [
            ("sys/fs/cgroup/kubepods.slice", "rsvd.current", "current"),
            ("sys/fs/cgroup/hugetlb/docker/1/kubelet/kubepods", "rsvd.usage_in_bytes", "usage_in_bytes"),
        ],
    )
    def test_pages_reserved_by_pods_stay_available_to_them(self, folder: str, promised: str, used: str) -> None:
        files = {
            **one_node(),
            **pages(0, 2048, 10),
            f"{MACHINE_POOL}/nr_hugepages": "10",
            f"{MACHINE_POOL}/resv_hugepages": "5",
            f"{folder}/hugetlb.2MB.{promised}": str(6 * HUGE),
            f"{folder}/hugetlb.2MB.{used}": str(2 * HUGE),
        }
        assert read(files).nodes[0].pools[HUGE] == PagePool(10, others=1)
        assert read(without(files, f"{folder}/hugetlb.2MB.{used}")).nodes[0].pools[HUGE] == PagePool(10, others=5)

    def test_without_the_number_of_reserved_pages_all_may_be_reserved(self) -> None:
        files = {**one_node(), **pages(0, 2048, 4), f"{MACHINE_POOL}/nr_hugepages": "4"}
        found = read(files)
        assert found.nodes[0].pools[HUGE] == PagePool(4, others=4)
        (sentence,) = found.warnings
        assert sentence == (
            "huge pages of 2048 kB may be promised to processes that have not used them yet, so claims get none: "
            f"there is no file /{MACHINE_POOL}/resv_hugepages"
        )

    @pytest.mark.parametrize("stat", [None, "", "total=0", "N1=4", "N0=x"])
    def test_pages_in_use_belong_to_others_if_no_cgroup_says_whose_they_are(self, stat: str | None) -> None:
        files = {**one_node(), **pages(0, 2048, 10, free=4)}
        found = read(files if stat is None else {**files, STATS[0]: stat})
        assert found.nodes[0].pools[HUGE] == PagePool(10, others=6)
        (sentence,) = found.warnings
        assert sentence == (
            "6 huge pages of 2048 kB are in use on NUMA node 0, and the cgroups do not tell whether pods "
            "use them: claims do not get them"
        )

    @pytest.mark.parametrize(("by_pods", "others"), [(9, [0, 0]), (8, [1, 1]), (5, [4, 3]), (0, [6, 3])])
    def test_without_counts_by_node_each_keeps_back_what_others_use_on_all(
        self, by_pods: int, others: list[int]
    ) -> None:
        # As before Linux 5.17: 6 pages are in use on node 0, and 3 on node 1.
        files = {
            **one_node(),
            **pages(0, 2048, 10, free=4),
            **node_files(1, "2-3"),
            **pages(1, 2048, 10, free=7),
            f"{MACHINE_POOL}/nr_hugepages": "20",
            f"{MACHINE_POOL}/free_hugepages": "11",
            f"{MACHINE_POOL}/resv_hugepages": "0",
            "sys/fs/cgroup/kubepods.slice/hugetlb.2MB.current": f"{by_pods * HUGE}",
        }
        assert [node.pools[HUGE].others for node in read(files).nodes] == others

    def test_more_pages_in_pods_than_in_use_leave_none_to_others(self) -> None:
        # The two files are read one after the other.
        files = {**one_node(), **pages(0, 2048, 10, free=9), STATS[0]: f"total=0 N0={5 * HUGE}"}
        assert read(files).nodes[0].pools[HUGE] == PagePool(10)


class TestPlaces:
    def test_sockets_and_near_nodes_are_read(self) -> None:
        nodes = read_memory(open_machine("sockets=2,numa=2,cores=2")).nodes
        assert [(node.socket, node.near) for node in nodes] == [(0, (1,)), (0, (0,)), (1, (3,)), (1, (2,))]

    def test_near_nodes_of_another_socket_do_not_count(self) -> None:
        assert [node.near for node in read_memory(open_machine("sockets=2,cores=2")).nodes] == [(), ()]

    def test_a_node_whose_socket_is_unknown_may_be_near(self) -> None:
        files = {
            **one_node(distance="10 20"),
            **node_files(1, "2-3", distance="20 10"),
            f"{CPU}/online": "0-3",
            f"{NODE}/online": "0-1",
            f"{CPU}/cpu0/topology/physical_package_id": "0",
        }
        assert [(node.socket, node.near) for node in read(files).nodes] == [(0, (1,)), (None, (0,))]

    def test_memory_without_cpus_does_not_count_for_nearness(self) -> None:
        # Two nodes of a socket, and memory attached by CXL that is nearer to each of them than the other.
        files = {
            **one_node(distance="10 20 14"),
            **node_files(1, "2-3", distance="20 10 16"),
            **node_files(2, "", distance="14 16 10"),
            f"{CPU}/online": "0-3",
            f"{NODE}/online": "0-2",
            **{f"{CPU}/cpu{cpu}/topology/physical_package_id": "0" for cpu in range(4)},
        }
        assert [node.near for node in read(files).nodes][:2] == [(1,), (0,)]

    def test_distances_of_sparse_nodes_are_in_the_order_of_online_nodes(self) -> None:
        files = {
            f"{NODE}/online": "0,8",
            **node_files(0, "0-1", distance="10 40"),
            **node_files(8, "2-3", distance="40 10"),
        }
        assert [node.near for node in read(files).nodes] == [(8,), (0,)]

    @pytest.mark.parametrize("distance", ["", "10", "10 x", "10 20 30"])
    def test_invalid_distances_give_no_near_node(self, distance: str) -> None:
        files = {**node_files(0, "0-1", distance=distance), **node_files(1, "2-3"), f"{NODE}/online": "0-1"}
        assert [node.near for node in read(files).nodes] == [(), ()]

    def test_a_node_of_several_packages_has_no_socket(self) -> None:
        topology = f"{CPU}/cpu0/topology"
        files = {**one_node(), f"{topology}/physical_package_id": "3", f"{topology}/package_cpus_list": "0"}
        assert read(files).nodes[0].socket is None
        # Some kernels list single cores of a package as packages; on an s390 the id repeats in each book.
        files |= {f"{CPU}/cpu1/topology/physical_package_id": "3"}
        assert read(files).nodes[0].socket == 3
        assert read({**files, f"{topology}/book_id": "0"}).nodes[0].socket is None
        assert read({**files, f"{topology}/package_cpus_list": "0-1"}).nodes[0].socket == 3
        unlisted = without(files, f"{topology}/package_cpus_list")
        assert read(unlisted).nodes[0].socket == 3
        assert read({**unlisted, f"{CPU}/cpu1/topology/physical_package_id": "4"}).nodes[0].socket is None
        assert read({**files, f"{topology}/physical_package_id": "-1"}).nodes[0].socket is None


class Broken:
    """A machine with one unreadable file or folder."""

    def __init__(self, root: ConfinedRoot, path: str) -> None:
        self._root, self._path = root, path

    def read_bytes(self, path: str) -> bytes:
        if path == self._path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._root.read_bytes(path)

    def listdir(self, path: str) -> list[str]:
        if path == self._path:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return self._root.listdir(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._root, name)


class Exiting(Broken):
    """A machine on which a pod frees 4 pages after the number of free pages is read, or takes them before."""

    exits = True

    def read_bytes(self, path: str) -> bytes:
        if path == self._path:
            self.exits = not self.exits
        if path == STATS[0]:
            return f"total=0 N0={4 * HUGE if self.exits else 0}\n".encode()
        return self._root.read_bytes(path)


@pytest.mark.parametrize("exits", [True, False])
def test_pages_that_a_pod_frees_or_takes_during_the_read_do_not_count_for_others(*, exits: bool) -> None:
    root = Exiting(machine({**one_node(), **pages(0, 2048, 10, free=6), STATS[0]: ""}), f"{POOL}/free_hugepages")
    root.exits = exits
    assert read_memory(root).nodes[0].pools[HUGE] == PagePool(10)  # type: ignore[arg-type] # it has what a root has


class Mapping(Broken):
    """A machine on which a pod maps 4 pages while the number of reserved ones is read, or touches them before."""

    maps = True

    def read_bytes(self, path: str) -> bytes:
        if path == self._path:
            self.maps = not self.maps
            return b"4\n"
        if path.endswith("rsvd.current"):
            return str(0 if self.maps else 4 * HUGE).encode()
        return self._root.read_bytes(path)


@pytest.mark.parametrize("maps", [True, False])
def test_pages_that_a_pod_maps_or_touches_during_the_read_do_not_count_for_others(*, maps: bool) -> None:
    whole = machine(
        {
            **one_node(),
            **pages(0, 2048, 10),
            f"{MACHINE_POOL}/nr_hugepages": "10",
            f"{MACHINE_POOL}/resv_hugepages": "",
            "sys/fs/cgroup/kubepods.slice/hugetlb.2MB.rsvd.current": "",
            "sys/fs/cgroup/kubepods.slice/hugetlb.2MB.current": "0",
        }
    )
    root = Mapping(whole, f"{MACHINE_POOL}/resv_hugepages")
    root.maps = maps
    assert read_memory(root).nodes[0].pools[HUGE] == PagePool(10)  # type: ignore[arg-type] # it has what a root has


@pytest.mark.parametrize(
    "path",
    [
        NODE,
        f"{NODE}/node0/hugepages",
        f"{NODE}/node0/meminfo",
        f"{POOL}/nr_hugepages",
        f"{POOL}/free_hugepages",
        f"{POOL}/surplus_hugepages",
        f"{MACHINE_POOL}/resv_hugepages",
        f"{CPU}/online",
    ],
)
def test_an_existing_unreadable_file_is_refused_with_its_name(path: str) -> None:
    whole = machine({**one_node(), **pages(0, 2048, 4), f"{MACHINE_POOL}/nr_hugepages": "4"})
    with pytest.raises(MachineError, match=f"/{path} cannot be read: "):
        read_memory(Broken(whole, path))  # type: ignore[arg-type] # it has what a root has
