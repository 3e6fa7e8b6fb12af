"""What runtime and kubelet together report about containers."""

import socket
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import UnreadError
from dranode.api.resource import ResourceClaimConsumerReference
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record
from dranode.driver.claims.users import PodSandbox
from dranode.driver.kubelet.podresources import ListedPods, PodResources
from dranode.driver.machine.folder import HostRoot
from dranode.driver.node.node import NodeClaims
from dranode.driver.pinning.snapshot import PinnedClaim, Pins, PinSnapshot
from dranode.driver.serve.nri_plugin import ContainerAccess, Enforcement, PinningDriver
from dranode.driver.serve.pinning import Pinning
from tests.fakes.drivers import Lamps, allocated_claim
from tests.fakes.lifecycle import KubeletPods
from tests.fakes.nri import FakeRuntime, container, pod
from tests.fakes.waiting import PATIENCE, eventually

MINE = ClaimRef("default", "mine", "a")
POD = "pod-uid-mine"


class PinnedLamps(Lamps, Pins):
    """Lamps whose containers are all pinned to the same CPUs."""

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        return replace(super().grant(claim, held, inventory), cpus=CPUSet((2, 3)), held=CPUSet((2, 3)))

    def pool(self, inventory: Inventory) -> PinSnapshot:
        del inventory
        return PinSnapshot(online=CPUSet(range(8)), variable="DRA_CPUSET_")

    def pinned(self, record: Record) -> PinnedClaim:
        pods = frozenset(pod.uid for pod in record.pods if pod.is_pod)
        return PinnedClaim(record.ref, record.cpus, record.held, pods)


class Kubelet(PodResources):
    """A kubelet that answers nothing, after running a test's hook."""

    meanwhile: Callable[[], object] = bool

    def in_use(self, driver: str, ref: ClaimRef, users: Collection[ResourceClaimConsumerReference] = ()) -> bool | None:
        del driver, ref, users
        self.meanwhile()
        return None

    def listed(self, driver: str, seconds: float | None = None, *, also: Collection[str] = ()) -> ListedPods:
        del driver, seconds, also
        return ListedPods(frozenset(), ())


def prepared(folder: Path) -> NodeClaims:
    node = NodeClaims(PinnedLamps(), folder, folder / "cdi")
    node.open()
    node.prepare({MINE: allocated_claim(MINE.name, Lamps.driver, ["lamp-0"], uid=MINE.uid)})
    return node


def enforcement_of(node: NodeClaims, folder: Path) -> Enforcement:
    access = ContainerAccess(str(folder / "nri.sock"), HostRoot())
    return Enforcement((PinningDriver(node),), access, PodResources(folder / "kubelet.sock"), pytest.fail)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.bind(str(tmp_path / "nri.sock"))
        sock.listen()
        yield sock


def test_a_synchronization_during_a_question_to_kubelet_does_not_count_for_that_answer(
    tmp_path: Path, listener: socket.socket
) -> None:
    node = prepared(tmp_path)
    kubelet = Kubelet(tmp_path / "kubelet.sock")
    pinning = Pinning(
        PinningDriver(node), ContainerAccess(str(tmp_path / "nri.sock"), HostRoot()), kubelet, pytest.fail
    )
    pinning.start()
    sock, _ = listener.accept()

    def synchronize() -> None:
        FakeRuntime(sock).handshake([pod(POD)], [container("c", POD, ("DRA_CPUSET_a=2-3",), cpus="2-3")])
        eventually(lambda: pinning.synchronized)

    kubelet.meanwhile = synchronize
    try:
        assert pinning.in_use(MINE) is None
        kubelet.meanwhile = bool
        assert pinning.in_use(MINE) is True
        assert pinning.in_use(replace(MINE, uid="b")) is False
    finally:
        pinning.stop()
        sock.close()


def test_a_kubelet_that_lists_no_pod_of_a_claim_does_not_make_it_unused(tmp_path: Path) -> None:
    node = prepared(tmp_path)
    kubelet = KubeletPods(tmp_path / "kubelet.sock")
    asked = PodResources(kubelet.socket)
    # The runtime has not listed its containers yet.
    pinning = Pinning(PinningDriver(node), ContainerAccess(str(tmp_path / "nri.sock"), HostRoot()), asked, pytest.fail)
    try:
        assert pinning.in_use(MINE) is None
        kubelet.run("pod-mine", MINE.name, MINE.uid, "lamp-0", driver=Lamps.driver)
        assert pinning.in_use(MINE) is True
    finally:
        kubelet.close()


def test_cgroups_are_verified_soon_after_a_claims_container_took_cpus_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranode.driver.serve.nri_plugin._VERIFY_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr("dranode.driver.serve.nri_plugin._CARRIED_OUT_SECONDS", 0.01)
    enforcement = enforcement_of(NodeClaims(PinnedLamps(), tmp_path, tmp_path / "cdi"), tmp_path)
    looks = threading.Semaphore(0)
    monkeypatch.setattr(enforcement.enforcer, "verify", looks.release)
    enforcement.start()
    try:
        enforcement.enforcer.starts({"uid-a"})
        assert looks.acquire(timeout=PATIENCE)
    finally:
        enforcement.stop()


def test_the_runtime_is_answered_in_time_while_a_call_holds_the_ledger(tmp_path: Path) -> None:
    node = prepared(tmp_path)
    with (
        node._lock.among_threads(),
        ThreadPoolExecutor() as pool,
        pytest.raises(UnreadError, match=r"more than 0\.8 s"),
    ):
        pool.submit(enforcement_of(node, tmp_path).reread).result()
    assert node.impediment is None


def test_kubelets_answer_counts_only_for_listed_pods(tmp_path: Path) -> None:
    kubelet = KubeletPods(tmp_path / "kubelet.sock")
    enforcement = enforcement_of(NodeClaims(PinnedLamps(), tmp_path, tmp_path / "cdi"), tmp_path)
    kubelet.run("has", "a", "uid-a", "lamp-0", driver=Lamps.driver)
    kubelet.run("has-not", "a", "uid-a", driver="another.example.com")
    pods = tuple(PodSandbox(name, f"uid-{name}", "default", name) for name in ("has", "has-not", "not-listed"))
    try:
        answer = enforcement.pod_claims(pods)
        assert answer is not None
        assert sorted(answer) == ["uid-has", "uid-has-not"]
        assert [sorted(answer[uid].devices) for uid in sorted(answer)] == [["main"], []]
    finally:
        kubelet.close()
