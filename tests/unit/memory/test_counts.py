import pytest

from dranode.memory.counts import NodeCounts, PoolCounts, read_counts
from dranode.memory.machine import KIB
from dranode.memory.options import MemoryOptions, parse_reserved
from dranode.memory.reports import count_remarks, count_rows, memory_problems
from dranode.memory.sysfs import read_memory
from dranode.sim.machines.forms import open_machine
from tests.fakes.machine import CPU, NODE, machine
from tests.fakes.memory import GIB, MIB, node_files, pages

HUGE = 2 * MIB
MACHINE_PAGES = "sys/kernel/mm/hugepages/hugepages-2048kB"
# Free runs of 1, 2, 4, ... pages by zone, as in /proc/buddyinfo; node 0 has 3 of 2 MiB and 2 of 4 MiB.
BUDDYINFO = (
    "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      1 \n"
    "Node 0, zone   Normal   1024      0      0      0      0      0      0      0      0      2      1 \n"
    "Node 1, zone   Normal  10240      0      0      0      0      0      0      0      0      1      0 \n"
)


def zoneinfo(page: int, gib: int = 4) -> str:
    return "".join(
        f"Node {node}, zone   Normal\n  pages free     17\n        managed  {gib * GIB // page}\n" for node in (0, 1)
    )


def two_nodes(**files: str) -> dict[str, str]:
    return {
        f"{CPU}/online": "0-3",
        **node_files(0, "0-1", 4),
        **pages(0, 2048, 8, free=5, surplus=1),
        **pages(0, GIB // 1024, 1),
        **node_files(1, "2-3", 4),
        **pages(1, 2048, 0),
        **pages(1, GIB // 1024, 0),
        "proc/buddyinfo": BUDDYINFO,
        "proc/zoneinfo": zoneinfo(4096),
        "sys/fs/cgroup/cgroup.controllers": "cpuset hugetlb",
        "sys/fs/cgroup/kubepods.slice/hugetlb.2MB.numa_stat": f"total={4 * MIB} N0={4 * MIB} N1=0",
        **{path.replace("__", "/"): text for path, text in files.items()},
    }


def counts(files: dict[str, str]) -> tuple[NodeCounts, ...]:
    root = machine(files)
    return read_counts(root, read_memory(root))


def problems(files: dict[str, str], reserved: str = "0:1Gi") -> dict[str, tuple[str, str]]:
    root = machine(files)
    found = read_memory(root)
    options = MemoryOptions(reserved=parse_reserved(reserved))
    return {each.code: (each.what, each.fix) for each in memory_problems(found, options, read_counts(root, found))}


def test_each_node_has_its_pages_and_the_number_that_could_be_reserved() -> None:
    first, second = counts(two_nodes())
    # 3 runs of 2 MiB and 2 of 4 MiB; the kernel does not count runs of 1 GiB.
    assert first.pools == {HUGE: PoolCounts(8, 5, 1, pods=2, addable=7), GIB: PoolCounts(1, 1, 0, 0, None)}
    assert second.pools[HUGE].addable == 1
    assert first.runs[4096] == 4096 * 1024 + 1 * MIB + 3 * HUGE + 2 * 2 * HUGE


@pytest.mark.parametrize(("page", "addable"), [(4096, 7), (8192, 15)])
def test_the_page_size_follows_from_the_kernels_managed_pages(page: int, addable: int) -> None:
    assert counts(two_nodes(proc__zoneinfo=zoneinfo(page)))[0].pools[HUGE].addable == addable


@pytest.mark.parametrize("file", ["proc/buddyinfo", "proc/zoneinfo"])
def test_unreported_counts_are_unknown(file: str) -> None:
    files = two_nodes()
    del files[file]
    first = counts(files)[0]
    assert (first.runs, first.pools[HUGE].addable, first.part_in_runs(HUGE)) == ({}, None, None)
    assert "NUMA node 0: the fragmentation of the memory is not known" in "\n".join(count_remarks((first,)))
    assert "memory-fragmented" not in problems(files)


def test_nodes_with_the_same_unknown_counts_share_a_sentence() -> None:
    files = two_nodes()
    del files["proc/buddyinfo"]
    (sentence,) = [remark for remark in count_remarks(counts(files)) if "fragmentation" in remark]
    assert sentence.startswith("NUMA nodes 0-1: ")


def test_a_nodes_missing_count_is_not_taken_from_the_whole_machine() -> None:
    files = two_nodes(
        **{
            "proc/meminfo": f"MemTotal: {8 << 20} kB\nMemFree: {6 << 20} kB\n",
            f"{MACHINE_PAGES}/nr_hugepages": "8",
            f"{MACHINE_PAGES}/free_hugepages": "5",
        }
    )
    root = machine(files)
    found = read_memory(root)
    gone = {path: text for path, text in files.items() if f"{NODE}/node1/" not in path}
    cut = {path: text for path, text in files.items() if not path.startswith((f"{NODE}/node1/h", f"{NODE}/node1/m"))}
    for later in (gone, cut):
        first, second = read_counts(machine(later), found)
        assert (first.free, first.pools[HUGE].free) == (KIB, 5)
        assert (second.free, second.pools[HUGE]) == (None, PoolCounts(pods=0, addable=1))


def test_without_numa_the_counts_are_those_of_the_machine() -> None:
    root = machine(
        {
            f"{CPU}/online": "0-1",
            "proc/meminfo": f"MemTotal: {8 << 20} kB\nMemFree: {6 << 20} kB\n",
            f"{MACHINE_PAGES}/nr_hugepages": "8",
            f"{MACHINE_PAGES}/free_hugepages": "5",
        }
    )
    (only,) = read_counts(root, read_memory(root))
    assert (only.free, only.pools) == (6 * GIB, {HUGE: PoolCounts(8, 5)})


def test_free_pages_reserved_outside_pods_are_reported_as_unavailable() -> None:
    files = two_nodes() | {f"{MACHINE_PAGES}/nr_hugepages": "8", f"{MACHINE_PAGES}/resv_hugepages": "7"}
    first, second = counts(files)
    assert (first.pools[HUGE].promised, second.pools[HUGE].promised) == (5, 0)
    said = (
        "NUMA node 0: 5 of the free pages of 2Mi may be promised to processes outside pods, and claims do not get them"
    )
    assert said in list(count_remarks((first, second)))
    by_pods = {
        "sys/fs/cgroup/kubepods.slice/hugetlb.2MB.rsvd.current": f"{9 * HUGE}",
        "sys/fs/cgroup/kubepods.slice/hugetlb.2MB.current": f"{2 * HUGE}",
    }
    assert counts(files | by_pods)[0].pools[HUGE].promised == 0


def test_fragmented_memory_is_a_problem_only_of_its_node() -> None:
    files = two_nodes(
        **{
            f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal: {4 << 20} kB\nNode {node} MemFree: {free} kB\n"
            for node, free in ((0, 20 * 1024), (1, 42 * 1024))
        }
    )
    assert [each.part_in_runs(HUGE) for each in counts(files)] == [70, 5]
    what, fix = problems(files)["memory-fragmented"]
    assert what.startswith("only 5 % of the free memory of NUMA node 1 is in runs of 2Mi or more, so about 1 more huge")
    assert "compact_memory" in fix


def test_without_huge_pages_the_fix_says_how_to_reserve_them_here() -> None:
    none = {
        **two_nodes(),
        **{path: "0" for node in (0, 1) for size in (2048, GIB // 1024) for path in pages(node, size, 0)},
    }
    what, fix = problems(none)["hugepages-none"]
    assert what == "no huge pages are reserved (hugepages-2Mi and hugepages-1Gi), so no claim gets any"
    assert "(hugepagesz=1G hugepages=0:2,1:2)" in fix
    assert "echo 512 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages" in fix
    assert "hugepages-none" not in problems(two_nodes())


def test_without_numa_they_are_reserved_for_the_whole_machine() -> None:
    none = {f"{MACHINE_PAGES}/{name}_hugepages": "0" for name in ("nr", "free", "surplus")}
    fix = problems({f"{CPU}/online": "0-1", "proc/meminfo": f"MemTotal: {8 << 20} kB\n", **none})["hugepages-none"][1]
    assert "(hugepagesz=2M hugepages=2), or while it runs" in fix
    assert f"echo 512 > /{MACHINE_PAGES}/nr_hugepages" in fix


def test_pages_that_no_node_shows_are_not_reported_as_missing() -> None:
    bare = {f"{CPU}/online": "0-1", **node_files(0, "0-1", 4)}
    assert problems(bare)["hugepages-unknown"][0].startswith("/sys/kernel/mm/hugepages shows no size of huge pages")
    assert set(problems(bare | {f"{MACHINE_PAGES}/nr_hugepages": "16"})) == set()
    uncounted = {path: text for path, text in pages(0, 2048, 4).items() if not path.endswith("/nr_hugepages")}
    assert set(problems(bare | uncounted)) == set()


def test_problems_exclude_nodes_whose_memory_is_never_published() -> None:
    cpus = {f"{NODE}/node1/cpulist": "", f"{CPU}/online": "0-1"}
    meminfo = {f"{NODE}/node1/meminfo": f"Node 1 MemTotal: {4 << 20} kB\nNode 1 MemFree: {42 * 1024} kB\n"}
    assert "pass --reserved-memory 0:1Gi, with" in problems(two_nodes() | cpus, "")["memory-unreserved"][1]
    assert "memory-fragmented" in problems(two_nodes() | meminfo)
    assert "memory-fragmented" not in problems(two_nodes() | meminfo | cpus)


def test_a_node_without_the_controller_or_a_reserve_is_a_warning() -> None:
    assert problems(two_nodes()) == {}
    assert "memory-unreserved" in problems(two_nodes(), "")
    assert "memory-unreserved" in problems(two_nodes(), "0:hugepages-2Mi=4Mi")
    bare = two_nodes()
    del bare["sys/fs/cgroup/cgroup.controllers"]
    assert set(problems(bare)) == {"hugetlb-controller-missing"}


def test_the_table_has_a_row_for_ordinary_memory_and_for_each_size_of_pages() -> None:
    rows = list(count_rows(counts(two_nodes()), {(0, 0): 3 * GIB, (0, HUGE): 10 * MIB}))
    assert [(row["NUMA node"], row["memory"]) for row in rows] == [
        (node, kind) for node in (0, 1) for kind in ("memory", "hugepages-2Mi", "hugepages-1Gi")
    ]
    assert {
        name: rows[1][name] for name in ("reserved pages", "free", "used by pods", "published", "could be added")
    } == {"reserved pages": 8, "free": 5, "used by pods": 2, "published": "10Mi", "could be added": 7}
    assert rows[0]["published"] == "3Gi"
    assert "NUMA node 0: 1 pages of 2Mi are surplus, and claims do not get them" in list(
        count_remarks(counts(two_nodes()))
    )


def test_unreadable_surplus_pages_are_reported() -> None:
    files = {path: text for path, text in two_nodes().items() if "2048kB/surplus" not in path}
    said = [each for each in count_remarks(counts(files)) if "surplus" in each]
    assert said == ["NUMA node 0: it is not known how many pages of 2Mi are surplus, so claims get none"]


def test_a_made_up_machine_reports_what_was_not_read() -> None:
    root = open_machine("sockets=2,cores=2")
    found = read_counts(root, read_memory(root))
    assert [each.pools[HUGE].total for each in found] == [512, 512]
    assert all(each.runs == {} for each in found)
