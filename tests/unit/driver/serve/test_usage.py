"""When what claims use is read, and of which containers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranode.driver.core.claims.on_record import Unread
from dranode.driver.core.claims.usage import ClaimsUsage, Figure
from dranode.driver.core.pinning.pinned import Pinned
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.machine.folder import FolderFiles
from dranode.driver.machine.forms import open_machine
from dranode.driver.serve.usage import UsageWatch
from tests.fakes.enforcement import claim, container, snapshot
from tests.fakes.machine import write_machine


@dataclass
class Node:
    """A node of two NUMA nodes with containers, whose clock and CPU time a test sets."""

    folder: Path
    running: Iterable[Pinned] | None = ()
    on_record: HeldSnapshot = field(default_factory=lambda: snapshot(claim("a", "0-1"), claim("b", "4")))
    now: float = 0.0
    spent: float = 0.0
    looks: int = 0

    def __post_init__(self) -> None:
        write_machine(self.folder, "sockets=2,numa=1,cores=4")
        self.watch = UsageWatch(
            open_machine(str(self.folder)), lambda: self.running, lambda: self.on_record, lambda: self.now, self.cost
        )

    def cost(self) -> float:
        """Asked before and after each look."""
        self.looks += 1
        return self.looks * self.spent

    def cgroup(self, name: str, usage: int, memory: str = "anon N0=1 N1=2") -> None:
        place = self.folder / "sys" / "fs" / "cgroup" / "kubepods" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "cpu.stat").write_text(f"usage_usec {usage}\n")
        (place / "memory.numa_stat").write_text(f"{memory}\n")

    def usage(self) -> ClaimsUsage:
        usage = self.watch.usage()
        assert usage is not None
        return usage


def runs(name: str, *claims: str) -> Pinned:
    made = replace(container(name, f"pod-{name}", started=True), cgroup=f"kubepods/{name}")
    return Pinned(made, claims)


def test_the_containers_of_the_runtime_are_read_in_their_cgroups(tmp_path: Path) -> None:
    node = Node(tmp_path, [runs("c1", "a"), runs("c2", "b"), runs("c3", "gone")])
    for name in ("c1", "c2", "c3"):
        node.cgroup(name, 3_000_000)
    usage = node.usage()
    assert {each.name: count for each, count in usage.held.items()} == {"claim-a": 2, "claim-b": 1}
    assert {(each.claim.name, each.pod): dict(each.values) for each in usage.pods} == {
        ("claim-a", "pod-c1"): {Figure.CPU: 3.0, Figure.MEMORY: 3, Figure.REMOTE_MEMORY: 2},
        ("claim-b", "pod-c2"): {Figure.CPU: 3.0, Figure.MEMORY: 3, Figure.REMOTE_MEMORY: 1},
    }
    assert usage.unread[Figure.WAIT] == 2


def test_nothing_is_said_while_it_is_not_certain_who_has_which_claim(tmp_path: Path) -> None:
    node = Node(tmp_path, None)
    assert node.watch.usage() is None
    node.now, node.running = 60, ()
    node.on_record = replace(node.on_record, unread=Unread("the ledger cannot be read"))
    assert node.watch.usage() is None
    # A claim is not idle for what was not looked at meanwhile.
    node.now, node.on_record = 120, replace(node.on_record, unread=None)
    assert node.usage().idle == {}


def test_cgroups_that_cannot_be_read_leave_claims_without_a_value(tmp_path: Path) -> None:
    node = Node(tmp_path, [runs("c1", "a")])
    for node.now in (0, 100):
        usage = node.usage()
    assert [dict(each.values) for each in usage.pods] == [{}]
    assert {each.name: is_idle for each, is_idle in usage.idle.items()} == {"claim-b": True}
    assert usage.unread[Figure.CPU] == 1


def test_a_look_that_cost_much_is_not_repeated_soon(tmp_path: Path) -> None:
    node = Node(tmp_path, [runs("c1", "a")], spent=0.2)
    node.cgroup("c1", 1_000_000)
    seen = []
    for node.now in (0.0, 19.9, 20.0):
        node.cgroup("c1", int(1_000_000 + node.now * 1_000_000))
        (pod,) = node.usage().pods
        seen.append(pod.values[Figure.CPU])
    assert seen == [1.0, 1.0, 21.0]


def test_a_process_that_can_open_nothing_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, [runs("c1", "a")])

    def refuse(*_: object) -> list[str]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(FolderFiles, "names", refuse)
    assert node.watch.usage() is None


def test_the_sum_over_claims_is_that_of_the_cgroups(tmp_path: Path) -> None:
    node = Node(tmp_path, [runs(f"c{n}", "a", "b") for n in range(20)])
    for node.now in (0, 15, 30):
        for n in range(20):
            node.cgroup(f"c{n}", 1_000_000 * n + int(node.now) * 333_333)
        node.usage()
    values = [pod.values[Figure.CPU] for pod in node.usage().pods]
    assert len(values) == 40
    assert sum(values) == pytest.approx(sum(n + 30 * 0.333333 for n in range(20)))
