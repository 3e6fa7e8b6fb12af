"""The CPU and the memory driver beside a real containerd: the limits of containers in the kernel.

`make interop` passes these with cgroup v1, whose hugetlb hierarchy is mounted for it where nobody uses the controller,
and `make interop-vm` with cgroup v2 and two NUMA nodes. Huge pages of 2 MiB are reserved meanwhile.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dranode.api.cpuset import CPUSet
from dranode.sim.local.kubelet import KubeletError
from tests.interop.containerd import Containerd, build, why_not
from tests.interop.cri import Pod, wait_until
from tests.interop.huge_pages import hugetlb_controller
from tests.interop.node import ONLINE, UNIFIED, Node, short_folder, started
from tests.interop.random_claims import Offers, RandomClaims

VERSIONS = os.environ.get("INTEROP", "").split()
# How many random claims are prepared.
CLAIMS = int(os.environ.get("INTEROP_CLAIMS", "15"))
SEED = int(os.environ.get("INTEROP_SEED", "17"))
MIB = 1 << 20
PAGES = 64
MEMORY, CPU = "dra.memory", "dra.cpu"
_NODE = "/sys/devices/system/node/node{}"
NUMA = [number for number in range(8) if Path(_NODE.format(number), "hugepages", "hugepages-2048kB").exists()]


def _why_not() -> str:
    if not VERSIONS:
        return "make interop builds and runs real container runtimes"
    return why_not(*VERSIONS) or ("" if NUMA else "the kernel has no huge pages of 2 MiB")


pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")]

A, B, C = (Pod(name, f"pod-{name}") for name in "abc")


@contextlib.contextmanager
def reserved_pages() -> Iterator[None]:
    """Reserve huge pages of 2 MiB on every NUMA node."""
    files = [Path(_NODE.format(node), "hugepages/hugepages-2048kB/nr_hugepages") for node in NUMA]
    before = [file.read_text() for file in files]
    try:
        for file in files:
            file.write_text(str(PAGES))
            if int(file.read_text()) != PAGES:
                pytest.skip(f"the machine has no {PAGES} huge pages to reserve")
        yield
    finally:
        for file, count in zip(files, before, strict=True):
            file.write_text(count)


@pytest.fixture(params=[(version, False) for version in VERSIONS or ["none"]], ids=str)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    version, exclusive = request.param
    with reserved_pages(), hugetlb_controller(), short_folder() as folder:
        options = ["--hugepages-exclusive"] if exclusive else []
        with started(Node(Containerd(build(version), folder), {"cpu": CPU, "memory": MEMORY}, options)) as node:
            yield node


def exclusively(function: Any) -> Any:
    params = [(version, True) for version in VERSIONS or ["none"]]
    return pytest.mark.parametrize("node", params, indirect=True, ids=str)(function)


def memory(node: int, mib: int) -> tuple[str, str, dict[str, str]]:
    return MEMORY, f"memory-numa{node}", {"size": f"{mib}Mi"}


def pages(node: int, count: int) -> tuple[str, str, dict[str, str]]:
    return MEMORY, f"hugepages-2m-numa{node}", {"size": f"{2 * count}Mi"}


def cpus(node: int, count: int = 1) -> tuple[str, str, dict[str, str]]:
    return CPU, f"cpudevnuma{node:03d}", {"dra.cpu/cpu": str(count)}


def every(cdi: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the CDI devices of all requests, each once."""
    return tuple(dict.fromkeys(device for devices in cdi.values() for device in devices))


def nodes(node: Node, container: str) -> str:
    return str(node.effective(container, "cpuset.mems"))


# kubelet sets a limit for every page size of the kernel; it is 0 without a request.
NONE = {"2MB": 0}


def test_one_claim_gives_cpus_memory_and_huge_pages_of_one_node(node: Node) -> None:
    cri = node.runtime.cri
    last = NUMA[-1]
    before = cri.run(B, "before", pages=NONE)
    cdi = node.claim_of_results("mine", {"cpus": cpus(last), "mem": memory(last, 64), "pages": pages(last, 8)}, A)
    container = cri.run(A, "main", cdi=every(cdi), pages=NONE)
    assert len(node.effective(container)) == 1
    assert nodes(node, container) == str(last)
    assert node.page_limit(container, "2MB") == 16 * MIB
    if UNIFIED:
        # The limit for reserved pages; runc 1.1 does not set it by itself, and not at all with v1.
        assert node.page_limit(container, "2MB.rsvd") == 16 * MIB
    wait_until(lambda: node.effective(before) == ONLINE - node.effective(container), "the other container makes room")
    assert nodes(node, before) == str(CPUSet(NUMA))


def test_containers_get_the_pages_of_the_requests_that_they_name(node: Node) -> None:
    cri = node.runtime.cri
    first, last = NUMA[0], NUMA[-1]
    cdi = node.claim_of_results("mine", {"small": pages(first, 2), "large": pages(last, 20)}, A)
    small, large = (cri.run(A, name, cdi=cdi[name], pages=NONE) for name in ("small", "large"))
    # A runtime drops a plug-in whose answer takes too long, and then creates containers without it.
    assert [node.page_limit(each, "2MB") // MIB for each in (small, large)] == [4, 40], node.driver_log[-3000:]
    assert [nodes(node, each) for each in (small, large)] == [str(first), str(last)]
    with pytest.raises(grpc.RpcError) as refused:
        cri.create(A, "second", cdi=cdi["large"])
    assert 'in use by container "large" of pod default/a' in refused.value.details()


def test_a_shared_claim_gives_every_container_of_its_pod_the_same(node: Node) -> None:
    cri = node.runtime.cri
    own = {"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig", "sharing": "pod", "mount": "/dev/hugepages"}
    cdi = node.claim_of_results("mine", {"pages": pages(NUMA[0], 4)}, A, B, configs={MEMORY: own})
    first, second = (cri.run(A, name, cdi=every(cdi), pages=NONE) for name in ("first", "second"))
    assert [node.page_limit(each, "2MB") // MIB for each in (first, second)] == [8, 8]
    with pytest.raises(grpc.RpcError, match="only containers of one pod may share it"):
        cri.create(B, "other", cdi=every(cdi))
    line = cri.output(first, "grep", "hugepages", "/proc/mounts")
    assert line.startswith("hugetlbfs /dev/hugepages hugetlbfs ")
    assert "pagesize=2M" in line
    assert f"size={8 * MIB}" in line or "size=8192k" in line or "size=8M" in line


def test_what_kubelet_gave_stays_where_claims_are_not_alone(node: Node) -> None:
    cri = node.runtime.cri
    own = cri.run(B, "own", pages={"2MB": 12 * MIB})
    cdi = node.claim_of_results("mine", {"pages": pages(NUMA[0], 4)}, A)
    both = cri.run(A, "both", cdi=every(cdi), pages={"2MB": 24 * MIB})
    assert [node.page_limit(each, "2MB") // MIB for each in (own, both)] == [12, 24]


@exclusively
def test_without_a_claim_there_are_no_huge_pages_where_the_node_is_ours(node: Node) -> None:
    cri = node.runtime.cri
    assert node.page_limit(cri.run(B, "own", pages={"2MB": 12 * MIB}), "2MB") == 0
    cdi = node.claim_of_results("mine", {"pages": pages(NUMA[0], 4)}, A)
    assert node.page_limit(cri.run(A, "main", cdi=every(cdi), pages=NONE), "2MB") == 8 * MIB


@pytest.mark.skipif(len(NUMA) < 2, reason="one NUMA node is near every CPU")
def test_memory_that_is_not_local_to_the_cpus_is_refused_where_these_ask_for_it(node: Node) -> None:
    local = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "memory": "local"}
    cdi = node.claim_of_results("mine", {"cpus": cpus(0), "mem": memory(1, 64)}, A, configs={CPU: local})
    with pytest.raises(grpc.RpcError) as refused:
        node.runtime.cri.create(A, "main", cdi=every(cdi))
    assert 'gives container "main" of pod default/a memory on NUMA nodes 1' in refused.value.details()


def test_more_than_the_machine_has_is_refused(node: Node) -> None:
    node.claim_of_results("most", {"pages": pages(NUMA[0], PAGES - 1)}, A)
    with pytest.raises(KubeletError, match=r"which has 2Mi of 128Mi left; the rest is held by default/most"):
        node.claim_of_results("more", {"pages": pages(NUMA[0], 2)}, B)
    node.release("most")
    node.claim_of_results("more", {"pages": pages(NUMA[0], 2)}, B)


def test_containers_created_while_the_driver_is_away_get_theirs_when_it_is_back(node: Node) -> None:
    cri = node.runtime.cri
    cdi = node.claim_of_results("mine", {"mem": memory(NUMA[-1], 64), "pages": pages(NUMA[-1], 4)}, A)
    node.kill_driver()
    container = cri.run(A, "main", cdi=every(cdi), pages=NONE)
    assert node.page_limit(container, "2MB") == 0
    node.start_driver()
    wait_until(lambda: nodes(node, container) == str(NUMA[-1]), "its memory comes from its claim's node")
    if UNIFIED:
        wait_until(lambda: node.page_limit(container, "2MB") == 8 * MIB, "it may have its claim's huge pages")
    else:
        # runc changes limits of huge pages only with cgroup v2, so a message tells people.
        wait_until(lambda: "may have 0 in pages of 2MB, but should have 8Mi" in node.driver_log, "the log says so")


def given(node: Node, container: str) -> tuple[str, int]:
    """Return the NUMA nodes of a container's memory, and its limit of huge pages in MiB."""
    return nodes(node, container), node.page_limit(container, "2MB") // MIB


def test_an_init_container_leaves_the_memory_to_the_main_one_and_this_one_to_its_next_start(node: Node) -> None:
    cri = node.runtime.cri
    cdi = node.claim_of_results("mine", {"mem": memory(NUMA[-1], 64), "pages": pages(NUMA[-1], 4)}, A)
    init = cri.run(A, "init", cdi=every(cdi), pages=NONE)
    with pytest.raises(grpc.RpcError, match='in use by container "init"'):
        cri.create(A, "main", cdi=every(cdi), pages=NONE)
    cri.stop(init)
    main = cri.run(A, "main", cdi=every(cdi), pages=NONE)
    assert given(node, main) == (str(NUMA[-1]), 8)
    cri.remove(main)
    again = cri.run(A, "main", cdi=every(cdi), pages=NONE, attempt=1)
    assert given(node, again) == (str(NUMA[-1]), 8)


def test_driver_and_runtime_that_are_killed_find_memory_held_as_it_was(node: Node) -> None:
    cri = node.runtime.cri
    own = {"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig", "sharing": "pod"}
    cdi = node.claim_of_results("mine", {"pages": pages(NUMA[-1], PAGES - 1)}, A, configs={MEMORY: own})
    node.kill_driver()
    node.start_driver()
    node.restart_runtime()
    with pytest.raises(KubeletError, match="the rest is held by default/mine"):
        node.claim_of_results("more", {"pages": pages(NUMA[-1], 2)}, B)
    first, second = (cri.run(A, name, cdi=every(cdi), pages=NONE) for name in ("first", "second"))
    other = cri.run(C, "other", pages=NONE)
    node.restart_runtime()
    node.kill_driver()
    node.start_driver()
    expected = [(str(NUMA[-1]), 2 * (PAGES - 1))] * 2 + [(str(CPUSet(NUMA)), 0)]
    assert [given(node, each) for each in (first, second, other)] == expected
    with pytest.raises(grpc.RpcError, match="does not list it"):
        cri.create(B, "thief", cdi=every(cdi))


def test_a_rolling_update_leaves_every_container_its_memory(node: Node) -> None:
    cri = node.runtime.cri
    node.end(node.process)
    node.start_driver("pod-old")
    cdi = node.claim_of_results("mine", {"mem": memory(NUMA[-1], 64), "pages": pages(NUMA[-1], 4)}, A)
    before = cri.run(A, "before", cdi=every(cdi), pages=NONE)
    node.hand_over("pod-new")
    assert given(node, before) == (str(NUMA[-1]), 8)
    cri.stop(before)
    assert given(node, cri.run(A, "after", cdi=every(cdi), pages=NONE)) == (str(NUMA[-1]), 8)
    with pytest.raises(KubeletError, match="the rest is held by default/mine"):
        node.claim_of_results("most", {"pages": pages(NUMA[-1], PAGES)}, B)


def test_a_limit_that_somebody_else_lowers_is_seen_in_the_cgroup_and_repaired(node: Node) -> None:
    cri = node.runtime.cri
    cdi = node.claim_of_results("mine", {"pages": pages(NUMA[-1], 4)}, A)
    container = cri.run(A, "main", cdi=every(cdi), pages=NONE)
    node.overwrite_page_limit(container, "2MB", 0)
    wait_until(lambda: "may have 0 in pages of 2MB, but should have 8Mi" in node.driver_log, "the log says so")
    if UNIFIED:
        # An old runtime gets the update with its next request.
        cri.run(B, "next", pages=NONE)
        wait_until(lambda: node.page_limit(container, "2MB") == 8 * MIB, "it may have its claim's huge pages")


def test_a_resize_by_somebody_else_keeps_memory_and_pages(node: Node) -> None:
    cri = node.runtime.cri
    cdi = node.claim_of_results("mine", {"mem": memory(NUMA[-1], 64), "pages": pages(NUMA[-1], 4)}, A)
    container = cri.run(A, "main", cdi=every(cdi), pages=NONE)
    resized = {"cpu_shares": 512, "hugepage_limits": [{"page_size": "2MB", "limit": 0}]}
    cri.call("UpdateContainerResources", container_id=container, linux=resized)
    assert nodes(node, container) == str(NUMA[-1])
    assert node.page_limit(container, "2MB") == 8 * MIB


def test_random_claims_get_what_they_were_given_while_driver_and_runtime_are_killed(node: Node) -> None:
    """CPUs, NUMA nodes and huge pages of each container in the kernel, over many claims and restarts."""
    claims = RandomClaims(node, Offers(NUMA, cpus, memory, pages), seed=SEED)
    claims.run(CLAIMS)
    assert claims.counts["containers read"] >= CLAIMS, claims.counts
