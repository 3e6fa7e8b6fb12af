"""The driver under real kubelets: the image as deploy/ runs it, pods with claims, and what the kernel holds them to.

`make interop-cluster` says which releases of Kubernetes to build and run, each beside which containerd.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranode.driver.core.api.cpuset import CPUSet
from tests.interop.cluster import DRIVER_IMAGE, Cluster
from tests.interop.containerd import build as build_containerd
from tests.interop.containerd import why_not
from tests.interop.control_plane import why_no_control_plane
from tests.interop.engine import ROOT, base_image, build, buildah, why_no_image
from tests.interop.node import ONLINE
from tests.interop.runtime import busybox

# Such as `1.37/v2.3.4 1.34/v1.7.29`.
ROWS = os.environ.get("INTEROP_CLUSTER", "").split()


def _why_not() -> str:
    if not ROWS:
        return "make interop-cluster builds Kubernetes and runs it"
    if shutil.which("kubectl") is None or shutil.which("openssl") is None:
        return "there is no kubectl or no openssl"
    few = "" if len(ONLINE) > 1 else "one CPU cannot be both held and shared"
    return why_not() or why_no_control_plane() or why_no_image() or few


pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our image, as an archive."""
    tag = "localhost/dranode-test"
    build(ROOT, tag, "--build-arg", f"BASE={base_image()}")
    path = tmp_path_factory.mktemp("image") / "driver.tar"
    buildah("push", "--quiet", tag, f"oci-archive:{path}:{DRIVER_IMAGE}")
    return path


@pytest.fixture(params=ROWS or ["none/none"])
def cluster(request: pytest.FixtureRequest, archive: Path) -> Iterator[Cluster]:
    release, _, containerd = request.param.partition("/")
    program = busybox()
    assert program is not None
    # Sockets lie in it, whose paths are short.
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp", ignore_cleanup_errors=True) as name:
        shutil.copy(archive, Path(name) / "driver.tar")
        made = Cluster(release, build_containerd(containerd), Path(name), program)
        try:
            made.install()
            yield made
        finally:
            made.close()


def cpus(cluster: Cluster, pod: str) -> CPUSet:
    return CPUSet.parse(cluster.allowed(pod))


def test_pods_run_where_their_claims_say_through_restarts_and_an_update(cluster: Cluster) -> None:
    """One story, since a cluster takes a minute to start."""
    cluster.run("shared")
    assert cpus(cluster, "shared") == ONLINE
    cluster.run("first", cpus=1)
    first = cpus(cluster, "first")
    assert len(first) == 1
    cluster.wait(lambda: cpus(cluster, "shared") == ONLINE - first, "the shared pod leaves the claim's CPU")

    cluster.restart_kubelet()
    cluster.kubectl("rollout", "restart", "-n", "dranode", "daemonset/dranode")
    cluster.wait(cluster.driver_is_ready, "the new driver is Ready")
    assert cpus(cluster, "first") == first
    assert cpus(cluster, "shared") == ONLINE - first

    doctor = cluster.dranode("doctor")
    assert "nothing stops it" in doctor

    cluster.delete("first")
    cluster.wait(lambda: cpus(cluster, "shared") == ONLINE, "the shared pod has all CPUs again")
    cluster.kubectl("delete", "resourceclaim", "first")
    records = cluster.dranode("claims", "-o", "json")
    assert records.strip() == "[]"
