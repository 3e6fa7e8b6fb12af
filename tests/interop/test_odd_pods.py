"""Pods with a claim that never start, crash or ask for rare features, beside a real containerd.

`make interop` runs these tests.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dranode.sim.local.kubelet import KubeletError
from tests.interop.cache import CACHE
from tests.interop.containerd import Containerd, build, why_not
from tests.interop.cri import CGROUP, Pod, wait_until
from tests.interop.go_program import NoProgramError, go_program
from tests.interop.node import ONLINE, UNIFIED, Node, short_folder, started

VERSIONS = [version for version in os.environ.get("INTEROP", "").split() if version != "crio"]
REASON = (
    "make interop builds and runs real container runtimes"
    if not VERSIONS
    else why_not(*VERSIONS) or ("" if len(ONLINE) > 1 else "one CPU cannot be both held and shared")
)
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(REASON), reason=REASON)]

A, B = (Pod(name, f"pod-{name}") for name in "ab")
ATTEMPTS = 6
RESTARTS = 5
MIB = 1 << 20
_EXITED = 2
# User namespaces with idmapped mounts need runc 1.2; Debian 12 has 1.1.
_RUNC, _RUNC_VERSION = "github.com/opencontainers/runc", "v1.3.4"
# A CNI plug-in that does nothing but report an address.
_NETWORK = """#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "1.0.0"]}' ;;
ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}],
  "ips": [{"interface": 0, "address": "192.0.2.2/32"}]}' ;;
esac
"""


@pytest.fixture(params=VERSIONS or ["none"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(version: str) -> Iterator[Node]:
    with short_folder() as folder, started(Node(Containerd(build(version), folder))) as node:
        yield node


def test_a_claim_of_a_container_that_never_starts_is_held_until_it_is_unprepared(node: Node) -> None:
    cri = node.runtime.cri
    other = cri.run(B, "other")
    cpus, cdi = node.claim("mine", A)
    for _ in range(ATTEMPTS):
        with pytest.raises(grpc.RpcError, match="nowhere"):
            cri.create(A, "main", cdi=cdi, image="dranode.test/nowhere:latest")
    for attempt in range(ATTEMPTS):
        made = cri.create(A, "main", cdi=cdi, command=["/missing"], attempt=attempt)
        with pytest.raises(grpc.RpcError, match="/missing"):
            cri.call("StartContainer", container_id=made)
    wait_until(lambda: node.effective(other) == ONLINE - cpus, "the claim is still held")
    # kubelet stops a pod in this order: containers, sandbox, claim.
    for container in cri.call("ListContainers").containers:
        if container.pod_sandbox_id == cri.sandboxes[A]:
            cri.remove(container.id)
    node.release("mine")
    again, cdi = node.claim("next", B)
    assert again == cpus
    assert node.effective(cri.run(B, "main", cdi=cdi)) == cpus


def test_a_container_that_crashes_gets_the_claims_cpus_at_each_start(node: Node) -> None:
    cri = node.runtime.cri
    other = cri.run(B, "other")
    cpus, cdi = node.claim("mine", A)

    def has_exited(container: str) -> bool:
        return any(each.id == container and each.state == _EXITED for each in cri.call("ListContainers").containers)

    for attempt in range(ATTEMPTS):
        crashing = cri.run(A, "main", cdi=cdi, command=["/busybox", "false"], attempt=attempt)
        wait_until(lambda: has_exited(crashing), "the container crashes")  # noqa: B023 - called at once
        assert node.effective(other) == ONLINE - cpus
    assert node.effective(cri.run(A, "main", cdi=cdi, attempt=ATTEMPTS)) == cpus


@pytest.fixture
def node_of_networks(version: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Yield a node whose runc supports user namespaces, and whose pods have their own networks with one address."""
    with short_folder() as folder:
        try:
            runc = go_program(_RUNC, _RUNC_VERSION, CACHE / "runc" / _RUNC_VERSION)
        except NoProgramError as error:
            pytest.skip(str(error))
        monkeypatch.setenv("PATH", f"{runc.parent}:{os.environ['PATH']}")
        with started(Node(Containerd(build(version), folder))) as node:
            # Root in the pod's user namespace is an ordinary user on the node, who has to reach the pod's files.
            folder.chmod(0o711)
            for plugin in ("stand-in", "loopback"):
                (folder / "cni" / plugin).write_text(_NETWORK)
                (folder / "cni" / plugin).chmod(0o755)
            (folder / "cni" / "10.conflist").write_text(
                '{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "stand-in"}]}'
            )
            yield node


def test_a_pod_with_a_user_namespace_runs_on_its_claims_cpus(node_of_networks: Node) -> None:
    node, cri = node_of_networks, node_of_networks.runtime.cri
    mapped = Pod("mapped", "pod-mapped", first_host_id=1 << 20)
    wait_until(lambda: cri.ready("NetworkReady"), "the runtime sees the network")
    other = cri.run(mapped, "other")
    assert cri.output(other, "cat", "/proc/self/uid_map").split() == ["0", "1048576", "65536"]
    cpus, cdi = node.claim("mine", mapped)
    claimed = cri.run(mapped, "main", cdi=cdi)
    assert (node.effective(claimed), node.effective(other)) == (cpus, ONLINE - cpus)
    told = cri.output(claimed, "env").splitlines()
    assert f"DRA_CPUSET_uid-mine={cpus}" in told
    place = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/mine/cpu/dra.cpu-metadata.json"
    assert str(cpus) in cri.output(claimed, "cat", place)
    cri.remove(claimed)
    node.release("mine")
    assert node.claim("next", B)[0] == cpus


def test_a_limit_of_the_pod_itself_stays_and_is_named_where_it_caps_a_claim_without_a_quota(node: Node) -> None:
    cri = node.runtime.cri
    config = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "cfsQuota": "unlimited"}
    cpus, cdi = node.claim("mine", A, config=config)
    cri.sandbox(A)
    # As kubelet writes it for pod-level resources.
    folder = Path("/sys/fs/cgroup", "" if UNIFIED else "cpu", CGROUP, f"pod{A.uid}")
    limit = folder / ("cpu.max" if UNIFIED else "cpu.cfs_quota_us")
    limit.write_text("50000")
    claimed = cri.run(A, "main", cdi=cdi, quota=50_000)
    assert (node.effective(claimed), node.quota(claimed)) == (cpus, -1)
    wait_until(lambda: "but its pod's cgroup still allows 0.5 of the 1 CPUs" in node.driver_log, "the cap is named")
    assert limit.read_text().split()[0] == "50000"


def test_limits_of_memory_and_swap_stay_as_they_are_while_cpus_change(node: Node) -> None:
    cri = node.runtime.cri
    limits = {"memory_limit_in_bytes": 64 * MIB, "memory_swap_limit_in_bytes": 96 * MIB}
    other = cri.run(B, "other", resources=limits)
    cpus, cdi = node.claim("mine", A)
    claimed = cri.run(A, "main", cdi=cdi, resources=limits)
    for container, held in ((other, ONLINE - cpus), (claimed, cpus)):
        assert node.effective(container) == held
        assert node.memory_limits(container) == (64 * MIB, 96 * MIB)


def test_claims_that_come_and_go_while_the_runtime_restarts_are_prepared_and_none_is_left(node: Node) -> None:
    cri = node.runtime.cri
    other = cri.run(B, "other")
    stopping = threading.Event()
    prepared: list[str] = []
    refused: list[str] = []

    def kubelet() -> None:
        while not stopping.is_set():
            name = f"claim-{len(prepared) + len(refused)}"
            try:
                node.claim(name, A)
            except KubeletError as error:
                refused.append(str(error))
            else:
                prepared.append(name)
            node.release(name)

    thread = threading.Thread(target=kubelet, name="kubelet")
    thread.start()
    try:
        for _ in range(RESTARTS):
            before = len(prepared)
            node.restart_runtime()
            wait_until(lambda: len(prepared) > before, "a claim is prepared")  # noqa: B023 - called at once
    finally:
        stopping.set()
        thread.join()
    assert refused == []
    assert not node.records()
    cpus, cdi = node.claim("mine", A)
    claimed = cri.run(A, "main", cdi=cdi)
    assert (node.effective(claimed), node.effective(other)) == (cpus, ONLINE - cpus)
