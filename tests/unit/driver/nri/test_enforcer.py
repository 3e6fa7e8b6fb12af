"""What other threads see of enforcement while the runtime sends requests."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.events import DriftRepaired, Occurrence
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Unread
from dranode.driver.claims.users import PodSandbox
from dranode.driver.machine.folder import HostRoot
from dranode.driver.nri.enforcer import Enforcer
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.pinning.containers import Container
from dranode.driver.pinning.drift import REPAIRS
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, PinSnapshot

EMPTY = PinSnapshot(online=CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
CLAIM = PinnedClaim(ClaimRef("default", "mine", "a"), CPUSet((2, 3)), CPUSet((2, 3)), frozenset(("p1",)))
HELD = replace(EMPTY, claims=PinnedClaims.of([CLAIM]))
MINE = Container("c1", "main", PodSandbox("s1", "p1", "default", "p1"), env=("DRA_CPUSET_a=2-3",), cpus=CLAIM.cpus)
OTHER = Container("c2", "main", PodSandbox("s2", "p2", "default", "p2"), cpus=HELD.shared, started=True, cgroup="/c2")


@dataclass
class Node:
    """A node service with the claims on record."""

    now: PinSnapshot = HELD
    answer: Mapping[str, KubeletPodClaims] | None = field(default_factory=dict)
    asked: int = 0

    def snapshot(self) -> PinSnapshot:
        return self.now

    def reread(self) -> PinSnapshot:
        return self.now

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        del pods
        self.asked += 1
        return self.answer


@dataclass
class Kernel(HostRoot):
    """The kernel's CPUs of every cgroup."""

    cpus: str

    def __post_init__(self) -> None:
        super().__init__()

    def read_bytes(self, path: str) -> bytes:
        if not path.endswith(("c1/cpuset.cpus.effective", "c2/cpuset.cpus.effective")):
            raise FileNotFoundError(path)
        return f"{self.cpus}\n".encode()


class Meanwhile(logging.Handler):
    """Runs a check whenever a line is logged."""

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__()
        self._look = look
        self.seen: list[object] = []

    def emit(self, record: logging.LogRecord) -> None:
        del record
        self.seen.append(self._look())


def test_a_mask_that_changes_while_the_kernel_is_read_is_not_drift() -> None:
    node = Node()

    class Slow(Kernel):
        def read_bytes(self, path: str) -> bytes:
            node.now = EMPTY
            enforcer.stop(MINE)
            return super().read_bytes(path)

    told: list[Occurrence] = []
    kernel = Kernel(str(HELD.shared))
    enforcer = Enforcer(node, kernel, notify=told.append)
    assert enforcer.synchronize((OTHER,)) == ()
    enforcer._verifier.root = Slow("0-7")
    assert enforcer.verify() == ()
    assert told == []


def test_a_container_verified_before_its_update_arrived_still_gets_the_next_one() -> None:
    node, kernel, now = Node(), Kernel(str(HELD.shared)), [0.0]
    enforcer = Enforcer(node, kernel, clock=lambda: now[0])
    enforcer.synchronize((OTHER,))
    node.now = EMPTY
    assert [str(each.resources.cpus) for each in enforcer.stop(MINE)] == ["0-7"]
    now[0] = 11.0
    assert [str(drift.actual.cpus) for drift in enforcer.verify()] == [str(HELD.shared)]
    # The runtime applies the update only now.
    kernel.cpus = "0-7"
    node.now = HELD
    (sent,) = enforcer.create(MINE)[1]
    assert (sent.container_id, sent.resources.cpus) == ("c2", HELD.shared)


def test_a_cgroup_that_the_runtime_has_not_limited_yet_is_not_drift() -> None:
    class Unlimited(HostRoot):
        def read_bytes(self, path: str) -> bytes:
            del path
            return b"0-7\n"

    enforcer = Enforcer(Node(), Unlimited())
    created = replace(OTHER, cpus=CPUSet(), started=False)
    assert enforcer.create(created)[0].cpus == HELD.shared
    assert enforcer.verify() == ()
    enforcer.started(created)
    assert [drift.actual.cpus for drift in enforcer.verify()] == [CPUSet(range(8))]


def test_drift_that_reconnections_do_not_end_is_given_up_on_an_old_runtime() -> None:
    class Elsewhere(HostRoot):
        def read_bytes(self, path: str) -> bytes:
            del path
            return b"7\n"

    now = [0.0]
    told: list[Occurrence] = []
    enforcer = Enforcer(Node(), Elsewhere(), clock=lambda: now[0], notify=told.append)
    enforcer.configured(RuntimePeer("containerd", "v1.7.27"))
    enforcer.synchronize((OTHER,))
    for _ in range(240):
        now[0] += 30.0
        enforcer.verify()
        assert enforcer.unsolicited.updates() == ()
        if enforcer.unsolicited.reconnection_due():
            enforcer.synchronize((OTHER,))
    # The first repair came with the answer to the first Synchronize.
    assert enforcer.status().reconnections == REPAIRS - 1
    assert enforcer.status().drifts == 1
    assert [type(each) for each in told] == [DriftRepaired]


def test_drift_is_still_repaired_by_a_reconnection_that_the_runtime_delays() -> None:
    kernel = Kernel(str(HELD.shared))
    now = [0.0]
    enforcer = Enforcer(Node(), kernel, clock=lambda: now[0])
    enforcer.configured(RuntimePeer("containerd", "v1.7.27"))
    enforcer.synchronize((OTHER,))
    kernel.cpus = "7"
    enforcer.verify()
    for now[0] in (0.0, 60.0):
        enforcer.unsolicited.updates()
    assert enforcer.unsolicited.reconnection_due()
    enforcer.verify()  # a runtime delays Synchronize until containers that are being stopped have stopped
    (update,) = enforcer.synchronize((OTHER,))
    assert (update.container_id, update.resources.cpus) == ("c2", HELD.shared)


def test_an_answer_for_a_claims_container_repeats_pending_updates() -> None:
    node = Node(now=EMPTY)
    enforcer = Enforcer(node, HostRoot())
    enforcer.configured(RuntimePeer("containerd", "v2.4.0", "v0.12.1"))
    enforcer.synchronize((replace(OTHER, cpus=EMPTY.shared),))
    node.now = HELD
    assert [each.container_id for each in enforcer.unsolicited.updates()] == ["c2"]
    # A container without a claim needs no other container to move first.
    assert enforcer.create(replace(MINE, id="c4", pod=OTHER.pod, name="side", env=()))[1] == ()
    (brought,) = enforcer.create(MINE)[1]
    assert (brought.container_id, brought.resources.cpus, brought.ignore_failure) == ("c2", HELD.shared, True)
    # Once is enough: the runtime has applied an answer before it sends the next request.
    enforcer.removed(MINE)
    assert enforcer.create(replace(MINE, id="c5"))[1] == ()
    # A failed update is repeated with the next answer.
    enforcer.unsolicited.answered("the runtime is busy")
    assert [each.container_id for each in enforcer.stop(MINE)] == ["c2"]


def test_updates_that_were_applied_are_not_repeated() -> None:
    node = Node(now=EMPTY)
    enforcer = Enforcer(node, HostRoot())
    enforcer.configured(RuntimePeer("containerd", "v2.4.0", "v0.12.1"))
    enforcer.synchronize((replace(OTHER, cpus=EMPTY.shared),))
    node.now = HELD
    enforcer.unsolicited.updates()
    enforcer.unsolicited.answered("")
    assert enforcer.create(MINE)[1] == ()


def test_the_claims_in_use_stay_known_while_the_runtime_lists_everything_again() -> None:
    enforcer = Enforcer(Node(), HostRoot())
    enforcer.synchronize((MINE, OTHER))
    meanwhile = Meanwhile(enforcer.claims_in_use)
    logger = logging.getLogger("dranode.driver.nri.enforcer")
    logger.addHandler(meanwhile)
    try:
        enforcer.synchronize((MINE, replace(OTHER, cpus=CPUSet())))
    finally:
        logger.removeHandler(meanwhile)
    assert meanwhile.seen == [{"a"}]


def test_a_mask_that_the_runtime_stored_but_did_not_write_is_repaired_at_synchronize() -> None:
    told: list[Occurrence] = []
    kernel = Kernel("0-7")
    enforcer = Enforcer(Node(), kernel, notify=told.append)
    (update,) = enforcer.synchronize((OTHER,))
    assert (update.container_id, update.resources.cpus) == ("c2", HELD.shared)
    assert [type(each) for each in told] == [DriftRepaired]
    # The runtime is killed once more before it writes; people have been notified already.
    assert [each.container_id for each in enforcer.synchronize((OTHER,))] == ["c2"]
    assert (len(told), enforcer.status().drifts) == (1, 1)
    kernel.cpus = str(HELD.shared)
    assert enforcer.synchronize((OTHER,)) == ()


def test_a_mask_that_was_given_up_is_still_repaired_once_for_each_connection() -> None:
    now = [0.0]
    enforcer = Enforcer(Node(), Kernel("7"), clock=lambda: now[0])
    enforcer.configured(RuntimePeer("containerd", "v2.4.0", "v0.12.1"))
    enforcer.synchronize((OTHER,))
    for _ in range(9):
        now[0] += 30.0
        enforcer.verify()
        enforcer.unsolicited.updates()
    assert enforcer.unsolicited.updates() == ()
    assert [each.container_id for each in enforcer.synchronize((OTHER,))] == ["c2"]
    assert enforcer.status().drifts == 1


def test_an_outdated_mask_of_the_shared_pool_is_late_and_no_drift() -> None:
    told: list[Occurrence] = []
    enforcer = Enforcer(Node(), Kernel("0-7"), notify=told.append)
    late = replace(OTHER, cpus=CPUSet(range(8)))
    assert [each.container_id for each in enforcer.synchronize((late,))] == ["c2"]
    assert told == []


def test_the_runtimes_mask_counts_if_the_kernel_does_not_show_one() -> None:
    enforcer = Enforcer(Node(), Kernel("0-7"))
    assert enforcer.synchronize((replace(OTHER, cgroup="/gone"), replace(OTHER, id="c3", started=False))) == ()


def test_the_drivers_own_container_is_pinned_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    enforcer = Enforcer(Node(), Kernel("0-7"), own_pod="p2")
    own = replace(OTHER, cpus=CPUSet())
    (update,) = enforcer.synchronize((own,))
    assert update.resources.cpus == HELD.shared
    assert (caplog.text, enforcer.status().unpinned) == ("", 0)
    other = replace(own, id="c4", pod=PodSandbox("s4", "p4", "default", "p4"))
    enforcer.synchronize((own, other))
    assert "of pod default/p4 had no CPU set and is pinned now" in caplog.text
    assert enforcer.status().unpinned == 1


def test_containers_created_while_the_memory_ledger_was_unread_are_listed_again_later() -> None:
    unread = replace(HELD, memory_unread=Unread("the ledger of dra.memory is damaged"))
    node = Node(now=unread)
    enforcer = Enforcer(node, HostRoot())
    enforcer.configured(RuntimePeer("containerd", "v2.3.4", "v0.12.1"))
    enforcer.synchronize((OTHER,))
    # A reconnection would change nothing: CPUs were read, and memory is still unread.
    assert (enforcer.is_certain(), enforcer.unsolicited.reconnection_due()) == (False, False)
    node.now = HELD
    assert enforcer.unsolicited.reconnection_due()
    enforcer.synchronize((OTHER,))
    assert (enforcer.is_certain(), enforcer.unsolicited.reconnection_due()) == (True, False)


def test_containers_created_while_no_ledger_was_read_are_listed_again_for_each_ledger() -> None:
    damaged = Unread("it is damaged")
    none_read = replace(HELD, unread=damaged, memory_unread=damaged)
    node = Node(now=none_read)
    enforcer = Enforcer(node, HostRoot())
    enforcer.configured(RuntimePeer("containerd", "v2.3.4", "v0.12.1"))
    enforcer.synchronize((OTHER,))
    for node.now in (none_read, replace(HELD, memory_unread=damaged), HELD):
        due = enforcer.unsolicited.reconnection_due()
        enforcer.synchronize((OTHER,))
        assert (due, enforcer.unsolicited.reconnection_due()) == (node.now.unread is None, False)


STRANGER = replace(MINE, id="c3", pod=PodSandbox("s3", "p3", "default", "p3"), started=True)
GIVEN = {"p3": KubeletPodClaims({"main": ("dra.k8s.io/cpu=claim-a",)})}


def test_kubelet_is_asked_again_if_it_did_not_answer_about_a_container() -> None:
    now = [0.0]
    node = Node(answer=None)
    enforcer = Enforcer(node, HostRoot(), clock=lambda: now[0])
    enforcer.configured(RuntimePeer("containerd", "v2.3.4", "v0.12.1"))
    # It may run anywhere, so it gets no CPUs of other claims until its claims are known.
    (update,) = enforcer.synchronize((replace(STRANGER, cpus=CPUSet(range(8))),))
    assert update.resources.cpus == HELD.shared
    assert (enforcer.is_certain(), enforcer.unsolicited.reconnection_due()) == (False, False)
    assert (enforcer.unsolicited.updates(), node.asked) == ((), 1)
    now[0] = 5.0
    assert (enforcer.unsolicited.updates(), node.asked) == ((), 2)
    node.answer, now[0] = GIVEN, 9.0
    assert (enforcer.unsolicited.updates(), node.asked) == ((), 2)
    now[0] = 10.0
    (update,) = enforcer.unsolicited.updates()
    assert (update.container_id, update.resources.cpus, node.asked) == ("c3", CLAIM.cpus, 3)
    assert enforcer.is_certain()
    assert enforcer.claims_in_use() == {"a"}
    now[0] = 20.0
    assert (enforcer.unsolicited.updates(), node.asked) == ((), 3)


def test_kubelet_is_asked_again_about_a_pod_that_it_does_not_list_yet() -> None:
    now = [0.0]
    node = Node(answer={})
    enforcer = Enforcer(node, HostRoot(), clock=lambda: now[0])
    enforcer.configured(RuntimePeer("containerd", "v2.3.4", "v0.12.1"))
    enforcer.synchronize((replace(STRANGER, cpus=CPUSet(range(8))),))
    assert not enforcer.is_certain()
    node.answer, now[0] = GIVEN, 5.0
    (update,) = enforcer.unsolicited.updates()
    assert (update.container_id, update.resources.cpus, enforcer.is_certain()) == ("c3", CLAIM.cpus, True)


def test_kubelets_denial_counts_and_is_checked_again() -> None:
    now = [0.0]
    node = Node(answer={"p3": KubeletPodClaims({})})
    enforcer = Enforcer(node, HostRoot(), clock=lambda: now[0])
    enforcer.configured(RuntimePeer("containerd", "v2.3.4", "v0.12.1"))
    (update,) = enforcer.synchronize((replace(STRANGER, cpus=CPUSet(range(8))),))
    assert (update.resources.cpus, enforcer.is_certain()) == (HELD.shared, True)
    for now[0] in (29.0, 30.0, 59.0, 60.0):
        assert enforcer.unsolicited.updates() == ()
    assert node.asked == 3
    node.answer, now[0] = GIVEN, 90.0
    (update,) = enforcer.unsolicited.updates()
    assert (update.container_id, update.resources.cpus) == ("c3", CLAIM.cpus)
    now[0] = 200.0
    assert (enforcer.unsolicited.updates(), node.asked) == ((), 4)


def test_a_container_on_held_cpus_stays_there_while_kubelet_is_silent() -> None:
    now = [0.0]
    node = Node(answer=None)
    enforcer = Enforcer(node, HostRoot(), clock=lambda: now[0])
    enforcer.configured(RuntimePeer("containerd", "v2.3.4", "v0.12.1"))
    assert enforcer.synchronize((replace(STRANGER, cpus=CPUSet((2,))),)) == ()
    node.now = replace(HELD, mems=CPUSet((0,)))
    assert enforcer.unsolicited.updates() == ()
    # kubelet gave the claim to another pod.
    node.answer, now[0] = {STRANGER.pod.uid: KubeletPodClaims({})}, 5.0
    (update,) = enforcer.unsolicited.updates()
    assert update.resources.cpus == HELD.shared
    assert enforcer.is_certain()


def test_a_runtime_without_unsolicited_updates_gets_the_mask_with_its_next_call() -> None:
    now = [0.0]
    node = Node(answer=None)
    enforcer = Enforcer(node, HostRoot(), clock=lambda: now[0])
    enforcer.configured(RuntimePeer("containerd", "v2.0.7", "v0.8.0"))
    enforcer.synchronize((replace(STRANGER, cpus=CPUSet(range(8))), OTHER))
    node.answer, now[0] = GIVEN, 5.0
    assert enforcer.unsolicited.updates() == ()
    assert {each.container_id: each.resources.cpus for each in enforcer.stop(OTHER)} == {"c3": CLAIM.cpus}
