"""The CPU driver on a machine with two NUMA nodes and cgroup v2: claims on each, and the CPUs of pods in the kernel.

Few test machines are of this kind; `make interop-vm` runs these tests in an emulated one.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.api.cpuset import CPUSet
from tests.interop.containerd import Containerd, build, why_not
from tests.interop.cri import Pod, wait_until
from tests.interop.node import ONLINE, Node, short_folder, started

VERSIONS = os.environ.get("INTEROP", "").split()
_NODES = [Path(f"/sys/devices/system/node/node{number}/cpulist") for number in range(2)]


def _why_not() -> str:
    if not VERSIONS:
        return "make interop-vm passes it in an emulated machine"
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "this machine has no cgroup v2"
    if not all(path.exists() for path in _NODES):
        return "this machine has less than two NUMA nodes"
    return why_not(*VERSIONS)


pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")]

A, B, C = (Pod(name, f"pod-{name}") for name in "abc")


@pytest.fixture(params=VERSIONS or ["none"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with short_folder() as folder, started(Node(Containerd(build(request.param), folder))) as node:
        yield node


def test_claims_on_two_numa_nodes_hold_their_pods_to_cpus_of_each(node: Node) -> None:
    cri = node.runtime.cri
    other = cri.run(C, "other")
    first, second = (CPUSet.parse(path.read_text().strip()) for path in _NODES)
    claimed: dict[str, CPUSet] = {}
    for pod, device, cpus in ((A, "cpudevnuma000", first), (B, "cpudevnuma001", second)):
        held, cdi = node.claim(f"of-{pod.name}", pod, device=device, cpus=2)
        assert len(held) == 2
        assert held <= cpus
        claimed[cri.run(pod, "main", cdi=cdi)] = held
    assert {container: node.effective(container) for container in claimed} == claimed
    assert {container: cri.cpus(container) for container in claimed} == {
        each: str(held) for each, held in claimed.items()
    }
    rest = ONLINE - CPUSet.union(claimed.values())
    wait_until(lambda: node.effective(other) == rest, "the pod without a claim makes room")

    for pod, container in zip((A, B), claimed, strict=True):
        cri.remove(container)
        node.release(f"of-{pod.name}")
    # Before containerd 2.4, NRI does not take unsolicited updates, so they are sent with its next request.
    cri.run(C, "next")
    wait_until(lambda: node.effective(other) == ONLINE, "the pod without a claim has all CPUs again")
