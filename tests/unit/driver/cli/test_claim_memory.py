"""`dranode claims` of a driver that holds containers to memory: amounts, `--verify` and `--usage`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.core.api.documents import decode
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.answers import Prepared
from dranode.driver.core.claims.plugin import Plugin
from dranode.driver.machine.forms import open_machine
from dranode.driver.node.node import NodeClaims
from dranode.memory.options import MemoryOptions
from dranode.memory.plugin import MemoryPlugin
from tests.fakes.drivers import reference
from tests.fakes.recorded_machine import RecordedMachine

MIB = 1 << 20
HARDWARE = "sockets=2,cores=4"
# What CDI injects for a claim `a` with a result of ordinary memory and one of huge pages.
WHOLE = "DRANODE_MEMS_uid-a=1 DRANODE_MEMORY_uid-a_0=1 DRANODE_MEMORY_uid-a_1=1"
MEMORY = {"memory-numa1": "512Mi", "hugepages-2m-numa1": "64Mi"}


@pytest.fixture
def machine() -> Iterator[RecordedMachine]:
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        yield RecordedMachine(Path(name))


def prepare(machine: RecordedMachine, amounts: dict[str, str], **config: Any) -> None:
    """Put a claim `a` of the pod `pod-a` on record with the memory driver."""
    consumed = {device: {"size": size} for device, size in amounts.items()}
    take(machine, MemoryPlugin(open_machine(HARDWARE), MemoryOptions()), consumed, config)


def local_cpus(machine: RecordedMachine) -> None:
    """Put two CPUs of NUMA node 1 on record for the claim `a`, which takes its memory from there."""
    local = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "memory": "local"}
    take(machine, CPUPlugin(open_machine(HARDWARE), CPUOptions()), {"cpudevnuma001": {"dra.cpu/cpu": "2"}}, local)


def take(machine: RecordedMachine, plugin: Plugin, consumed: dict[str, dict[str, str]], config: dict[str, Any]) -> None:
    results = [
        {
            "request": f"r{number}",
            "driver": plugin.driver,
            "pool": "node",
            "device": device,
            "consumedCapacity": capacity,
            "shareID": f"share-{device}",
        }
        for number, (device, capacity) in enumerate(consumed.items())
    ]
    opaque = {"source": "FromClaim", "opaque": {"driver": plugin.driver, "parameters": config}}
    document = {
        "metadata": {"namespace": "default", "name": "a", "uid": "uid-a"},
        "status": {
            "allocation": {"devices": {"results": results, "config": [opaque] if config else []}},
            "reservedFor": [{"resource": "pods", "name": "pod-a", "uid": "pod-uid-a"}],
        },
    }
    data = machine.folder / "kubelet" / "plugins" / plugin.driver
    data.mkdir(exist_ok=True)
    node = NodeClaims(plugin, data, machine.folder / "cdi")
    node.open()
    claim = decode(ResourceClaim, document)
    answer = node.prepare({reference(claim): claim})["uid-a"]
    assert isinstance(answer, Prepared), answer
    node.close()


def container(machine: RecordedMachine, env: str = WHOLE, nodes: str = "1", **limits: str) -> str:
    cgroup = machine.container(500, "a", "0-7", env)
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.mems.effective", f"{nodes}\n")
    for size, limit in limits.items():
        machine.write(f"sys/fs/cgroup/{cgroup}/hugetlb.{size.removeprefix('of_')}.max", f"{limit}\n")
    return cgroup


def memory(machine: RecordedMachine) -> tuple[dict[str, Any], str | None]:
    rows, failed = machine.run("--verify")
    (row,) = rows
    found: dict[str, Any] = row["verify"]["memory"]
    return found, failed


def test_a_row_says_how_much_of_each_device_a_claim_holds(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    ((row,), _) = machine.run()
    assert row["amounts"] == {"memory-numa1": 512 * MIB, "hugepages-2m-numa1": 64 * MIB}
    assert "memory-numa1 512Mi, hugepages-2m-numa1 64Mi" in " ".join(machine.table().split())


def test_a_container_with_its_nodes_and_pages_is_right(machine: RecordedMachine) -> None:
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
        None
        if ok
        else "a container with a claim has not the memory that it was given; the driver's log says what it does"
    )
    assert ("NO" in machine.table("--verify")) is not ok


def test_a_limit_that_nobody_can_read_is_not_right(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    container(machine)
    found, failed = memory(machine)
    assert (found["ok"], failed) == (None, None)
    assert "not seen" in machine.table("--verify")


def test_a_container_with_one_request_is_held_to_that_alone(machine: RecordedMachine) -> None:
    prepare(machine, {"memory-numa0": "512Mi", "hugepages-2m-numa1": "64Mi"})
    container(machine, "DRANODE_MEMS_uid-a=0-1 DRANODE_MEMORY_uid-a_0=0", nodes="0")
    found, _ = memory(machine)
    assert found["containers"][0]["expected"] == {"nodes": "0", "hugepages": {}}
    assert found["ok"] is True


def test_preferred_memory_may_come_from_anywhere(machine: RecordedMachine) -> None:
    preferred = {"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig", "policy": "preferred"}
    prepare(machine, {"memory-numa1": "512Mi"}, **preferred)
    container(machine, nodes="0-1")
    ((row,), failed) = machine.run("--verify")
    assert "memory" not in row.get("verify", {})
    assert failed is None


def test_cpus_with_local_memory_are_looked_at_as_well_and_a_claim_of_two_drivers_once(
    machine: RecordedMachine,
) -> None:
    local_cpus(machine)
    prepare(machine, MEMORY)
    cpus = "DRA_CPUSET_uid-a=4-5"
    cgroup = container(machine, f"{cpus} {WHOLE}", of_2MB=str(64 * MIB))
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.cpus.effective", "4-5\n")
    rows, failed = machine.run("--verify")
    assert failed is None
    assert [(row["driver"], row["verify"]["memory"]["ok"], "ok" in row["verify"]) for row in rows] == [
        ("dra.cpu", True, True),
        ("dra.memory", True, False),
    ]
    assert machine.table("--verify").count("64Mi in 2MB") == 2
    machine.write(f"sys/fs/cgroup/{cgroup}/cpuset.mems.effective", "0-1\n")
    assert [row["verify"]["memory"]["ok"] for row in machine.run("--verify")[0]] == [False, False]


def test_usage_says_what_lies_where_and_how_many_huge_pages_are_used(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    cgroup = container(machine, of_2MB=str(64 * MIB))
    machine.write(f"sys/fs/cgroup/{cgroup}/memory.numa_stat", f"anon N0={3 * MIB} N1={20 * MIB}\nfile N0=0 N1=0\n")
    machine.write(f"sys/fs/cgroup/{cgroup}/hugetlb.2MB.current", f"{10 * MIB}\n")
    ((row,), _) = machine.run("--usage", "--seconds", "0.1")
    (used,) = row["memory_usage"]
    assert (used["memory"], used["memoryElsewhere"], used["nodes"]) == (23 * MIB, 3 * MIB, "1")
    assert used["hugepages"] == {"2MB": {"given": 64 * MIB, "used": 10 * MIB}}
    assert "usage_unseen" not in row
    assert "10Mi of 64Mi in 2MB" in machine.table("--usage", "--seconds", "0.1")
