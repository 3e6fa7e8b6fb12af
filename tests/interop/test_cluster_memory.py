"""Huge pages by claims under real kubelets: the limits of containers and their pods in the kernel.

Pages of 2 MiB are reserved on the node meanwhile. kubelet is restarted, because it counts them when it starts.
With cgroup v1 the hierarchy of the hugetlb controller is mounted before the runtime starts, if it is not.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.api import Document, RefusedError
from tests.interop.cluster import NODE, Cluster
from tests.interop.cluster_node import MAIN
from tests.interop.cluster_pods import document, pod, sleeper
from tests.interop.cluster_rows import ROWS, has_emulated_node, running, why_no_cluster
from tests.interop.huge_pages import hugetlb_controller

pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster() or "-")]

MIB = 1 << 20
PAGE = 2 * MIB
# On every NUMA node.
PAGES = 32
MOUNT = "/dev/hugepages"
RESOURCE = "hugepages-2Mi"
LITTLE, MORE = {"cpu": "50m"}, {"cpu": "100m"}
_RESIZED_WITH_CLAIMS = ("1.37",)
_COUNTING = ("1.37",)
_GATE = "DRANodeAllocatableResources"
_FILES = "/sys/devices/system/node/node*/hugepages/hugepages-2048kB"
_RESERVED = f"cat {_FILES}/nr_hugepages 2>/dev/null || :"
_FREE = f"cat {_FILES}/free_hugepages"


class PageLimit(NamedTuple):
    """The limits of a container and its pod for pages of 2 MiB, in MiB; None if there is no limit."""

    own: int | None
    of_pod: int | None


@pytest.fixture
def hugetlb(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the hugetlb controller available on the node before the runtime starts; cgroup v2 always has it."""
    (row,) = request.node.callspec.params.values()
    if has_emulated_node(row):
        yield
        return
    with hugetlb_controller():
        yield


@contextlib.contextmanager
def reserved_pages_of(cluster: Cluster) -> Iterator[None]:
    """Reserve huge pages on the node, and let kubelet count them."""
    before = numbers(cluster, _RESERVED)
    if not before or any(before):
        pytest.skip(f"the node has no huge pages of 2 MiB, or some that are somebody's: {before}")
    try:
        cluster.node.output(f"for file in {_FILES}/nr_hugepages; do echo {PAGES} > $file; done")
        if set(numbers(cluster, _RESERVED)) != {PAGES}:
            pytest.skip(f"the node has no {PAGES} huge pages to reserve: {numbers(cluster, _RESERVED)}")
        cluster.node.restart_kubelet()
        amount = f"{PAGES * len(before) * PAGE // MIB}Mi"
        cluster.wait(lambda: allocatable(cluster) == amount, f"kubelet counts {amount} of huge pages")
        yield
    finally:
        cluster.node.output(f"for file in {_FILES}/nr_hugepages; do echo 0 > $file; done")


@pytest.fixture
def paged(cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster whose node has huge pages, with the CPU and the memory driver."""
    with reserved_pages_of(cluster):
        cluster.install("memory")
        yield cluster


@pytest.fixture(params=[row for row in ROWS if row.startswith(_COUNTING)] or ["none/none"])
def counting(request: pytest.FixtureRequest, archive: Path) -> Iterator[Cluster]:
    """Yield the same with claims that count against the node's resources (KEP-5517)."""
    if request.param == "none/none":
        pytest.skip("no row has a release in which claims count against the node")
    with running(request.param, archive, f"{_GATE}=true") as cluster, reserved_pages_of(cluster):
        cluster.install("memory")
        path = "/spec/template/spec/containers/0/args/-"
        patch = json.dumps([{"op": "add", "path": path, "value": "--memory-node-allocatable-mapping"}])
        cluster.kubectl("patch", "-n", "dranode", "daemonset/dranode", "--type=json", f"--patch={patch}")
        cluster.wait(cluster.driver_is_ready, "the driver counts claims against the node")
        yield cluster


def numbers(cluster: Cluster, command: str) -> list[int]:
    """Return the numbers that a command prints on the node."""
    return [int(word) for word in cluster.node.output(command).split()]


def allocatable(cluster: Cluster) -> str:
    """Return how much kubelet can allocate in huge pages."""
    status = cluster.api.send("GET", f"/api/v1/nodes/{NODE}")["status"]
    return str(status.get("allocatable", {}).get(RESOURCE))


def published(cluster: Cluster) -> list[str]:
    """Return the capacity of each published device of huge pages."""
    items = cluster.api.send("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
    devices = [device for each in items for device in each["spec"]["devices"]]
    return [each["capacity"]["size"]["value"] for each in devices if each["name"].startswith("hugepages-2m")]


def claim_of_pages(name: str, mib: int) -> Document:
    """Return a claim for huge pages, which a container finds in its own hugetlbfs."""
    request = {"deviceClassName": "dra.hugepages-2m", "capacity": {"requests": {"size": f"{mib}Mi"}}}
    parameters = {"apiVersion": "dra.memory/v1alpha1", "kind": "MemoryConfig", "mount": MOUNT}
    config = [{"opaque": {"driver": "dra.memory", "parameters": parameters}}]
    devices = {"requests": [{"name": "pages", "exactly": request}], "config": config}
    return document("ResourceClaim", name, {"devices": devices})


def run(cluster: Cluster, name: str, mib: int, *containers: Document) -> None:
    """Run a pod with a claim for huge pages, which its containers name `pages`."""
    claims = {"pages": {"resourceClaimName": name}}
    cluster.apply(claim_of_pages(name, mib), pod(name, containers, claims=claims))
    cluster.runs(name)


def requesting(mib: int, name: str = MAIN, claims: Sequence[str] = ()) -> Document:
    """Return a container that also requests huge pages in its resources."""
    amount = {RESOURCE: f"{mib}Mi"}
    return sleeper(name, claims, requests=LITTLE | amount, limits=amount)


def page_limit(cluster: Cluster, name: str, container: str = MAIN) -> PageLimit:
    """Return the limits of a pod's container and of the pod."""
    statuses = {each["name"]: each for each in cluster.pods()[name]["status"]["containerStatuses"]}
    identity = statuses[container]["containerID"].rpartition("/")[2]
    files = "-name hugetlb.2MB.limit_in_bytes -o -name hugetlb.2MB.max"
    # In cgroup v1 and v2, exactly one folder of the container has such a file.
    script = f"""
file=$(find /sys/fs/cgroup -path '*{identity}*' '(' {files} ')' | head -n 1)
cat "$file" "$(dirname "$file")/../$(basename "$file")"
"""
    return PageLimit(*map(_mib, cluster.node.output(script).split()))


def _mib(text: str) -> int | None:
    return None if text == "max" or int(text) >= 1 << 62 else int(text) // MIB


def take(cluster: Cluster, name: str, mib: int) -> None:
    """Let a pod's container use a number of MiB of its huge pages, in a file.

    Raises:
        RefusedError: the kernel refuses them.
    """
    cluster.kubectl("exec", name, "-c", MAIN, "--", "/busybox", "fallocate", "-l", str(mib * MIB), f"{MOUNT}/data")


@pytest.mark.usefixtures("hugetlb")
def test_huge_pages_of_a_claim_are_its_containers_through_restarts_and_come_back(paged: Cluster) -> None:
    cluster = paged
    nodes = len(numbers(cluster, _RESERVED))
    devices = [f"{PAGES * PAGE // MIB}Mi"] * nodes
    cluster.wait(lambda: published(cluster) == devices, f"the driver publishes {devices}")
    # As docs/memory.md advises: the resources request as many pages, which kubelet gives to the pod and the container.
    run(cluster, "same", 8, requesting(8, claims=["pages"]))
    # kubelet gives the pod the pages of another container and this one none, so what it has comes from the driver.
    run(cluster, "beside", 8, sleeper(claims=["pages"], requests=LITTLE), requesting(16, "other"))
    # kubelet gives pages to neither the pod nor the container.
    run(cluster, "capped", 4, sleeper(claims=["pages"]))
    expected = {
        ("same", MAIN): PageLimit(8, 8),
        ("beside", MAIN): PageLimit(8, 16),
        ("beside", "other"): PageLimit(16, 16),
        ("capped", MAIN): PageLimit(4, 0),
    }

    def limits() -> dict[tuple[str, str], PageLimit]:
        return {pair: page_limit(cluster, *pair) for pair in expected}

    assert limits() == expected
    cluster.wait(
        lambda: any("HugePagesStillCapped" in each for each in cluster.events("capped")),
        "it is said of the pod that its limit is too small",
    )
    with pytest.raises(RefusedError, match="fallocate"):
        take(cluster, "capped", 2)
    with pytest.raises(RefusedError, match="fallocate"):
        take(cluster, "same", 10)
    for name, mib in (("same", 8), ("beside", 4)):
        take(cluster, name, mib)
    assert sum(numbers(cluster, _FREE)) == PAGES * nodes - 12 * MIB // PAGE
    line = next(
        line for line in cluster.kubectl("exec", "same", "--", "/busybox", "mount").splitlines() if MOUNT in line
    )
    assert "hugetlbfs" in line
    assert "pagesize=2M" in line

    # When kubelet resizes a container, it sends its own numbers of huge pages to the runtime.
    if cluster.release in _RESIZED_WITH_CLAIMS:
        patch = {"spec": {"containers": [{"name": MAIN, "resources": {"requests": MORE}}]}}
        cluster.kubectl("patch", "pod", "beside", "--subresource=resize", "--type=strategic", f"-p={json.dumps(patch)}")
        cluster.wait(lambda: requests(cluster, "beside") == MORE, "the container is resized in place")
        assert limits() == expected

    prepared = json.loads(cluster.dranode("claims", "-o", "json"))
    assert len(prepared) == 3
    cluster.node.restart_kubelet()
    cluster.kubectl("rollout", "restart", "-n", "dranode", "daemonset/dranode")
    cluster.wait(cluster.driver_is_ready, "the new driver is Ready")
    assert limits() == expected
    assert json.loads(cluster.dranode("claims", "-o", "json")) == prepared
    # Pages that pods use are not mistaken for pages that the driver cannot give.
    assert published(cluster) == devices

    for name in ("same", "beside", "capped"):
        cluster.delete(name)
    cluster.wait(lambda: sum(numbers(cluster, _FREE)) == PAGES * nodes, "all pages are free again")
    assert cluster.dranode("claims", "-o", "json").strip() == "[]"
    # All of a device can be claimed again.
    whole = PAGES * PAGE // MIB
    run(cluster, "whole", whole, requesting(whole, claims=["pages"]))
    assert page_limit(cluster, "whole") == PageLimit(whole, whole)
    take(cluster, "whole", whole)
    cluster.delete("whole")


def requests(cluster: Cluster, name: str) -> Document:
    """Return the requests of a pod's main container that kubelet has applied."""
    statuses = {each["name"]: each for each in cluster.pods()[name]["status"]["containerStatuses"]}
    of_main: Document = statuses[MAIN].get("resources", {}).get("requests", {})
    return of_main


@pytest.mark.usefixtures("hugetlb")
def test_a_claim_alone_gives_huge_pages_to_its_pod_where_claims_count_against_the_node(counting: Cluster) -> None:
    cluster = counting
    run(cluster, "claimed", 8, sleeper(claims=["pages"]))
    assert page_limit(cluster, "claimed") == PageLimit(8, 8)
    take(cluster, "claimed", 8)
    cluster.node.restart_kubelet()
    cluster.wait(cluster.driver_is_ready, "the driver is Ready")
    run(cluster, "later", 8, sleeper(claims=["pages"]))
    assert [page_limit(cluster, name) for name in ("claimed", "later")] == [PageLimit(8, 8)] * 2
    for name in ("claimed", "later"):
        assert not any("HugePagesStillCapped" in each for each in cluster.events(name))
        cluster.delete(name)
    assert cluster.dranode("claims", "-o", "json").strip() == "[]"
