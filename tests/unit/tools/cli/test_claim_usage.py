"""`dranode claims --usage` shows how claims use their CPUs, here from a fake /proc and cgroup file system."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.driver.machine.container_usage import ContainerProcesses
from dranode.driver.node.node import NodeClaims
from dranode.tools.cli import claim_usage
from dranode.tools.cli.claims import command
from tests.fakes.drivers import Lamps, allocated_claim, reference
from tests.fakes.recorded_machine import PODS, RecordedMachine

STAT = "usage_usec {usage}\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 0\n"
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


@pytest.fixture
def machine(tmp_path: Path) -> RecordedMachine:
    made = RecordedMachine(tmp_path)
    made.write("sys/devices/system/node/node0/cpulist", "0-3\n")
    made.write("sys/devices/system/node/node1/cpulist", "4-7\n")
    return made


class Interval:
    """The clock of the command, and what happens between its two readings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.happens: list[Any] = []
        monkeypatch.setattr("dranode.tools.cli.claim_usage.time", self)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 5000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for happen in self.happens:
            happen()


@pytest.fixture
def interval(monkeypatch: pytest.MonkeyPatch) -> Interval:
    return Interval(monkeypatch)


def counters(machine: RecordedMachine, cgroup: str, usage: float, *, throttled: int = 0, some: float = 0.0) -> None:
    folder = f"sys/fs/cgroup/{cgroup}"
    stat = STAT.format(usage=int(usage * 1e6), periods=10 * throttled, throttled=throttled)
    machine.write(f"{folder}/cpu.stat", stat)
    machine.write(f"{folder}/cpu.pressure", PRESSURE.format(some=int(some * 1e6)))


def run(machine: RecordedMachine, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*machine.options(), "--usage", *arguments])


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    documents: list[dict[str, Any]] = json.loads(result.stdout)
    return documents


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "1e4"])
def test_the_time_between_the_readings_is_a_number_in_its_range(machine: RecordedMachine, seconds: str) -> None:
    result = run(machine, "--seconds", seconds)
    assert result.exit_code != 0
    assert "0.1" in f"{result.output}{result.exception}"


def test_usage_is_the_difference_between_two_readings(machine: RecordedMachine, interval: Interval) -> None:
    machine.prepare("a", 2)
    cgroup = machine.container(100, "a", "0-1", "DRA_CPUSET_uid-a=0-1")
    machine.write(f"sys/fs/cgroup/{cgroup}/memory.numa_stat", "anon N0=3145728 N1=1048576\n")
    machine.write("proc/100/task/100/schedstat", "5 1000000000 1\n")
    counters(machine, cgroup, 50.0)

    def work() -> None:
        counters(machine, cgroup, 60.0, throttled=2, some=1.0)
        machine.write("proc/100/task/100/schedstat", "5 1500000000 1\n")

    interval.happens = [work]
    ((row),) = rows(run(machine, "--seconds", "10", "-o", "json"))
    usage = row["usage"]
    (pod,) = usage["pods"]
    assert (usage["held"], usage["seconds"], usage["idle"]) == (2, 10.0, False)
    assert (pod["pod"], pod["used"], pod["of_held"]) == ("pod-a", pytest.approx(1.0), pytest.approx(0.5))
    assert pod["total"]["cpu_usage_seconds"] == 60.0
    assert pod["total"]["remote_memory_bytes"] == 1 << 20
    assert pod["rise"] == {
        "cpu_usage_seconds": pytest.approx(10.0),
        "cpu_throttled_seconds": 0,
        "cpu_cfs_periods": 20,
        "cpu_cfs_throttled_periods": 2,
        "run_queue_wait_seconds": pytest.approx(0.5),
        "cpu_pressure_waiting_seconds": pytest.approx(1.0),
        "cpu_pressure_stalled_seconds": 0,
    }
    # psutil does not know the fake processes.
    assert usage["containers"] == [
        {
            "pod": "pod-a",
            "cgroup": cgroup,
            "processes": 1,
            "threads": None,
            "affinity": None,
            "running_seconds": None,
        }
    ]
    counters(machine, cgroup, 50.0)
    machine.write("proc/100/task/100/schedstat", "5 1000000000 1\n")
    (line,) = [line for line in run(machine, "--seconds", "10").stdout.splitlines() if "2 CPUs" in line]
    assert line.split("  ")[0] == "default/a"
    for cell in ("pod-a", "1.00", "50.0 %", "10.0 %", "0.50 s", "1 of 4 MiB"):
        assert cell in line, cell


def test_a_counter_that_cannot_be_read_is_a_dash_and_is_reported(machine: RecordedMachine, interval: Interval) -> None:
    del interval
    machine.prepare("a", 2)
    machine.container(100, "a", "0-1", "DRA_CPUSET_uid-a=0-1")
    result = run(machine, "-o", "json")
    ((row),) = rows(result)
    (pod,) = row["usage"]["pods"]
    assert (pod["total"], pod["rise"], pod["used"], row["usage"]["idle"]) == ({}, {}, None, None)
    assert "cpu usage seconds could not be read for 1 container" in result.stderr
    assert "remote memory bytes could not be read for 1 container" in result.stderr
    (line,) = [line for line in run(machine).stdout.splitlines() if "2 CPUs" in line]
    assert line.split()[-6:] == ["-"] * 6


def test_a_claim_that_does_nothing_for_a_minute_is_named(machine: RecordedMachine, interval: Interval) -> None:
    machine.prepare("a", 2)
    machine.prepare("b", 2)
    first = machine.container(100, "a", "0-1", "DRA_CPUSET_uid-a=0-1")
    second = machine.container(200, "b", "2-3", "DRA_CPUSET_uid-b=2-3")
    counters(machine, first, 1000.0)
    counters(machine, second, 10.0)
    interval.happens = [lambda: counters(machine, second, 130.0)]
    result = run(machine, "--seconds", "60")
    assert "idle (less than 1 % of its CPUs used for a minute): default/a\n" in result.stdout
    # Some seconds are not long enough to say so.
    counters(machine, second, 10.0)
    assert [row["usage"]["idle"] for row in rows(run(machine, "-o", "json"))] == [None, False]


@pytest.mark.parametrize("case", [(600.0, 1.0, True), (600.0, 100.0, False), (30.0, 0.0, None)])
def test_a_container_that_never_did_anything_is_known_by_its_age(
    machine: RecordedMachine,
    interval: Interval,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[float, float, bool | None],
) -> None:
    del interval
    age, used, idle = case
    machine.prepare("a", 2)
    counters(machine, machine.container(100, "a", "0-1", "DRA_CPUSET_uid-a=0-1"), used)
    seen = ContainerProcesses({}, 5000.0 - age, 3, CPUSet((0, 1)))
    monkeypatch.setattr(claim_usage, "container_processes", lambda *_: seen)
    ((row),) = rows(run(machine, "-o", "json"))
    (container,) = row["usage"]["containers"]
    assert (row["usage"]["idle"], container["running_seconds"]) == (idle, age)
    assert (container["threads"], container["affinity"]) == (3, "0-1")


def test_a_claim_with_hidden_processes_is_reported(machine: RecordedMachine, interval: Interval) -> None:
    del interval
    machine.prepare("a", 2)
    machine.process(100, "secret", "0-1", f"{PODS}/kubepods-burstable-podpod_uid_a.slice/cri-containerd-1.scope")
    result = run(machine, "--seconds", "60", "-o", "json")
    (row,) = rows(result)
    assert "usage" not in row
    assert row["usage_unseen"] == "a process of its pods cannot be inspected; try as root"


def test_claims_without_cpus_or_with_damage_say_why_they_have_no_usage(
    machine: RecordedMachine, interval: Interval
) -> None:
    del interval
    machine.prepare("a", 2)
    machine.prepare("b", 2)
    lamps = Lamps()
    node = NodeClaims(lamps, machine.folder / "kubelet/plugins" / lamps.driver, machine.folder / "cdi")
    (machine.folder / "kubelet/plugins" / lamps.driver).mkdir()
    node.open()
    lit = allocated_claim("g", lamps.driver, [lamps.discover().devices[0].name])
    node.prepare({reference(lit): lit})
    node.close()
    with contextlib.closing(sqlite3.connect(machine.data / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE claims SET checksum = checksum + 1 WHERE uid = 'uid-b'")
    unseen = {row["uid"]: row.get("usage_unseen", "") for row in rows(run(machine, "-o", "json"))}
    assert unseen["uid-a"] == ""
    assert "damaged" in unseen["uid-b"]
    assert f"cgroups do not show the use of devices of {lamps.driver}" in unseen[lit.metadata.uid]
    assert f"not seen: default/g ({lamps.driver}): it holds no CPUs" in run(machine).stdout


def test_the_proc_of_a_pod_is_not_mistaken_for_the_nodes(machine: RecordedMachine, interval: Interval) -> None:
    del interval
    machine.prepare("a", 2)
    cgroup = f"{PODS}/kubepods-burstable-podpod_uid_a.slice/cri-containerd-{'a1' * 32}.scope"
    machine.write(f"sys/fs/cgroup/{cgroup}/cgroup.events", "populated 1\n")
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.cpus.effective", "0-1\n")
    assert isinstance(run(machine).exception, MachineError)
