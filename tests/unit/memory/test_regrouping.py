"""Memory is granted once, however devices are grouped: over restarts, with other options, and with two instances."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Answer, Commit, Conflict, Prepared
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Record, holdings
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.claim_metrics import device_metrics
from dranode.memory.devices import memory_impairments
from dranode.memory.options import MemoryGroupBy, MemoryOptions, parse_reserved
from dranode.memory.plugin import MemoryPlugin
from dranode.show.picture.node import DriverView, node_picture
from dranode.sim.machines.forms import open_machine
from tests.fakes.memory import GIB, TWO_NODES, inventory

# Each of the two NUMA nodes of the machine is a socket.
GROUPS = {MemoryGroupBy.NUMA: "numa0", MemoryGroupBy.SOCKET: "socket0", MemoryGroupBy.MACHINE: "machine"}
CHANGES = list(itertools.permutations(MemoryGroupBy, 2))


class Node:
    """Instances of the driver on one node, which share its ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[NodeClaims] = []
        (folder / "data").mkdir()

    def start(self, group_by: MemoryGroupBy, reserved: str = "", machine: str = TWO_NODES) -> NodeClaims:
        """Start an instance beside those that run."""
        options = MemoryOptions(group_by=group_by, reserved=parse_reserved(reserved))
        clock = itertools.count(step=10).__next__
        node = NodeClaims(
            MemoryPlugin(open_machine(machine), options), self.folder / "data", self.folder / "cdi", clock=clock
        )
        node.open()
        self.opened.append(node)
        return node

    def restart(self, group_by: MemoryGroupBy, reserved: str = "", machine: str = TWO_NODES) -> NodeClaims:
        """Stop all instances and start one."""
        self.stop()
        return self.start(group_by, reserved, machine)

    def stop(self) -> None:
        while self.opened:
            self.opened.pop().close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def size_of(instance: NodeClaims, device: str) -> int:
    published = instance.inventory.device(device)
    assert published is not None
    (capacity,) = published.capacity.values()
    assert isinstance(capacity.value.value, int)
    return capacity.value.value


def claim(name: str, device: str, size: int, **fields: Any) -> ResourceClaim:
    consumed = {"size": str(size)}
    result = {"request": "mem", "driver": "dra.memory", "pool": "node", "device": device, "consumedCapacity": consumed}
    return decode(
        ResourceClaim,
        {
            "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"},
            "status": {"allocation": {"devices": {"results": [{**result, "shareID": f"share-{name}", **fields}]}}},
        },
    )


def prepare(instance: NodeClaims, name: str, device: str, size: int, **fields: Any) -> Answer:
    asked = claim(name, device, size, **fields)
    return instance.prepare({ClaimRef.of(asked): asked})[asked.metadata.uid]


@pytest.mark.parametrize("kind", ["memory", "hugepages-2m", "hugepages-1g"])
@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("side_by_side", [False, True])
def test_memory_of_a_claim_is_not_granted_again_under_another_grouping(
    node: Node,
    kind: str,
    before: MemoryGroupBy,
    after: MemoryGroupBy,
    side_by_side: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    first, device = node.start(before), f"{kind}-{GROUPS[before]}"
    assert isinstance(prepare(first, "a", device, size_of(first, device)), Prepared)
    second = node.start(after) if side_by_side else node.restart(after)
    # The rest of the machine is on the other NUMA node; a claim over both nodes counts against it as well.
    again = f"{kind}-{GROUPS[after]}"
    for size in (size_of(second, again), GIB if kind == "hugepages-1g" else 2 << 20):
        answer = prepare(second, "b", again, size)
        fits = after is MemoryGroupBy.MACHINE and size <= size_of(second, again) // 2
        assert isinstance(answer, Prepared if fits else Conflict)
        if isinstance(answer, Conflict):
            assert "the rest is held by ns/a" in answer.reason
    assert second.unprepare((ClaimRef("ns", "b", "uid-b"), ClaimRef("ns", "a", "uid-a")))
    assert isinstance(prepare(second, "c", again, size_of(second, again)), Prepared)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_memory_that_is_reserved_later_is_not_granted_beside_claims(
    node: Node, before: MemoryGroupBy, after: MemoryGroupBy
) -> None:
    first, device = node.start(before), f"memory-{GROUPS[before]}"
    held = size_of(first, device) - 4 * GIB
    assert isinstance(prepare(first, "a", device, held), Prepared)
    later = node.restart(after, "0:2Gi,1:2Gi")
    again = f"memory-{GROUPS[after]}"
    room = size_of(later, again) - held
    if room > 0:
        assert isinstance(prepare(later, "b", again, room + (1 << 20)), Conflict)
        assert isinstance(prepare(later, "b", again, room), Prepared)
    else:
        assert isinstance(prepare(later, "b", again, 1 << 20), Conflict)


def test_ordinary_memory_and_pages_of_other_sizes_are_not_counted(node: Node) -> None:
    first = node.start(MemoryGroupBy.NUMA)
    for name, kind in (("a", "hugepages-2m"), ("b", "hugepages-1g")):
        assert isinstance(prepare(first, name, f"{kind}-numa0", size_of(first, f"{kind}-numa0")), Prepared)
    later = node.restart(MemoryGroupBy.MACHINE)
    assert isinstance(prepare(later, "c", "memory-machine", size_of(later, "memory-machine")), Prepared)


# Written by a version without sources.
GRANT: dict[str, Any] = {
    "request": "mem",
    "pool": "node",
    "device": "memory-numa0",
    "share_id": "share-a",
    "edits": {"env": ["DRANODE_MEMORY_uid-a_0=0", "DRANODE_MEMPOLICY_uid-a_0=bind:0"]},
    "state": {"nodes": "0", "size": 8 * GIB},
    "amount": 8 * GIB,
}
EARLIER: dict[str, Any] = {
    "uid": "uid-a",
    "namespace": "ns",
    "name": "a",
    "grants": [GRANT],
    "edits": {"env": ["DRANODE_MEMS_uid-a=0"]},
    "fingerprint": "00112233aabbccdd",
}


def records_of(state: Any) -> tuple[Record, ...]:
    return (decode(Record, {**EARLIER, "grants": [{**GRANT, "state": state}]}),)


def test_records_of_earlier_versions_count(node: Node) -> None:
    first = node.start(MemoryGroupBy.NUMA)
    with first.store.transaction():
        first.store.commit(Commit(put=(decode(Record, EARLIER),)))
    later = node.restart(MemoryGroupBy.MACHINE)
    whole = size_of(later, "memory-machine")
    assert isinstance(prepare(later, "b", "memory-machine", whole), Conflict)
    assert isinstance(prepare(later, "b", "memory-machine", whole - 8 * GIB), Prepared)


@pytest.mark.parametrize("state", [None, "text", {"nodes": "none"}, {"size": 1}, {"nodes": ""}])
def test_an_amount_with_unknown_sources_counts_everywhere(state: Any) -> None:
    plugin = MemoryPlugin(open_machine(TWO_NODES), MemoryOptions())
    (holding,) = holdings(records_of(state), plugin.sources)
    for device in plugin.discover().devices:
        assert holding.amount(plugin.discover().sources_of(device.name)) == 8 * GIB


def test_an_unknown_policy_of_a_later_version_does_not_hide_the_nodes() -> None:
    plugin = MemoryPlugin(open_machine(TWO_NODES), MemoryOptions())
    (holding,) = holdings(records_of({"nodes": "0", "size": 1, "policy": "new", "tier": 2}), plugin.sources)
    assert [holding.amount(plugin.sources("", {"nodes": node}) or ()) for node in "01"] == [8 * GIB, 0]


def messages(options: MemoryOptions, machine: str, *records: Record) -> list[str]:
    return [each.message for each in memory_impairments(inventory(machine, options), records)]


@pytest.mark.parametrize("group_by", MemoryGroupBy)
def test_claims_are_not_impaired_by_another_grouping(node: Node, group_by: MemoryGroupBy) -> None:
    instance = node.start(MemoryGroupBy.NUMA)
    for device in ("memory-numa0", "hugepages-2m-numa1"):
        assert isinstance(prepare(instance, device, device, size_of(instance, device)), Prepared)
    options = MemoryOptions(group_by=group_by)
    assert messages(options, TWO_NODES, *instance.records()) == []
    (pages,) = messages(options, f"{TWO_NODES},hugepages2m=256", *instance.records())
    assert "claims hold 1Gi of hugepages-2m-numa1, but the machine has only 512Mi for claims now" in pages


def test_claims_of_several_groupings_are_impaired_together(node: Node) -> None:
    numa = node.start(MemoryGroupBy.NUMA)
    assert isinstance(prepare(numa, "a", "hugepages-2m-numa0", GIB), Prepared)
    machine = node.restart(MemoryGroupBy.MACHINE)
    assert isinstance(prepare(machine, "b", "hugepages-2m-machine", GIB), Prepared)
    records = machine.records()
    assert messages(MemoryOptions(), TWO_NODES, *records) == []
    # 512Mi are left of each node: that of numa0 falls short by itself, and so do both together.
    first, second = messages(MemoryOptions(), f"{TWO_NODES},hugepages2m=256", *records)
    assert "hold 1Gi of hugepages-2m-numa0, but the machine has only 512Mi" in first
    assert "hold 2Gi of hugepages-2m-machine, but the machine has only 1Gi" in second
    assert "claim ns/b may get less than its 1Gi" in second


def test_metrics_and_pictures_count_claims_of_another_grouping(node: Node) -> None:
    machine = node.start(MemoryGroupBy.MACHINE)
    assert isinstance(prepare(machine, "a", "memory-machine", 4 * GIB), Prepared)
    numa = node.restart(MemoryGroupBy.NUMA)
    plugin = numa.plugin
    families = device_metrics([(plugin.driver, numa.inventory, holdings(numa.records(), plugin.sources))])
    samples = {
        (sample.name.removeprefix("dranode_"), sample.labels["device"]): sample.value
        for family in families
        for sample in family.samples
        if "held" in sample.name
    }
    assert samples["device_held_capacity", "memory-numa0"] == samples["device_held_capacity", "memory-numa1"] == 4 * GIB
    assert samples["device_held_capacity", "hugepages-2m-numa0"] == 0
    assert samples["claim_held_capacity", "memory-machine"] == 4 * GIB
    view = DriverView.of(plugin.driver, numa.inventory, None, numa.records(), plugin)
    drawn = {device.name: (device.part, device.holders) for device in node_picture([view]).devices}
    assert drawn["memory-numa1"][0].startswith("10Gi of 14Gi free")
    assert drawn["memory-numa1"][1] == ("ns/a",)
    assert drawn["hugepages-2m-numa1"][1] == ()
