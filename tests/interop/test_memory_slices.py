"""The memory driver's slices on a real API server, and how kube-scheduler counts its claims against the node."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration, ResourceV1Api

from dranode.sim.cluster.workload import DEFAULT_CLASSES
from tests.interop.api import Api, PodWatch
from tests.interop.control_plane import TOKEN, control_plane, why_no_control_plane

# The first release whose server has the fields of KEP-5517 and KEP-6072.
RELEASES = [release for release in os.environ.get("INTEROP_SCHEDULER", "").split() if release >= "1.37"]
REASON = why_no_control_plane() if RELEASES else "make interop-scheduler builds and runs a real control plane"
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(REASON), reason=REASON),
    # The server's certificate is self-signed.
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),
]

PROGRAM = Path(sys.executable).with_name("dranode")
GATES = "DRANodeAllocatableResources=true,DRAListTypeAttributes=true"
# Two NUMA nodes with 14Gi of ordinary memory each.
MACHINE = "sockets=2,cores=4"
RESOURCE = "/apis/resource.k8s.io/v1"
FLAGS = ("--memory-node-allocatable-mapping", "--memory-numa-node-list")


def slices(*flags: str) -> list[dict[str, Any]]:
    """Return the slices that a node with this machine would publish."""
    words = ["slices", "--drivers", "memory", "--machine", MACHINE, "--node-name", "node", *flags, "-o", "json"]
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout)["items"])


@contextlib.contextmanager
def cluster(release: str, folder: Path, gates: str, *flags: str) -> Iterator[tuple[Api, PodWatch]]:
    """Yield a control plane with a node of 28Gi, its slices, and the classes of deploy/."""
    with control_plane(release, folder, gates) as api, contextlib.closing(PodWatch(api, TOKEN)) as watch:
        for name, expression in DEFAULT_CLASSES.items():
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            api.create(f"{RESOURCE}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
        api.create("/api/v1/nodes", {"metadata": {"name": "node", "labels": {"kubernetes.io/hostname": "node"}}})
        amounts = {"cpu": "8", "memory": "28Gi", "hugepages-2Mi": "2Gi", "pods": "110"}
        ready = [{"type": "Ready", "status": "True"}]
        # kubelet declares its features; without this one the server refuses slices with mappings.
        declared = [gate.partition("=")[0] for gate in gates.split(",") if gate]
        status = {"capacity": amounts, "allocatable": amounts, "conditions": ready, "declaredFeatures": declared[:1]}
        api.merge("/api/v1/nodes/node/status", {"status": status})
        for each in slices(*flags):
            api.create(f"{RESOURCE}/resourceslices", each)
        yield api, watch


def published(api: Api) -> list[dict[str, Any]]:
    """Return the devices as the server has them, read by the official client."""
    configuration = Configuration()
    configuration.host, configuration.verify_ssl = f"https://127.0.0.1:{api.port}", False
    configuration.api_key = {"authorization": f"Bearer {TOKEN}"}
    with ApiClient(configuration) as client:
        # As JSON, because the client's models may lack fields of a newer server.
        answer: Any = ResourceV1Api(client).list_resource_slice(_preload_content=False)
    items = json.loads(answer.data)["items"]
    return [device for each in items for device in each["spec"]["devices"]]


def pod(api: Api, watch: PodWatch, name: str, *, requests: dict[str, str], claim: str = "") -> str:
    """Create a pod with a claim for ordinary memory; returns its node, empty if it does not fit."""
    container: dict[str, Any] = {"name": "main", "image": "x", "resources": {"requests": requests}}
    spec: dict[str, Any] = {"containers": [container]}
    if claim:
        exactly = {"deviceClassName": "dra.memory", "capacity": {"requests": {"size": claim}}}
        devices = {"requests": [{"name": "mem", "exactly": exactly}]}
        api.create(
            f"{RESOURCE}/namespaces/default/resourceclaims", {"metadata": {"name": name}, "spec": {"devices": devices}}
        )
        spec["resourceClaims"] = [{"name": "near", "resourceClaimName": name}]
        container["resources"]["claims"] = [{"name": "near"}]
    api.create("/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec})
    return str(watch.settled("default", name)["spec"].get("nodeName", ""))


@pytest.mark.parametrize("release", RELEASES or ["none"])
def test_the_server_keeps_mappings_and_lists_of_numa_nodes(release: str, tmp_path: Path) -> None:
    with cluster(release, tmp_path, GATES, *FLAGS) as (api, _):
        expected = [device for each in slices(*FLAGS) for device in each["spec"]["devices"]]
        assert published(api) == expected
    assert all(device["nodeAllocatableResources"] for device in expected)
    assert all("ints" in device["attributes"]["resource.kubernetes.io/numaNode"] for device in expected)


@pytest.mark.parametrize("release", RELEASES or ["none"])
def test_with_mappings_claims_and_requests_are_counted_together(release: str, tmp_path: Path) -> None:
    with cluster(release, tmp_path, GATES, *FLAGS) as (api, watch):
        assert pod(api, watch, "claims", requests={"cpu": "1"}, claim="12Gi") == "node"
        assert pod(api, watch, "fits", requests={"memory": "15Gi"}) == "node"
        assert pod(api, watch, "too-much", requests={"memory": "2Gi"}) == ""


@pytest.mark.parametrize("release", RELEASES or ["none"])
def test_without_mappings_they_are_counted_apart(release: str, tmp_path: Path) -> None:
    with cluster(release, tmp_path, "") as (api, watch):
        assert pod(api, watch, "claims", requests={"cpu": "1"}, claim="12Gi") == "node"
        assert pod(api, watch, "all-the-same", requests={"memory": "28Gi"}) == "node"
