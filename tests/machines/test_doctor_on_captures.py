"""`doctor` finds nothing on healthy nodes with captured hardware (hwloc's test data, beside the repository)."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from dranode.tools.diagnosis.rules import diagnose
from dranode.tools.readers.examine import judged_options
from dranode.tools.readers.host import NodeHost
from dranode.tools.readers.system import read_system
from tests.fakes.doctor import FakeNode, volume
from tests.machines.test_captured_machines import NAMES, captured


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_node_of_captured_hardware_has_no_findings(name: str) -> None:
    machine = captured(name)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="d") as folder:
        node = FakeNode(Path(folder), stack)
        facts = node.facts()
        options, _ = judged_options(("cpu",), machine, "worker", node.options)
        unseen: list[str] = []
        # Findings about the hardware's own files: isolated CPUs and cgroups.
        system = read_system(NodeHost(Path(folder), machine), options, unseen, statvfs=volume)
        assert options.refusals == ()
        found = diagnose(type(facts)(options, facts.kubelet, facts.runtime, facts.node, facts.cluster, system))
    # One capture has contradictory NUMA nodes, which the driver logs.
    odd = ["hardware-odd"] if "buggynuma" in name else []
    assert [finding.code for finding in found if finding.code != "cgroup-v1"] == odd
    # A capture has no processes.
    assert [sentence for sentence in unseen if "CPU affinity" not in sentence] == []
