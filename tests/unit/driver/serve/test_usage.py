"""When the use of claims is read, and from which containers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Unread
from dranode.driver.claims.usage import ClaimsUsage, Figure
from dranode.driver.pinning.containers import Pinned
from dranode.driver.pinning.snapshot import HugepageLimits, JoinedSnapshots, PinnedClaim, PinnedClaims, PinSnapshot
from dranode.driver.serve.usage import UsageWatch
from dranode.sim.machines.confined import FolderFiles
from dranode.sim.machines.forms import open_machine
from tests.fakes.enforcement import claim, container, snapshot
from tests.fakes.machine import write_machine


@dataclass
class Node:
    """A node of two NUMA nodes with containers, and a clock and CPU times that a test sets."""

    folder: Path
    running: Iterable[Pinned] | None = ()
    on_record: PinSnapshot = field(default_factory=lambda: snapshot(claim("a", "0-1"), claim("b", "4")))
    now: float = 0.0
    spent: float = 0.0
    looks: int = 0

    def __post_init__(self) -> None:
        write_machine(self.folder, "sockets=2,numa=1,cores=4")
        self.watch = UsageWatch(
            open_machine(str(self.folder)),
            "dra.cpu",
            lambda: self.running,
            lambda: self.on_record,
            clock=lambda: self.now,
            cost=self.cost,
        )

    def cost(self) -> float:
        """Called before and after each reading."""
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


def test_the_usage_of_containers_is_read_from_their_cgroups(tmp_path: Path) -> None:
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


def test_nothing_is_reported_while_it_is_uncertain_who_has_which_claim(tmp_path: Path) -> None:
    node = Node(tmp_path, None)
    assert node.watch.usage() is None
    node.now, node.running = 60, ()
    node.on_record = replace(node.on_record, unread=Unread("the ledger cannot be read"))
    assert node.watch.usage() is None
    # A claim is not idle for a time that was not read.
    node.now, node.on_record = 120, replace(node.on_record, unread=None)
    assert node.usage().idle == {}


def test_cgroups_that_cannot_be_read_leave_claims_without_a_value(tmp_path: Path) -> None:
    node = Node(tmp_path, [runs("c1", "a")])
    for node.now in (0, 100):
        usage = node.usage()
    assert [dict(each.values) for each in usage.pods] == [{}]
    assert {each.name: is_idle for each, is_idle in usage.idle.items()} == {"claim-b": True}
    assert usage.unread[Figure.CPU] == 1


def test_an_expensive_reading_is_not_repeated_soon(tmp_path: Path) -> None:
    node = Node(tmp_path, [runs("c1", "a")], spent=0.2)
    node.cgroup("c1", 1_000_000)
    seen = []
    for node.now in (0.0, 19.9, 20.0):
        node.cgroup("c1", int(1_000_000 + node.now * 1_000_000))
        (pod,) = node.usage().pods
        seen.append(pod.values[Figure.CPU])
    assert seen == [1.0, 1.0, 21.0]


def test_a_process_without_descriptors_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


_MIB = 1 << 20


def memory_claim(uid: str, nodes: str, memory: int = 0, pages: HugepageLimits = ()) -> PinnedClaim:
    ref = ClaimRef("default", f"claim-{uid}", uid)
    return PinnedClaim(ref, nodes=CPUSet.parse(nodes), binds=True, memory=memory, hugepages=pages, driver="dra.memory")


def beside_memory(tmp_path: Path, *claims: PinnedClaim) -> tuple[Node, UsageWatch]:
    """A node whose snapshot is of two drivers, and the use of the memory driver's claims."""
    node = Node(tmp_path)
    joined = JoinedSnapshots()
    joined.put("dra.cpu", snapshot(claim("a", "0-1")))
    own = PinnedClaims.of(replace(each, driver="") for each in claims)
    node.on_record = joined.put("dra.memory", PinSnapshot(own, pins_cpus=False, variable="M_", cdi_kind="m"))
    root = open_machine(str(node.folder))
    return node, UsageWatch(root, "dra.memory", lambda: node.running, lambda: node.on_record, cost=node.cost)


def pages_used(node: Node, name: str, **sizes: int) -> None:
    for size, used in sizes.items():
        (node.folder / f"sys/fs/cgroup/kubepods/{name}/hugetlb.{size[1:]}.current").write_text(f"{used}\n")


def test_memory_that_a_claim_holds_is_not_counted_for_another_drivers_cpus(tmp_path: Path) -> None:
    both = memory_claim("a", "1", 6 * _MIB, ((2 * _MIB, 4 * _MIB),))
    node, watch = beside_memory(tmp_path, both)
    node.running = [runs("c1", "dra.cpu/a", "dra.memory/a")]
    node.cgroup("c1", 3_000_000, memory="anon N0=1 N1=5")
    pages_used(node, "c1", _2MB=2 * _MIB, _1GB=1 << 30)
    usage = watch.usage()
    assert usage is not None
    assert [(each.claim.name, dict(each.values)) for each in usage.pods] == [
        ("claim-a", {Figure.MEMORY: 6, Figure.REMOTE_MEMORY: 1, Figure.HUGEPAGES: 2 * _MIB})
    ]
    assert (dict(usage.idle), set(usage.unread.values())) == ({}, {0})
    # The other driver's figures exclude it, or memory would be twice in a claim's sum.
    (of_cpus,) = node.usage().pods
    assert dict(of_cpus.values) == {Figure.CPU: 3.0}
    (node.folder / "sys/fs/cgroup/kubepods/c1/memory.numa_stat").unlink()
    node.now = 100
    assert node.usage().unread[Figure.MEMORY] == 0


def test_memory_counts_for_cpus_if_a_claim_holds_only_huge_pages(tmp_path: Path) -> None:
    node, _ = beside_memory(tmp_path, memory_claim("p", "1", 0, ((2 * _MIB, 4 * _MIB),)))
    node.running = [runs("c1", "dra.cpu/a", "dra.memory/p")]
    node.cgroup("c1", 3_000_000, memory="anon N0=1 N1=5")
    (of_cpus,) = node.usage().pods
    assert dict(of_cpus.values) == {Figure.CPU: 3.0, Figure.MEMORY: 6, Figure.REMOTE_MEMORY: 5}


def test_ordinary_memory_and_huge_pages_are_divided_among_the_claims_that_hold_them(tmp_path: Path) -> None:
    small, large = memory_claim("s", "0", _MIB), memory_claim("l", "0", 3 * _MIB)
    few, many = (memory_claim(uid, "0", 0, ((2 * _MIB, count * _MIB),)) for uid, count in (("f", 2), ("m", 6)))
    node, watch = beside_memory(tmp_path, small, large, few, many)
    node.running = [runs("c1", *(f"dra.memory/{uid}" for uid in "slfm"))]
    node.cgroup("c1", 1, memory="anon N0=4000 N1=0")
    pages_used(node, "c1", _2MB=4 * _MIB)
    usage = watch.usage()
    assert usage is not None
    used = {each.claim.uid: dict(each.values) for each in usage.pods}
    assert used == {
        "s": {Figure.MEMORY: 1000.0, Figure.REMOTE_MEMORY: 0},
        "l": {Figure.MEMORY: 3000.0, Figure.REMOTE_MEMORY: 0},
        "f": {Figure.HUGEPAGES: _MIB},
        "m": {Figure.HUGEPAGES: 3 * _MIB},
    }


def test_huge_pages_that_cannot_be_read_have_no_value_and_are_counted(tmp_path: Path) -> None:
    node, watch = beside_memory(tmp_path, memory_claim("a", "0", 0, ((2 * _MIB, 2 * _MIB), (1 << 30, 1 << 30))))
    node.running = [runs("c1", "dra.memory/a")]
    node.cgroup("c1", 1)
    pages_used(node, "c1", _2MB=0)
    usage = watch.usage()
    assert usage is not None
    assert [dict(each.values) for each in usage.pods] == [{}]
    assert {figure for figure, count in usage.unread.items() if count} == {Figure.HUGEPAGES}


def test_no_memory_is_reported_while_its_ledger_is_unread(tmp_path: Path) -> None:
    node, watch = beside_memory(tmp_path, memory_claim("a", "0", _MIB))
    node.on_record = replace(node.on_record, memory_unread=Unread("the ledger cannot be read"))
    assert watch.usage() is None
    assert node.watch.usage() is not None
