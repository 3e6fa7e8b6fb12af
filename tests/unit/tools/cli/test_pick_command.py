"""`dranode pick`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import UsageError
from dranode.tools.cli.pick import command, region
from tests.fakes.machine import write_machine
from tests.fakes.topology import regular, topology

MACHINE = "sockets=2,numa=2,l3=2,cores=4,threads=2"


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["--machine", MACHINE, *arguments])


def test_json_has_the_cpus_and_what_is_held() -> None:
    result = _run("--count", "8", "--threads", "one-per-core", "-o", "json")
    assert json.loads(result.stdout) == {"cpus": "0-3", "held": "0-3,32-35"}


def test_the_text_output_shows_the_held_cpus_only_if_they_are_more() -> None:
    assert _run("--count", "2").stdout == "2 CPUs: 0,32\n"
    assert _run("--count", "2", "--threads", "one-per-core").stdout == "1 CPU: 0\n2 held: 0,32\n"
    assert _run("--count", "0").stdout == "no CPUs\n"


@pytest.mark.parametrize(
    ("within", "cpus"),
    [("machine", "0,32"), ("socket:1", "16,48"), ("numa:3", "24,56"), ("l3:5", "20,52")],
)
def test_a_pick_stays_within_the_requested_place(within: str, cpus: str) -> None:
    result = _run("--count", "2", "--within", within, "-o", "json")
    assert json.loads(result.stdout)["cpus"] == cpus


def test_only_free_cpus_are_picked_and_offline_ones_are_named() -> None:
    result = _run("--count", "2", "--free", "30-31,62-70", "--policy", "spread", "--l3", "ignore", "-o", "json")
    assert json.loads(result.stdout)["cpus"] == "30-31"
    assert result.stderr == "note: --free names 64-70, not online on this machine; left out\n"


def test_cpus_that_no_pod_may_use_are_not_picked_and_the_cgroup_is_named(tmp_path: Path) -> None:
    write_machine(tmp_path, "sockets=1,numa=2,cores=4")
    pods = tmp_path / "sys/fs/cgroup/kubepods.slice"
    pods.mkdir(parents=True)
    (pods.parent / "cgroup.controllers").write_text("cpuset\n")
    (pods / "cpuset.cpus.effective").write_text("0-1,4-5\n")

    def picked(*arguments: str) -> tuple[str, str]:
        done = CliRunner().invoke(command, ["--machine", str(tmp_path), "-o", "json", *arguments])
        return json.loads(done.stdout)["cpus"], done.stderr

    everywhere, note = picked("--count", "4")
    assert everywhere == "0-1,4-5"
    assert note.startswith("note: pods may not run on CPUs 2-3,6-7, so none of them is handed out: /sys/fs/cgroup/")
    assert picked("--count", "1", "--free", "2-4") == (
        "4",
        "note: --free names 2-3, on which /sys/fs/cgroup/kubepods.slice lets no pod run; left out\n",
    )


@pytest.mark.parametrize(
    ("arguments", "four", "twelve"),
    [
        ([], "0-3", "0-11"),
        (["--l3", "ignore"], "0-1,4-5", "0-9,12-13"),
        (["--l3", "require"], "0-3", "0-7,12-15"),
        (["--threads", "full-core"], "0-1,8-9", "0-5,8-13"),
        (["--order", "reference"], "0-1,8-9", "0-5,8-13"),
    ],
)
def test_spread_takes_a_thread_of_every_core_before_a_second_one(arguments: list[str], four: str, twelve: str) -> None:
    shape = ["--machine", "sockets=1,l3=2,cores=4,threads=2", "--policy", "spread", "-o", "json"]
    for count, cpus in (("4", four), ("12", twelve)):
        result = CliRunner().invoke(command, [*shape, "--count", count, *arguments])
        assert json.loads(result.stdout)["cpus"] == cpus


def test_all_options_reach_the_picker() -> None:
    result = _run("--count", "40", "--policy", "numa-distributed", "--group", "4", "-o", "json")
    # 40 CPUs need three nodes of 16; in steps of 4 that is 16, 12 and 12, if whole caches are not preferred.
    assert json.loads(result.stdout)["cpus"] == "0-13,16-21,32-45,48-53"


def test_a_free_list_with_a_typo_is_a_usage_error() -> None:
    error = _run("--count", "2", "--free", "0-3,x").exception
    assert isinstance(error, UsageError)
    assert str(error) == '--free: "x" in the cpu-list "0-3,x" is neither a CPU nor a range such as 0-3'


@pytest.mark.parametrize(
    ("within", "sentence"),
    [
        ("core:1", '--within "core:1" must be machine, socket:ID, numa:ID or l3:ID'),
        ("numa:4", '--within "numa:4" is not on this machine: its numa IDs are 0-3'),
        ("socket:x", '--within "socket:x" is not on this machine: its socket IDs are 0-1'),
    ],
)
def test_an_unknown_place_is_a_usage_error_that_names_the_known_ones(within: str, sentence: str) -> None:
    error = _run("--count", "2", "--within", within).exception
    assert isinstance(error, UsageError)
    assert str(error) == sentence


def test_a_cache_on_a_machine_without_any_is_a_usage_error() -> None:
    bare = topology({0: (0, 0, 0, None)})
    with pytest.raises(UsageError, match="it does not report any l3"):
        region(bare, "l3:0")


def test_every_cpu_is_socket_0_and_node_0_if_the_kernel_reports_none() -> None:
    bare = topology(dict.fromkeys(range(2), (0, -1, None, None)))
    assert region(bare, "socket:0") == region(bare, "numa:0") == CPUSet.parse("0-1")


def test_caches_have_their_kernel_ids_if_those_are_unique() -> None:
    sparse = topology({cpu: (cpu, 0, 0, 10 * (1 - cpu // 2)) for cpu in range(4)})
    assert str(region(sparse, "l3:10")) == "0-1"
    assert str(region(sparse, "l3:0")) == "2-3"


def test_caches_are_numbered_if_their_ids_repeat_on_every_socket() -> None:
    machine = regular(2, 1, 2, 2, 1)
    repeating = replace(machine, cpus={cpu.id: replace(cpu, l3_id=cpu.l3_id % 2) for cpu in machine.cpus.values()})
    assert [str(region(repeating, f"l3:{place}")) for place in range(4)] == ["0-1", "2-3", "4-5", "6-7"]
