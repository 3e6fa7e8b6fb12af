"""Enforcement by one of two instances: the silent one knows enough to take over at any time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.events import Occurrence, Unpinned
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Unread
from dranode.driver.claims.users import PodSandbox
from dranode.driver.machine.folder import HostRoot
from dranode.driver.nri.enforcer import Enforcer, RefusedError
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.nri.state import EnforcementStatus, Instance
from dranode.driver.pinning.containers import Container, Resources
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import JoinedSnapshots, Part, PinnedClaim, PinnedClaims, PinSnapshot
from dranode.sim.machines.forms import open_machine

EMPTY = PinSnapshot(online=CPUSet(range(8)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
CLAIM = PinnedClaim(ClaimRef("default", "mine", "a"), CPUSet((2, 3)), CPUSet((2, 3)), frozenset(("p1",)))
HELD = replace(EMPTY, claims=PinnedClaims.of([CLAIM]))
MINE = Container("c1", "main", PodSandbox("s1", "p1", "default", "p1"), env=("DRA_CPUSET_a=2-3",))
OTHER = Container("c2", "main", PodSandbox("s2", "p2", "default", "p2"))
UNKNOWN = Container("c3", "main", PodSandbox("s3", "p3", "default", "p3"), env=("DRA_CPUSET_b=4",))


@dataclass
class Node:
    now: PinSnapshot = EMPTY
    written: PinSnapshot | None = None

    def snapshot(self) -> PinSnapshot:
        return self.now

    def reread(self) -> PinSnapshot:
        if self.written is not None:
            self.now = self.written
        return self.now

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        del pods
        return {}


@dataclass
class Word(Instance):
    """Decides whose turn it is."""

    active: bool = False
    stands_in: bool = False
    turns: list[str] = field(default_factory=list)
    connections: list[bool] = field(default_factory=list)

    @property
    def speaks(self) -> bool:
        return self.active or self.stands_in

    def adjusts(self, request: str) -> bool:
        self.turns.append(request)
        return self.speaks

    def connected(self) -> None:
        self.connections.append(True)

    def disconnected(self) -> None:
        self.connections.append(False)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def word() -> Word:
    return Word()


@pytest.fixture
def enforcer(node: Node, word: Word) -> Enforcer:
    enforcer = Enforcer(node, open_machine("sockets=1,cores=8"), instance=word)
    enforcer.configured(RuntimePeer("containerd", "v2.3.0", "v0.12.1"))
    return enforcer


def test_the_silent_instance_adjusts_refuses_and_sends_nothing(enforcer: Enforcer, node: Node) -> None:
    assert enforcer.synchronize((OTHER,)) == ()
    node.now = HELD
    assert enforcer.create(MINE) == (Resources(), ())
    assert enforcer.create(UNKNOWN) == (Resources(), ())
    assert enforcer.update(OTHER, Resources(CPUSet((1,))), 0) == ()
    assert enforcer.stop(MINE) == ()
    assert enforcer.unsolicited.updates() == ()
    assert not enforcer.unsolicited.reconnection_due()


def test_the_silent_instance_neither_counts_nor_notifies(node: Node, word: Word) -> None:
    told: list[Occurrence] = []
    enforcer = Enforcer(node, open_machine("sockets=1,cores=8"), notify=told.append, instance=word)
    node.now = HELD
    for word.active in (False, True):
        enforcer.synchronize((MINE, OTHER))
        if not word.active:
            enforcer.create(UNKNOWN)
            assert told == []
            assert enforcer.status() == replace(EnforcementStatus(), containers=2)
    assert [type(each) for each in told] == [Unpinned]
    assert (enforcer.status().unpinned, enforcer.status().updates) == (2, 2)


def test_an_instance_sends_pending_updates_when_it_becomes_active(enforcer: Enforcer, node: Node, word: Word) -> None:
    enforcer.synchronize((OTHER,))
    node.now = HELD
    enforcer.create(MINE)
    word.active = True
    said = {update.container_id: str(update.resources.cpus) for update in enforcer.unsolicited.updates()}
    assert said == {"c2": "0-1,4-7"}
    enforcer.unsolicited.answered("")
    assert enforcer.unsolicited.updates() == ()


def test_cpus_that_the_other_instance_shared_before_it_knew_their_claim_are_taken_back(
    enforcer: Enforcer, node: Node, word: Word
) -> None:
    node.now = HELD
    assert enforcer.create(OTHER) == (Resources(), ())
    word.active = True
    said = {update.container_id: str(update.resources.cpus) for update in enforcer.unsolicited.updates()}
    assert said == {"c2": "0-1,4-7"}
    enforcer.unsolicited.answered("")
    assert enforcer.unsolicited.updates() == ()


class Kernel(HostRoot):
    """The kernel's files of every cgroup; those that are empty here are missing."""

    cpus, mems, pages = "0-7", "", ""

    def read_bytes(self, path: str) -> bytes:
        files = {"cpuset.cpus.effective": self.cpus, "cpuset.mems.effective": self.mems, "hugetlb.2MB.max": self.pages}
        text = files.get(path.rpartition("/")[2])
        if not text:
            raise FileNotFoundError(path)
        return f"{text}\n".encode()


@pytest.mark.parametrize(
    ("kernel", "again"),
    [("0-1,4-7", []), ("0-7", ["c2"]), (None, ["c2"])],
    ids=["where it should be", "elsewhere", "unknown"],
)
@pytest.mark.parametrize("heard", ["silent", "out of turn"])
def test_a_container_that_the_other_instance_may_have_moved_is_corrected(
    node: Node, word: Word, kernel: str | None, again: list[str], heard: str
) -> None:
    root = Kernel() if kernel else open_machine("sockets=1,cores=8")
    enforcer = Enforcer(node, root, instance=word)
    enforcer.configured(RuntimePeer("containerd", "v2.3.0", ""))
    node.now = HELD
    word.stands_in = True
    # This instance gives the first answer.
    shared = replace(OTHER, cpus=HELD.shared, started=True, cgroup="/c2")
    Kernel.cpus = "0-1,4-7"
    assert enforcer.synchronize((shared,)) == ()
    word.stands_in = False
    # The active one knows another claim, or none; this one does not see its answers.
    if heard == "silent":
        assert enforcer.stop(MINE) == ()
    else:
        assert enforcer.unsolicited.updates() == ()
    Kernel.cpus = kernel or ""
    word.active = True
    assert [each.container_id for each in enforcer.stop(replace(MINE, id="c8"))] == again
    assert enforcer.stop(replace(MINE, id="c9")) == ()


HUGE = 2 << 20
OF_MEMORY = PinnedClaim(ClaimRef("default", "mine", "m"), pods=frozenset(("p1",))).with_parts(
    (Part(0, nodes=CPUSet((1,)), binds=True, hugepages=((HUGE, 4 * HUGE),)),)
)
MEMORY = PinSnapshot(
    PinnedClaims.of([OF_MEMORY]),
    mems=CPUSet((0, 1)),
    variable="DRANODE_MEMS_",
    cdi_kind="dra.memory/claim",
    pins_cpus=False,
    page_sizes=(HUGE,),
)
WITH_MEMORY = replace(MINE, env=("DRANODE_MEMS_m=1",), started=True, cgroup="/c1", mems=CPUSet((1,)))
UNREAD = Unread("the ledger is damaged")


def joined(memory: PinSnapshot) -> PinSnapshot:
    """Return the record where the CPU driver also speaks for the memory driver."""
    both = JoinedSnapshots()
    both.put("dra.cpu", EMPTY)
    return both.put("dra.memory", memory)


class Bench:
    """An instance that was active, was silent meanwhile, and is active again."""

    def __init__(self, before: PinSnapshot, container: Container, cpus: str = "0-7") -> None:
        self.kernel, self.node, self.word = Kernel(), Node(before), Word(stands_in=True)
        self.kernel.cpus, self.kernel.mems, self.kernel.pages = cpus, "1", str(4 * HUGE)
        self.enforcer = Enforcer(self.node, self.kernel, instance=self.word)
        self.enforcer.configured(RuntimePeer("containerd", "v2.3.0", ""))
        assert self.enforcer.synchronize((container,)) == ()

    def again(self) -> list[tuple[str, Resources]]:
        """Return what containers get when it is active again."""
        self.word.stands_in = False
        assert self.enforcer.stop(OTHER) == ()
        self.word.active = True
        return [(each.container_id, each.resources) for each in self.enforcer.stop(OTHER)]


@pytest.mark.parametrize("before", [MEMORY, joined(MEMORY)], ids=["alone", "beside CPUs"])
@pytest.mark.parametrize(
    ("mems", "pages", "back"),
    [
        ("1", 4 * HUGE, False),
        ("0-1", 4 * HUGE, True),
        ("1", 0, True),
        # kubelet counts the claims too, and may have given more.
        ("1", 9 * HUGE, False),
        ("", 4 * HUGE, False),
    ],
    ids=["as given", "other nodes", "fewer pages", "more pages", "unknown"],
)
def test_memory_limits_that_the_other_instance_may_have_changed_are_restored(
    before: PinSnapshot, mems: str, pages: int, *, back: bool
) -> None:
    mine = replace(WITH_MEMORY, cpus=before.shared, hugepages=((HUGE, 4 * HUGE),))
    bench = Bench(before, mine)
    bench.kernel.mems, bench.kernel.pages = mems, str(pages)
    given = Resources(before.shared, CPUSet((1,)), hugepages=((HUGE, 4 * HUGE),))
    assert bench.again() == ([("c1", given)] if back else [])
    assert bench.enforcer.stop(replace(OTHER, id="c9")) == ()


def test_pages_that_the_other_instance_gave_by_its_options_are_taken_back() -> None:
    bench = Bench(MEMORY, replace(OTHER, id="c3", started=True, cgroup="/c3", hugepages=((HUGE, 4 * HUGE),)))
    bench.node.now = replace(MEMORY, exclusive_pages=True)
    assert [(key, each.hugepages) for key, each in bench.again()] == [("c3", ((HUGE, 0),))]
    bench.word.active = False
    # The other one may share pages that belong only to claims here.
    assert bench.again() == [("c3", Resources(hugepages=((HUGE, 0),)))]
    bench.kernel.pages = "0"
    assert bench.again() == []


def test_nodes_that_only_the_other_instance_knows_are_left_unchanged() -> None:
    before = joined(MEMORY)
    bench = Bench(before, replace(WITH_MEMORY, cpus=before.shared, hugepages=((HUGE, 4 * HUGE),)))
    bench.node.now = joined(replace(MEMORY, unread=UNREAD))
    bench.kernel.mems = "0"
    assert bench.again() == []
    # What moves its CPUs also sets its nodes.
    bench.node.now = replace(bench.node.now, reserved=CPUSet((0,)))
    assert [each.resources for each in bench.enforcer.stop(OTHER)] == [Resources(CPUSet(range(1, 8)), CPUSet((0,)))]


@pytest.mark.parametrize(("kernel", "again"), [("2-3", CLAIM.cpus), ("4-5", HELD.shared), ("", HELD.shared)])
def test_an_unidentified_container_stays_on_the_cpus_that_the_other_instance_set(kernel: str, again: CPUSet) -> None:
    others = replace(HELD, claims=PinnedClaims.of([replace(CLAIM, pods=frozenset())]))
    bench = Bench(others, replace(MINE, started=True, cgroup="/c1", cpus=others.shared), cpus=str(others.shared))
    bench.kernel.cpus = kernel
    assert [each.cpus for _, each in bench.again()] == [again]


def test_the_silent_instance_knows_grants_of_the_other_and_who_uses_them(
    enforcer: Enforcer, node: Node, word: Word
) -> None:
    node.now = HELD
    enforcer.create(MINE)
    enforcer.started(replace(MINE, started=True))
    word.active = True
    assert enforcer.unsolicited.updates() == ()
    with pytest.raises(RefusedError, match="in use by container"):
        enforcer.create(replace(MINE, id="c9", name="second"))


def test_the_active_instance_answers_with_adjustments_and_refusals(enforcer: Enforcer, node: Node, word: Word) -> None:
    word.active = True
    assert [update.container_id for update in enforcer.synchronize((OTHER,))] == ["c2"]
    node.now = HELD
    resources, updates = enforcer.create(MINE)
    assert str(resources.cpus) == "2-3"
    assert [update.container_id for update in updates] == ["c2"]
    with pytest.raises(RefusedError):
        enforcer.create(UNKNOWN)
    assert word.turns == ["create c1", "create c3"]


def test_turns_are_taken_for_each_request_of_a_container(enforcer: Enforcer, word: Word) -> None:
    enforcer.create(OTHER)
    enforcer.update(OTHER, Resources(), 0)
    enforcer.stop(OTHER)
    enforcer.removed(OTHER)
    assert word.turns == ["create c2", "update c2", "stop c2"]


def test_a_stand_in_for_the_active_instance_answers_from_the_current_records(node: Node, word: Word) -> None:
    enforcer = Enforcer(node, open_machine("sockets=1,cores=8"), instance=word)
    word.stands_in, node.written = True, HELD
    (sent,) = enforcer.synchronize((replace(OTHER, cpus=CPUSet(range(8))),))
    assert str(sent.resources.cpus) == "0-1,4-7"
    node.now, node.written = EMPTY, HELD
    resources, _ = enforcer.create(replace(OTHER, id="c9"))
    assert str(resources.cpus) == "0-1,4-7"
    assert enforcer.unsolicited.updates() == ()


def test_the_authority_is_told_about_every_connection(enforcer: Enforcer, word: Word) -> None:
    enforcer.synchronize(())
    enforcer.disconnected()
    assert word.connections == [True, False]


@pytest.mark.parametrize("written", [HELD, replace(EMPTY, unread=Unread("the ledger is damaged", blind=True))])
def test_an_update_of_a_container_that_is_not_known_yet_keeps_its_cpus(
    enforcer: Enforcer, node: Node, word: Word, written: PinSnapshot
) -> None:
    word.active, node.written = True, written
    (sent,) = enforcer.update(replace(MINE, cpus=CPUSet((2, 3))), Resources(CPUSet(range(8))), 0)
    assert (sent.container_id, str(sent.resources.cpus)) == ("c1", "2-3")
