"""What a call passes over does not grow with the claims on record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.core.claims.record import Record
from dranode.driver.core.pinning.container_index import ContainerChange, Containers
from dranode.driver.core.pinning.corrections import settle
from dranode.driver.core.pinning.snapshot import HeldSnapshot
from dranode.driver.machine.forms import open_machine
from dranode.driver.node.node import NodeClaims
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import cpu_claim

MACHINE = "sockets=1,cores=8,threads=2"


class Enforced:
    """Containers that follow the records."""

    def __init__(self) -> None:
        self.containers = Containers()

    def follow(self, snapshot: HeldSnapshot | None) -> None:
        """Take in a snapshot, as the thread of the runtime does."""
        assert snapshot is not None
        change, _ = settle(self.containers, snapshot)
        self.containers.carry_out(ContainerChange(change.put, settled=snapshot))


def serving(folder: Path, claims: int) -> NodeClaims:
    """A node with so many claims on record that hold nothing, each of a pod."""
    (folder / "data").mkdir(parents=True)
    node = NodeClaims(CPUPlugin(open_machine(MACHINE), CPUOptions()), folder / "data", folder / "cdi")
    node.open("boot")
    records = (Record(uid=f"on-record-{n}", namespace="default", name=f"c{n}", fingerprint="0") for n in range(claims))
    ledger = node.store.refresh()
    with ledger.transaction():
        ledger.commit(put=records)
    node.close()
    node.look()
    assert len(node.records()) == claims
    node.watch(Enforced().follow)
    return node


def instructions(call: Callable[..., object], *arguments: object) -> int:
    """How many of Python's instructions this thread carries out meanwhile."""
    carried_out = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal carried_out
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        carried_out += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call(*arguments)
    finally:
        sys.settrace(before)
    return carried_out


def test_a_call_passes_over_no_more_with_a_thousand_claims_on_record(tmp_path: Path) -> None:
    claim = cpu_claim("c", "uid", "cpudevnuma000", 2)
    ref = reference(claim)
    counts: dict[int, tuple[int, int]] = {}
    for claims in (10, 1000):
        node = serving(tmp_path / str(claims), claims)
        # What a first call loads or compiles is there in the second.
        node.prepare({ref: claim})
        node.unprepare((ref,))
        counts[claims] = instructions(node.prepare, {ref: claim}), instructions(node.unprepare, (ref,))
        node.close()
    for many, few in zip(counts[1000], counts[10], strict=True):
        # To pass over one of 990 claims takes several.
        assert many - few < 990
