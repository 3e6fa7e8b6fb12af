"""What a container uses, from made-up cgroups of both versions and from real processes."""

import mmap
import os
import time
from collections.abc import Mapping
from typing import Any

import psutil
import pytest

from dranode.driver.claims.usage import Figure
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.container_usage import UsageReader, container_processes
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.numa import local_nodes, node_cpus
from dranode.driver.machine.root import Root
from tests.fakes.machine import machine

FOLDER = "kubepods/podx/c1"
# As Linux 6.18 writes them, shortened.
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 40\nnr_throttled 10\n"
    "throttled_usec 1500000\nnr_bursts 0\nburst_usec 0\n",
    "cpu.pressure": "some avg10=0.00 avg60=1.27 avg300=0.10 total=750000\nfull avg10=0.00 avg60=0.00 total=250000\n",
    "memory.numa_stat": "anon N0=4096 N1=8192\nfile N0=100 N1=200\nshmem N0=7 N1=7\nfile_mapped N0=9 N1=9\n",
}
V1 = {
    "cpu,cpuacct": {
        "cpuacct.usage": "2500000000\n",
        "cpu.stat": "nr_periods 40\nnr_throttled 10\nthrottled_time 1500000000\n",
    },
    "memory": {"memory.numa_stat": "total=3 N0=1 N1=2\nfile=3 N0=1 N1=2\nhierarchical_total=9 N0=4 N1=5\n"},
}
CGROUP_2 = {f"sys/fs/cgroup/{FOLDER}/{name}": text for name, text in V2.items()}
CGROUP_1 = {f"sys/fs/cgroup/{top}/{FOLDER}/{name}": text for top, files in V1.items() for name, text in files.items()}
TASKS = {
    "proc/7/cgroup": f"0::/{FOLDER}\n",
    "proc/7/task/7/schedstat": "5000000000 1000000000 20\n",
    "proc/7/task/8/schedstat": "1 500000000 3\n",
}
PROCESSES = {f"sys/fs/cgroup/{FOLDER}/cgroup.procs": "7\n", **TASKS}


def read(root: Root, **more: tuple[int, ...]) -> Mapping[Figure, Any]:
    found = UsageReader(root, Cgroups(root)).read(FOLDER, (0,), **more)
    return {figure: pytest.approx(sum(values.values())) for figure, values in found.items()}


def test_cgroup_v2_has_all_figures_but_the_run_queue_wait() -> None:
    assert read(machine(CGROUP_2)) == {
        Figure.CPU: 2.5,
        Figure.PERIODS: 40,
        Figure.THROTTLED_PERIODS: 10,
        Figure.THROTTLED: 1.5,
        Figure.WAITING: 0.75,
        Figure.STALLED: 0.25,
        Figure.MEMORY: 4096 + 8192 + 100 + 200,
        Figure.REMOTE_MEMORY: 8192 + 200,
    }


def test_cgroup_v1_has_the_same_figures_in_its_units_but_no_pressure() -> None:
    assert read(machine(CGROUP_1)) == {
        Figure.CPU: 2.5,
        Figure.PERIODS: 40,
        Figure.THROTTLED_PERIODS: 10,
        Figure.THROTTLED: 1.5,
        Figure.MEMORY: 9 * mmap.PAGESIZE,
        Figure.REMOTE_MEMORY: 5 * mmap.PAGESIZE,
    }


def test_a_containers_tasks_have_the_run_queue_wait() -> None:
    assert read(machine(PROCESSES)) == {Figure.WAIT: 1.5}
    assert read(machine(TASKS), pids=(7,)) == {Figure.WAIT: 1.5}


@pytest.mark.parametrize(
    "changed",
    [
        # A process of another PID namespace is 0, or missing.
        {f"sys/fs/cgroup/{FOLDER}/cgroup.procs": "7\n0\n"},
        {f"sys/fs/cgroup/{FOLDER}/cgroup.procs": ""},
        # The process that /proc calls 7 is another one.
        {"proc/7/cgroup": "0::/system.slice/x.service\n"},
        # There are processes in sub-cgroups.
        {f"sys/fs/cgroup/{FOLDER}/cgroup.stat": "nr_descendants 2\nnr_dying_descendants 0\n"},
        # The kernel does not count waiting times.
        {"proc/7/task/7/schedstat": "0 0 0\n", "proc/7/task/8/schedstat": "0 0 0\n"},
        {"proc/7/task/7/schedstat": "garbage\n", "proc/7/task/8/schedstat": ""},
        {f"sys/fs/cgroup/{FOLDER}/cgroup.procs": "seven\n"},
    ],
)
def test_tasks_that_may_be_wrong_or_incomplete_are_not_counted(changed: dict[str, str]) -> None:
    assert read(machine({**PROCESSES, **changed})) == {}


@pytest.mark.parametrize(
    "files",
    [
        {},
        {f"sys/fs/cgroup/{FOLDER}/{name}": "" for name in V2},
        {f"sys/fs/cgroup/{FOLDER}/{name}": "damaged N0 total=x usage_usec\n\x00 some =" for name in V2},
    ],
    ids=["missing", "empty", "damaged"],
)
def test_unreadable_figures_are_not_zero(files: dict[str, str]) -> None:
    assert read(machine(files)) == {}
    root = machine(CGROUP_2)
    assert UsageReader(root, Cgroups(root)).read("", (0,)) == {}


def test_memory_is_neither_local_nor_remote_if_the_numa_nodes_are_unknown() -> None:
    root = machine(CGROUP_2)
    found = UsageReader(root, Cgroups(root)).read(FOLDER, None)
    assert (Figure.MEMORY in found, Figure.REMOTE_MEMORY in found) == (True, False)
    assert local_nodes(node_cpus(machine({"sys/devices/system/node/node0/cpumap": "3\n"}))[0], {}) is None


class WithCgroups(HostRoot):
    """The running machine with other cgroups."""

    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__()
        self.made = machine(files)

    def listdir(self, path: str) -> list[str]:
        return self.made.listdir(path) if path.startswith("sys/fs/cgroup") else super().listdir(path)

    def read_bytes(self, path: str) -> bytes:
        return self.made.read_bytes(path) if path.startswith("sys/fs/cgroup") else super().read_bytes(path)


def test_cpu_time_is_read_from_processes_if_no_file_has_it() -> None:
    root = WithCgroups({f"sys/fs/cgroup/{FOLDER}/cgroup.procs": "1\n"})
    before = time.process_time()
    found = read(root, pids=(os.getpid(),))
    # psutil's resolution is a tick of 10 ms.
    assert found[Figure.CPU] == pytest.approx(before, abs=0.5 + 0.5 * before)
    assert read(root, pids=()) == {}
    assert Figure.CPU not in read(machine({}), pids=(os.getpid(),))


def test_processes_have_a_start_and_an_affinity() -> None:
    seen = container_processes(HostRoot(), (os.getpid(),))
    assert seen is not None
    assert set(seen.affinity) == os.sched_getaffinity(0)
    assert seen.started == psutil.Process().create_time()
    assert seen.threads >= 1
    gone = psutil.Process().pid + (1 << 22)
    assert container_processes(HostRoot(), (gone,)) is None
    both = container_processes(HostRoot(), (gone, os.getpid()))
    assert both is not None
    assert len(both.cpu_seconds) == 1
    assert container_processes(machine({}), (os.getpid(),)) is None
