"""`explain` says whether the containers of a memory claim get that memory, from the kernel's files."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.tools.cli.explain import command
from tests.fakes.recorded_machine import RecordedMachine
from tests.fakes.recorded_memory import MEMORY, MIB, WHOLE, container, local_cpus, prepare, unread_pins


@pytest.fixture
def machine() -> Iterator[RecordedMachine]:
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        yield RecordedMachine(Path(folder))


def steps(machine: RecordedMachine, driver: str = "memory") -> dict[str, tuple[str, str, str | None]]:
    """By station of the claim's way on the node: whether it was passed, what `explain` says of it, and the cause."""
    folder = machine.folder
    words = ["default/a", "--root", str(folder), "--node-name", "node", "--drivers", driver, "-o", "json"]
    nowhere = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": "", "HOME": str(folder)}
    ran = CliRunner(env=nowhere).invoke(command, [*words, "--kubelet-root", "/kubelet", "--cdi-dir", "/cdi"])
    assert ran.stdout, ran.exception
    trace = json.loads(ran.stdout)["ways"][-1]
    return {one["name"]: (one["passed"], one["what"], one.get("cause")) for one in trace["stations"]}


def test_a_container_that_has_its_memory_passes_the_last_station(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    container(machine, of_2MB=str(64 * MIB))
    seen = steps(machine)
    assert seen["record"][:2] == ("passed", "prepared with 512Mi of memory-numa1, 64Mi of hugepages-2m-numa1")
    assert seen["container memory"][0] == "passed"
    assert seen["container memory"][1].endswith("takes memory from NUMA nodes 1 and may have 64Mi in pages of 2MB")


def test_more_pages_than_claimed_come_from_kubelet(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    container(machine, of_2MB="max")
    assert steps(machine)["container memory"][0] == "passed"


@pytest.mark.parametrize(
    ("nodes", "limit", "sentence"),
    [
        ("0-1", str(64 * MIB), "takes memory from NUMA nodes 0-1, but should from 1"),
        ("1", "0", "may have 0 in pages of 2MB, but should have 64Mi"),
        ("0", "0", "takes memory from NUMA nodes 0, but should from 1, and may have 0 in pages of 2MB"),
    ],
)
def test_memory_of_another_node_is_a_stop(machine: RecordedMachine, nodes: str, limit: str, sentence: str) -> None:
    prepare(machine, MEMORY)
    container(machine, nodes=nodes, of_2MB=limit)
    passed, what, cause = steps(machine)["container memory"]
    assert (passed, cause) == ("stopped", "wrong-memory")
    assert sentence in what


def test_what_cannot_be_read_is_not_judged(machine: RecordedMachine) -> None:
    prepare(machine, MEMORY)
    assert steps(machine)["container memory"][0] == "unseen"
    container(machine)
    assert steps(machine)["container memory"][0] == "unseen"


def test_a_record_whose_memory_is_unreadable_is_not_taken_for_empty(
    machine: RecordedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(machine, MEMORY)
    container(machine, of_2MB=str(64 * MIB))
    unread_pins(monkeypatch, "uid-a")
    passed, what, _ = steps(machine)["container memory"]
    assert passed == "unseen"
    assert "it is of another version" in what


def test_a_container_is_not_judged_if_one_of_its_records_is_unreadable(
    machine: RecordedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(machine, MEMORY)
    prepare(machine, {"memory-numa0": "64Mi"}, "b")
    container(machine, f"{WHOLE} DRANODE_MEMS_uid-b=0 DRANODE_MEMORY_uid-b_0=0", nodes="0-1", of_2MB=str(64 * MIB))
    assert steps(machine)["container memory"][0] == "passed"
    unread_pins(monkeypatch, "uid-b")
    assert steps(machine)["container memory"][0] == "unseen"


def test_another_claim_may_limit_cpus_with_local_memory_further(machine: RecordedMachine) -> None:
    local_cpus(machine)
    container(machine, f"DRA_CPUSET_uid-a=4-5 {WHOLE}", nodes="1")
    assert steps(machine, "cpu")["container memory"][0] == "passed"
