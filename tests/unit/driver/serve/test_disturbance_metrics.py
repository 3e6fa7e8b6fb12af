"""Metrics of what has disturbed claims, from the driver's notes to the samples."""

from pathlib import Path

from dranode.cpu.options import read_options
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.hooks import Disturbance
from dranode.driver.node.node import NodeClaims
from dranode.driver.serve.claim_metrics import disturbance_metrics
from dranode.sim.machines.forms import open_machine
from tests.fakes.cpu import cpus
from tests.fakes.node import prepare, unprepare
from tests.fakes.settings import Kernel, quiet_claim

CLAIM = ClaimRef("default", "a", "uid-a")


def test_a_claim_has_a_sample_for_each_known_disturbance() -> None:
    known = Disturbance(CLAIM, cpus("2"), {"24 eth0": 3, "25 nvme0q1": 4}, busy=1.5)
    interrupts, busy = disturbance_metrics([("dra.cpu", known)])
    (sample,) = interrupts.samples
    assert (sample.name, sample.value) == ("dranode_claim_device_interrupts_total", 7)
    assert list(sample.labels.values()) == ["dra.cpu", "default", "a", "uid-a"]
    assert [sample.value for sample in busy.samples] == [1.5]


def test_an_unknown_disturbance_has_no_sample() -> None:
    (interrupts,) = disturbance_metrics([("dra.cpu", Disturbance(CLAIM, cpus("2"), {}))])
    assert interrupts.name == "dranode_claim_device_interrupts"
    assert [sample.value for sample in interrupts.samples] == [0]
    assert list(disturbance_metrics([("dra.cpu", Disturbance(CLAIM, cpus("2")))])) == []
    assert list(disturbance_metrics([])) == []


def test_a_node_has_disturbance_metrics_of_its_claims_until_they_end(tmp_path: Path) -> None:
    kernel = Kernel()
    kernel.files["proc/interrupts"] = "     CPU2 CPU3\n 25: 1 1 PCI-MSI 1-edge  nvme0q1\n"
    (tmp_path / "data").mkdir()
    options = read_options({"group_by": "machine", "max_isolation": "quiet"})
    plugin = CPUPlugin(open_machine("sockets=1,cores=4,threads=2"), options, host=kernel)
    node = NodeClaims(plugin, tmp_path / "data", tmp_path / "cdi")
    node.open("first")
    assert node.disturbances() == ()
    claim = quiet_claim("a", "2-3")
    prepare(node, claim)
    kernel.files["proc/interrupts"] = "     CPU2 CPU3\n 25: 1 4 PCI-MSI 1-edge  nvme0q1\n"
    (found,) = node.disturbances()
    assert (found.claim.name, found.interrupts) == ("a", {"25 nvme0q1": 3})
    unprepare(node, claim)
    assert node.disturbances() == ()
