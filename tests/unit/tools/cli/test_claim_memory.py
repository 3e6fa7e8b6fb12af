"""`dranode claims` with a driver that limits containers to memory: amounts, `--verify` and `--usage`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.recorded_machine import RecordedMachine
from tests.fakes.recorded_memory import MEMORY, MIB, WHOLE, container, local_cpus, prepare, unread_pins


@pytest.fixture
def machine() -> Iterator[RecordedMachine]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        yield RecordedMachine(Path(name))


def memory(machine: RecordedMachine) -> tuple[dict[str, Any], str | None]:
    rows, failed = machine.run("--verify")
    (row,) = rows
    found: dict[str, Any] = row["verify"]["containerMemory"]
    return found, failed


def test_a_row_says_how_much_of_each_device_a_claim_holds(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    ((row,), _) = machine.run()
    assert row["amounts"] == {"memory-numa1": 512 * MIB, "hugepages-2m-numa1": 64 * MIB}
    assert "memory-numa1 512Mi, hugepages-2m-numa1 64Mi" in " ".join(machine.table().split())


def test_a_container_with_the_claims_nodes_and_pages_is_ok(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    cgroup = container(machine, of_2MB=str(64 * MIB))
    found, failed = memory(machine)
    assert failed is None
    assert found == {
        "ok": True,
        "containers": [
            {
                "pod": "pod-a",
                "cgroup": cgroup,
                "expected": {"nodes": "1", "hugepages": {"2MB": 64 * MIB}},
                "found": {"nodes": "1", "hugepages": {"2MB": 64 * MIB}},
                "podMayHave": {},
                "ok": True,
            }
        ],
    }
    assert "default/a" in machine.table("--verify")


def test_containers_of_a_pod_group_are_looked_for_in_every_pod(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY, grouped=True)
    cgroup = container(machine, of_2MB=str(64 * MIB))
    checked, failed = memory(machine)
    assert failed is None
    assert [(each["pod"], each["cgroup"], each["ok"]) for each in checked["containers"]] == [
        ("pod-uid-a", cgroup, True)
    ]


@pytest.mark.parametrize(
    ("nodes", "limit", "ok"),
    [
        ("0-1", str(64 * MIB), False),
        ("0", str(64 * MIB), False),
        ("1", str(62 * MIB), False),
        ("1", "0", False),
        ("1", "max", True),
        ("1", str(128 * MIB), True),
    ],
)
def test_other_nodes_and_fewer_pages_than_given_are_wrong(
    machine: RecordedMachine, nodes: str, limit: str, *, ok: bool
) -> None:
    prepare(machine, MEMORY)
    container(machine, nodes=nodes, of_2MB=limit)
    found, failed = memory(machine)
    assert found["ok"] is ok
    assert failed == (
        None if ok else "a container with a claim does not have the memory that it was given; see the driver's log"
    )
    assert ("NO" in machine.table("--verify")) is not ok


def test_a_container_is_not_judged_if_one_of_its_records_is_unreadable(
    machine: RecordedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(machine, MEMORY)
    prepare(machine, {"memory-numa0": "64Mi"}, "b")
    container(machine, f"{WHOLE} DRANODE_MEMS_uid-b=0 DRANODE_MEMORY_uid-b_0=0", nodes="0-1", of_2MB=str(64 * MIB))
    unread_pins(monkeypatch, "uid-b")
    rows, failed = machine.run("--verify")
    assert [row["verify"]["containerMemory"]["ok"] for row in rows] == [None, None]
    assert failed is None
    assert "which memory default/b has: grants[0].state: it is of another version" in machine.table("--verify")


def test_a_claim_without_a_visible_container_is_reported(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    assert memory(machine) == ({"ok": None, "containers": []}, None)
    local_cpus(machine)
    looked = " ".join(machine.table("--verify").split())
    assert looked.count("default/a none of its containers can be inspected") == 1
    prepared = {row["driver"]: row for row in machine.run("--usage", "--seconds", "0.1")[0]}
    assert (prepared["dra.memory"]["memory_usage"], prepared["dra.memory"]["usage_unseen"]) == (
        [],
        "none of its containers can be inspected",
    )


def test_a_limit_that_cannot_be_read_is_not_ok(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    container(machine)
    found, failed = memory(machine)
    assert (found["ok"], failed) == (None, None)
    assert "not seen" in machine.table("--verify")


def test_a_container_with_one_request_is_limited_to_that_request(machine: RecordedMachine) -> None:
    prepare(machine, {"memory-numa0": "512Mi", "hugepages-2m-numa1": "64Mi"})
    container(machine, "DRANODE_MEMS_uid-a=0-1 DRANODE_MEMORY_uid-a_0=0", nodes="0")
    found, _ = memory(machine)
    assert found["containers"][0]["expected"] == {"nodes": "0", "hugepages": {}}
    assert found["ok"] is True


def test_preferred_memory_may_come_from_anywhere(machine: RecordedMachine) -> None:
    preferred: dict[str, Any] = {"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig", "policy": "preferred"}
    prepare(machine, {"memory-numa1": "512Mi"}, **preferred)
    container(machine, nodes="0-1")
    ((row,), failed) = machine.run("--verify")
    assert "containerMemory" not in row.get("verify", {})
    assert failed is None


def test_cpus_with_local_memory_are_verified_for_their_memory_too(
    machine: RecordedMachine,
) -> None:
    local_cpus(machine)
    prepare(machine, MEMORY)
    cpus = "DRA_CPUSET_uid-a=4-5"
    cgroup = container(machine, f"{cpus} {WHOLE}", of_2MB=str(64 * MIB))
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.cpus.effective", "4-5\n")
    rows, failed = machine.run("--verify")
    assert failed is None
    assert [(row["driver"], row["verify"]["containerMemory"]["ok"], "ok" in row["verify"]) for row in rows] == [
        ("dra.cpu", True, True),
        ("dra.memory", True, False),
    ]
    assert machine.table("--verify").count("64Mi in 2MB") == 2
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.mems.effective", "0-1\n")
    assert [row["verify"]["containerMemory"]["ok"] for row in machine.run("--verify")[0]] == [False, False]


def test_usage_shows_memory_by_node_and_the_huge_pages_in_use(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    cgroup = container(machine, of_2MB=str(64 * MIB))
    machine.write(f"sys/fs/cgroup/{cgroup}/memory.numa_stat", f"anon N0={3 * MIB} N1={20 * MIB}\nfile N0=0 N1=0\n")
    machine.write(f"sys/fs/cgroup/{cgroup}/hugetlb.2MB.current", f"{10 * MIB}\n")
    ((row,), _) = machine.run("--usage", "--seconds", "0.1")
    (used,) = row["memory_usage"]
    assert (used["bytes"], used["bytesElsewhere"], used["nodes"]) == (23 * MIB, 3 * MIB, "1")
    assert used["hugepages"] == {"2MB": {"given": 64 * MIB, "used": 10 * MIB}}
    assert "usage_unseen" not in row
    assert "10Mi of 64Mi in 2MB" in machine.table("--usage", "--seconds", "0.1")
