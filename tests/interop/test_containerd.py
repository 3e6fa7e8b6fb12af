"""The CPU driver beside a real container runtime: the CPUs on which containers really run.

`make interop` says which versions to build and run; without it, or without root and Go, every test is skipped.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dranode.api.cpuset import CPUSet
from tests.interop.containerd import Containerd, build, why_not
from tests.interop.cri import Pod, wait_until
from tests.interop.crio import CRIO, why_no_crio
from tests.interop.node import ONLINE, Node, short_folder

VERSIONS = os.environ.get("INTEROP", "").split()


def why_no_runtime() -> str:
    """Return why one of the runtimes cannot run here; empty if all can."""
    containerds = [version for version in VERSIONS if version != "crio"]
    return why_not(*containerds) or (why_no_crio() if "crio" in VERSIONS else "")


REASON = (
    "make interop builds and runs real container runtimes"
    if not VERSIONS
    else why_no_runtime() or ("" if len(ONLINE) > 1 else "one CPU cannot be both held and shared")
)
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(REASON), reason=REASON)]

A, B, C = (Pod(name, f"pod-{name}") for name in "abc")
TAKES_UPDATES = ("v2.4",)
TURNS = 4
ENOUGH_FOR_TWO_CLAIMS = 3


@pytest.fixture(params=VERSIONS or ["none"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(version: str, folder: Path, *, cdi: bool = True) -> Node:
    runtime = CRIO(folder) if version == "crio" else Containerd(build(version), folder, cdi=cdi)
    node = Node(runtime)
    try:
        runtime.start()
        runtime.load_image()
        node.start_driver()
    except BaseException:
        node.close()
        raise
    return node


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as name:
        yield name


@pytest.fixture
def node(version: str, folder: Path) -> Iterator[Node]:
    node = made(version, folder)
    try:
        yield node
    finally:
        node.close()


def rest(cpus: CPUSet) -> str:
    return str(ONLINE - cpus)


def test_a_claimed_container_runs_on_its_cpus_and_everybody_else_on_the_others(node: Node) -> None:
    cri = node.runtime.cri
    before = cri.run(B, "before")
    assert cri.cpus(before) == str(ONLINE)
    cpus, cdi = node.claim("mine", A)
    claimed = cri.run(A, "main", cdi=cdi)
    after = cri.run(B, "after")
    assert [cri.cpus(each) for each in (claimed, before, after)] == [str(cpus), rest(cpus), rest(cpus)]


@pytest.mark.skipif(len(ONLINE) < 4, reason="two requests and everybody else need four CPUs")
def test_each_container_runs_on_the_cpus_of_the_request_that_it_names(node: Node) -> None:
    cri = node.runtime.cri
    cdi = node.claim_of_requests("mine", {"small": 1, "large": 2}, A)
    small, large = (cri.run(A, name, cdi=cdi[name]) for name in ("small", "large"))
    held = [CPUSet.parse(cri.cpus(each)) for each in (small, large)]
    assert [len(each) for each in held] == [1, 2]
    assert held[0].isdisjoint(held[1])
    assert cri.cpus(cri.run(B, "other")) == rest(held[0] | held[1])
    with pytest.raises(grpc.RpcError) as refused:
        cri.create(A, "second", cdi=cdi["large"])
    assert 'in use by container "large" of pod default/a' in refused.value.details()
    cri.stop(large)
    assert cri.cpus(cri.run(A, "second", cdi=cdi["large"])) == str(held[1])
    # A container that names only the claim has all of it, once no other container has a part.
    with pytest.raises(grpc.RpcError, match="in use by"):
        cri.create(A, "all", cdi=(*cdi["small"], *cdi["large"]))


def test_released_cpus_go_back_to_everybody(node: Node, version: str) -> None:
    cri = node.runtime.cri
    other = cri.run(B, "other")
    cpus, cdi = node.claim("mine", A)
    claimed = cri.run(A, "main", cdi=cdi)
    wait_until(lambda: cri.cpus(other) == rest(cpus), "the other container makes room")
    cri.remove(claimed)
    node.release("mine")
    if not version.startswith(TAKES_UPDATES):
        # This runtime's NRI does not take unsolicited updates, so they are sent with its next request.
        cri.run(C, "next")
    wait_until(lambda: cri.cpus(other) == str(ONLINE), "the other container is widened")


def test_a_forged_variable_is_refused_and_the_owner_still_gets_its_cpus(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    # kubelet does not list this pod, so nothing is known about it.
    with pytest.raises(grpc.RpcError) as refused:
        cri.create(B, "thief", cdi=cdi)
    assert "does not list it" in refused.value.details()
    node.pod_resources.show(B)
    with pytest.raises(grpc.RpcError) as refused:
        cri.create(B, "thief", env={"DRA_CPUSET_uid-mine": str(cpus)})
    assert "kubelet has not given to pod default/b" in refused.value.details()
    with pytest.raises(grpc.RpcError) as refused:
        cri.create(B, "thief", cdi=cdi)
    assert "kubelet has not given to pod default/b" in refused.value.details()
    with pytest.raises(grpc.RpcError) as refused:
        cri.create(B, "liar", env={"DRA_CPUSET_uid-nobody": "0"})
    assert "not prepared on this node" in refused.value.details()
    # A variable in the pod's spec does not override the injected one.
    owner = cri.run(A, "main", cdi=cdi, env={"DRA_CPUSET_uid-mine": str(ONLINE)})
    assert cri.cpus(owner) == str(cpus)


def test_a_pod_that_kubelet_gave_the_claim_later_is_believed(node: Node) -> None:
    cpus, cdi = node.claim("mine", A)
    node.pod_resources.give(B, "main", "mine", cdi)
    assert node.runtime.cri.cpus(node.runtime.cri.run(B, "main", cdi=cdi)) == str(cpus)


def test_the_second_container_with_a_claim_is_refused_until_the_first_is_gone(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A, B)
    first = cri.run(A, "first", cdi=cdi)
    with pytest.raises(grpc.RpcError) as refused:
        cri.create(B, "second", cdi=cdi)
    assert 'in use by container "first" of pod default/a, so container "second" of pod default/b' in (
        refused.value.details()
    )
    cri.stop(first)
    assert cri.cpus(cri.run(B, "second", cdi=cdi)) == str(cpus)


def test_an_init_container_that_exits_by_itself_leaves_the_claim_to_the_main_one(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    cri.run(A, "init", cdi=cdi, command=["/busybox", "true"])

    def main() -> bool:
        try:
            return cri.cpus(cri.run(A, "main", cdi=cdi)) == str(cpus)
        except grpc.RpcError:
            return False

    wait_until(main, "the main container runs on the claim's CPUs")


def test_a_resize_by_somebody_else_keeps_the_mask(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    claimed, other = cri.run(A, "main", cdi=cdi), cri.run(B, "other")
    for container in (claimed, other):
        cri.call("UpdateContainerResources", container_id=container, linux={"cpuset_cpus": str(ONLINE)})
        cri.call("UpdateContainerResources", container_id=container, linux={"cpu_shares": 512})
    assert [cri.cpus(claimed), cri.cpus(other)] == [str(cpus), rest(cpus)]


def test_the_quota_is_lifted_where_the_claim_says_so(node: Node) -> None:
    cri = node.runtime.cri
    config = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "cfsQuota": "unlimited"}
    _, cdi = node.claim("mine", A, config=config)
    claimed, other = cri.run(A, "main", cdi=cdi, quota=50_000), cri.run(B, "other", quota=50_000)
    assert [node.quota(claimed), node.quota(other)] == [-1, 50_000]


def test_a_container_with_its_own_and_shared_cpus_follows_the_pool_and_learns_which_are_its_own(node: Node) -> None:
    cri = node.runtime.cri
    config = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "shared": True}
    cpus, cdi = node.claim("mine", A, config=config)
    both, other = cri.run(A, "main", cdi=cdi), cri.run(B, "other")
    assert [cri.cpus(both), cri.cpus(other)] == [str(ONLINE), rest(cpus)]
    told = set(cri.output(both, "env").splitlines())
    assert {f"DRA_CPUSET_uid-mine={cpus}", "DRANODE_SHARED_uid-mine=true"} <= told
    assert not [name for name in cri.output(other, "env").splitlines() if name.startswith("DRA")]
    place = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/mine/cpu/dra.cpu-metadata.json"
    metadata, _ = json.JSONDecoder().raw_decode(cri.output(both, "cat", place))
    (device,) = metadata["requests"][0]["devices"]
    assert device["attributes"]["dra.cpu/shared"] == {"bool": True}
    assert device["attributes"]["dra.cpu/cpuset"] == {"string": str(cpus)}
    if len(ONLINE) < ENOUGH_FOR_TWO_CLAIMS:
        return
    # CPUs of a new claim leave the pool and so this container, which keeps its own CPUs.
    others, cdi = node.claim("other", B)
    claimed = cri.run(B, "claimed", cdi=cdi)
    assert cri.cpus(claimed) == str(others)
    wait_until(lambda: cri.cpus(both) == rest(others), "the container leaves the other claim's CPUs")
    node.restart_runtime()
    assert [cri.cpus(both), cri.cpus(other)] == [rest(others), rest(cpus | others)]
    cri.remove(claimed)
    node.release("other")
    cri.run(C, "next")
    wait_until(lambda: [cri.cpus(both), cri.cpus(other)] == [str(ONLINE), rest(cpus)], "the pool is whole again")


def test_containers_created_while_the_driver_is_away_are_pinned_when_it_is_back(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    early = cri.run(B, "early")
    node.kill_driver()
    claimed, late = cri.run(A, "main", cdi=cdi), cri.run(B, "late")
    assert cri.cpus(late) == str(ONLINE)
    node.start_driver()
    wanted = [str(cpus), rest(cpus), rest(cpus)]
    wait_until(lambda: [cri.cpus(each) for each in (claimed, early, late)] == wanted, "all are pinned")
    assert "2 containers had no CPU set and are pinned now" in node.driver_log
    assert "default/b/late" in node.driver_log


def test_a_claim_without_a_container_is_still_held_after_driver_and_runtime_restarted(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    node.kill_driver()
    node.start_driver()
    node.restart_runtime()
    assert cri.cpus(cri.run(B, "other")) == rest(cpus)
    assert cri.cpus(cri.run(A, "main", cdi=cdi)) == str(cpus)


def test_a_runtime_that_is_killed_finds_its_containers_pinned_as_they_were(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    claimed, other = cri.run(A, "main", cdi=cdi), cri.run(B, "other")
    node.restart_runtime()
    assert [cri.cpus(claimed), cri.cpus(other)] == [str(cpus), rest(cpus)]
    with pytest.raises(grpc.RpcError, match="in use by"):
        cri.create(A, "second", cdi=cdi)


def test_driver_and_runtime_are_killed_in_turn_while_containers_are_created(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    created: list[str] = []
    stopping = threading.Event()

    def create() -> None:
        number = 0
        while not stopping.is_set():
            number += 1
            try:
                created.append(cri.run(B, f"c{number}"))
            except grpc.RpcError:
                time.sleep(0.05)

    cri.sandbox(B)
    maker = threading.Thread(target=create, name="kubelet")
    maker.start()
    try:
        for turn in range(TURNS):
            time.sleep(0.3)
            if turn % 2:
                node.restart_runtime()
            else:
                node.kill_driver()
                time.sleep(0.2)
                node.start_driver()
    finally:
        stopping.set()
        maker.join()
    claimed = cri.run(A, "main", cdi=cdi)
    alive = {each.id for each in cri.call("ListContainers").containers if each.state == 1}
    assert len(created) > 4
    assert set(created) <= alive
    others = alive - {claimed}
    wait_until(lambda: {cri.cpus(each) for each in others} == {rest(cpus)}, "everybody else makes room")
    assert cri.cpus(claimed) == str(cpus)


def test_a_rolling_update_leaves_no_container_unpinned_while_containers_are_created(node: Node) -> None:
    cri = node.runtime.cri
    node.end(node.process)
    node.start_driver("pod-old")
    cpus, cdi = node.claim("mine", A)
    created: list[str] = []
    refused: list[str] = []
    stopping = threading.Event()

    def create() -> None:
        while not stopping.is_set():
            try:
                created.append(cri.run(B, f"c{len(created)}"))
            except grpc.RpcError as error:
                refused.append(str(error))

    cri.sandbox(B)
    maker = threading.Thread(target=create, name="kubelet")
    maker.start()
    try:
        wait_until(lambda: len(created) > 1, "containers are created")
        node.hand_over("pod-new")
        before = len(created)
        wait_until(lambda: len(created) > before + 1, "containers are created after it")
    finally:
        stopping.set()
        maker.join()
    assert refused == []
    assert {cri.cpus(each) for each in created} == {rest(cpus)}
    assert cri.cpus(cri.run(A, "main", cdi=cdi)) == str(cpus)
    other, _ = node.claim("other", C) if len(ONLINE) > 2 else (CPUSet(), ())
    assert other.isdisjoint(cpus)


def test_a_claim_whose_runtime_does_not_inject_cdi_devices_is_refused(version: str, folder: Path) -> None:
    if version == "crio" or not Containerd.can_switch_cdi_off(build(version)):
        pytest.skip(f"{version} always injects CDI devices")
    node = made(version, folder, cdi=False)
    try:
        _, cdi = node.claim("mine", A)
        node.pod_resources.give(A, "main", "mine", cdi)
        with pytest.raises(grpc.RpcError) as refused:
            node.runtime.cri.create(A, "main", cdi=cdi)
        # Some runtimes report it themselves before they call a plug-in.
        said = refused.value.details()
        assert "enable CDI in the runtime's configuration" in said or "CDI support is explicitly disabled" in said
    finally:
        node.close()


def test_a_container_without_the_variable_of_its_claim_is_refused(node: Node) -> None:
    cri = node.runtime.cri
    _, cdi = node.claim("mine", A)
    node.pod_resources.give(A, "main", "mine", cdi)
    with pytest.raises(grpc.RpcError) as refused:
        cri.create(A, "main")
    assert "enable CDI in the runtime's configuration" in refused.value.details()
    assert cri.cpus(cri.run(A, "sidecar"))


def test_drift_is_seen_in_the_cgroup_and_repaired(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    claimed = cri.run(A, "main", cdi=cdi)
    node.overwrite_cpuset(claimed, str(ONLINE))
    assert cri.cpus(claimed) == str(ONLINE)
    wait_until(lambda: f"runs on CPUs {ONLINE}, but should run on {cpus}" in node.driver_log, "drift is named", 45)
    # An old runtime gets the update with its next request, a newer one at once.
    cri.run(B, "next")
    wait_until(lambda: cri.cpus(claimed) == str(cpus), "drift is repaired")


def test_a_mask_that_the_runtime_stored_and_never_wrote_is_right_as_soon_as_it_is_back(node: Node) -> None:
    cri = node.runtime.cri
    cpus, cdi = node.claim("mine", A)
    claimed, other = cri.run(A, "main", cdi=cdi), cri.run(B, "other")
    before = node.synchronizations()
    node.runtime.kill()
    for container in (claimed, other):
        node.overwrite_cpuset(container, str(ONLINE))
    node.runtime.start()
    wait_until(lambda: node.synchronizations() > before, "the driver finds the runtime again")
    wait_until(lambda: [cri.cpus(claimed), cri.cpus(other)] == [str(cpus), rest(cpus)], "masks are repaired", 5)
    assert f"runs on CPUs {ONLINE}, but should run on {cpus}" in node.driver_log


def test_a_container_that_a_runtime_creates_as_soon_as_it_is_back_is_pinned_soon_after(node: Node) -> None:
    cri = node.runtime.cri
    cpus, _ = node.claim("mine", A)
    cri.sandbox(B)
    for turn in range(TURNS):
        node.runtime.kill()
        node.runtime.start()
        created = cri.run(B, f"c{turn}")
        wait_until(lambda each=created: cri.cpus(each) == rest(cpus), "it is pinned", 2)  # type: ignore[misc]
