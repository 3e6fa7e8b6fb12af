"""The snapshot for enforcement: when it is built, and that it follows the records."""

from pathlib import Path

from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.node.node import NodeClaims
from dranode.sim.machines.forms import open_machine
from tests.fakes.drivers import reference
from tests.fakes.lifecycle import cpu_claim

MACHINE = "sockets=1,cores=8,threads=2"


def made(folder: Path) -> NodeClaims:
    (folder / "data").mkdir()
    return NodeClaims(CPUPlugin(open_machine(MACHINE), CPUOptions()), folder / "data", folder / "cdi")


def test_a_deferred_snapshot_has_all_claims_and_follows_the_records(tmp_path: Path) -> None:
    node = made(tmp_path)
    node.open("boot-1", snapshot=False)
    first, second = (cpu_claim(f"c{n}", f"uid-{n}", "cpudevnuma000", 2) for n in (1, 2))
    node.prepare({reference(first): first})
    assert node.snapshot() is None
    node.follow()
    snapshot = node.snapshot()
    assert snapshot is not None
    assert set(snapshot.claims) == {"uid-1"}
    node.prepare({reference(second): second})
    node.unprepare((reference(first),))
    snapshot = node.snapshot()
    assert snapshot is not None
    assert set(snapshot.claims) == {"uid-2"}
