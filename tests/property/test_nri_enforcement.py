"""Whatever happens, no container runs on CPUs that another's claim holds, and no update is superfluous."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Unread
from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning.container_index import Containers, corrections, settle
from dranode.driver.pinning.containers import Container, ContainerUpdate, Pinned, Resources
from dranode.driver.pinning.enforcement import Allowed, CreationRefused, create, stop, synchronize, update
from dranode.driver.pinning.identity import Evidence, KubeletPodClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinSnapshot

CPUS = 12
NAMES = st.sampled_from(("a", "b", "c", "d"))
SETS = st.sets(st.integers(0, 7), max_size=4).map(CPUSet)
PODS = st.sampled_from(("p1", "p2", "p3"))


def due(containers: Containers, snapshot: PinSnapshot) -> dict[str, Resources]:
    """The containers that must change, and the CPUs that they should get."""
    return {pinned.container.id: wanted for pinned, wanted in corrections(containers, snapshot)}


def held_claim(uid: str, cpus: CPUSet, mems: CPUSet) -> PinnedClaim:
    return PinnedClaim(ClaimRef("ns", uid, uid), cpus, cpus, mems=mems)


@given(
    having=st.lists(st.lists(NAMES, unique=True, max_size=2), max_size=5),
    steps=st.lists(
        st.tuples(
            st.lists(st.builds(held_claim, NAMES, SETS, st.sampled_from((CPUSet(), CPUSet((0,)))))),
            st.sets(NAMES, max_size=2),
            st.none() | SETS,
            st.sampled_from((None, None, Unread("the ledger is away", blind=False))),
            st.booleans(),
        ),
        min_size=2,
        max_size=8,
    ),
)
def test_a_check_of_changed_containers_finds_the_same_as_a_check_of_all(
    having: list[list[str]], steps: list[tuple[list[PinnedClaim], set[str], CPUSet | None, Unread | None, bool]]
) -> None:
    pod = PodSandbox("s", "p")
    containers = Containers(Pinned(Container(str(n), str(n), pod), tuple(uids)) for n, uids in enumerate(having))
    snapshot = PinSnapshot(online=CPUSet(range(8)), mems=CPUSet((0, 1)))
    for put, drop, online, unread, settles in steps:
        claims = snapshot.claims.changed(put, drop)
        snapshot = replace(snapshot, claims=claims, online=online or snapshot.online, unread=unread)
        assert due(containers, snapshot) == due(Containers(containers), snapshot)
        if settles:
            containers.apply(settle(containers, snapshot)[0])
            # Where the shared pool is empty, a container keeps its CPUs.
            assert due(containers, snapshot) == {}
            assert due(Containers(containers), snapshot) == {}
            for pinned in containers if snapshot.shared and unread is None else ():
                mine = CPUSet.union(snapshot.claims[uid].cpus for uid in pinned.claims if uid in snapshot.claims)
                # The kernel would replace a mask without an online CPU by the parent's mask.
                assert pinned.cpus & snapshot.online
                assert pinned.cpus & snapshot.online <= mine | snapshot.shared


class Node(RuleBasedStateMachine):
    """A node: claims and containers come and go, and a runtime applies the masks that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.containers = Containers()
        self.snapshot = PinSnapshot(online=CPUSet(range(CPUS)), variable="V_")
        self.runtime: dict[str, Container] = {}
        self.pods: dict[str, set[str]] = {}
        self.created = 0

    @initialize(reserved=st.sets(st.integers(0, CPUS - 1), max_size=2))
    def reserve(self, reserved: set[int]) -> None:
        self.snapshot = replace(self.snapshot, reserved=CPUSet(reserved))

    @rule(
        uid=NAMES, count=st.integers(1, 5), extra=st.integers(0, 2), pods=st.sets(PODS, min_size=1), one=st.booleans()
    )
    def prepare(self, uid: str, count: int, extra: int, pods: set[str], one: bool) -> None:  # noqa: FBT001 - a rule
        free = list(self.snapshot.online - self.snapshot.held - self.snapshot.reserved)
        held = CPUSet(free[: count + extra])
        # Prepare refuses a claim that would take the last shared CPU if none is reserved.
        enough = len(free) > count + extra or (self.snapshot.reserved and len(free) == count + extra)
        if uid in self.snapshot.claims or not enough:
            return
        claim = PinnedClaim(
            ClaimRef("ns", uid, uid), CPUSet(free[:count]), held, frozenset(pods), shared_in_pod=not one
        )
        self.snapshot = replace(self.snapshot, claims=self.snapshot.claims.changed([claim]))
        self.pods.setdefault(uid, set()).update(pods)

    @rule(uid=NAMES)
    def unprepare(self, uid: str) -> None:
        self.snapshot = replace(self.snapshot, claims=self.snapshot.claims.changed(drop=[uid]))

    @rule(pod=PODS, uids=st.sets(NAMES, max_size=2), forged=st.booleans(), name=st.sampled_from("xyz"))
    def create(self, pod: str, uids: set[str], forged: bool, name: str) -> None:  # noqa: FBT001 - a rule
        claims = [self.snapshot.claims[uid] for uid in sorted(uids) if uid in self.snapshot.claims]
        env = tuple(f"V_{claim.claim.uid}={'0-1' if forged else claim.cpus}" for claim in claims)
        self.created += 1
        made = Container(f"c{self.created}", name, PodSandbox(f"s-{pod}", pod, "ns", pod), env=env)
        decision = create(self.containers, self.snapshot, made, self.evidence())
        if isinstance(decision, CreationRefused):
            assert decision.reason
            return
        assert isinstance(decision, Allowed)
        assert decision.resources.cpus
        assert all(pod in claim.pods for claim in claims)
        self.answered(decision)
        # kubelet has stopped the earlier container of that name.
        for key in [key for key, one in self.runtime.items() if (one.pod.uid, one.name) == (pod, name)]:
            del self.runtime[key]
        self.runtime[made.id] = replace(made, cpus=decision.resources.cpus)

    def evidence(self) -> Evidence:
        return Evidence(reread=True, pods={pod: KubeletPodClaims({}) for pod in ("p1", "p2", "p3")}, gone=frozenset())

    @precondition(lambda self: self.runtime)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.runtime)))
        self.answered(stop(self.containers, self.snapshot, self.runtime.pop(key)))

    @precondition(lambda self: self.runtime)
    @rule(data=st.data(), cpus=st.sets(st.integers(0, CPUS - 1)))
    def update(self, data: st.DataObject, cpus: set[int]) -> None:
        one = self.runtime[data.draw(st.sampled_from(sorted(self.runtime)))]
        allowed = update(self.containers, self.snapshot, one, Resources(CPUSet(cpus)), 0)
        if cpus:
            self.runtime[one.id] = replace(one, cpus=CPUSet(cpus))
        self.answered(allowed)

    @rule()
    def reconnect(self) -> None:
        decision = synchronize(self.snapshot, tuple(self.runtime.values()), self.evidence())
        assert isinstance(decision, Allowed)
        self.containers = Containers()
        self.answered(decision)

    @rule()
    def speak_up(self) -> None:
        change, updates = settle(self.containers, self.snapshot)
        self.answered(Allowed(change, updates=updates))

    def answered(self, allowed: Allowed) -> None:
        """Let the runtime apply the updates; each must change something."""
        self.containers.apply(allowed.change)
        for each in allowed.updates:
            self.applied(each)
        for key, one in self.runtime.items():
            if self.containers.get(key):
                self.right(one)

    def applied(self, each: ContainerUpdate) -> None:
        if each.container_id not in self.runtime:
            return
        one = self.runtime[each.container_id]
        assert each.resources.cpus
        assert each.resources.cpus != one.cpus
        self.runtime[one.id] = replace(one, cpus=each.resources.cpus)

    def right(self, one: Container) -> None:
        """After an answer a container has the CPUs that it should have."""
        known = self.containers.get(one.id)
        assert known is not None
        assert known.cpus == one.cpus
        uids = known.claims
        mine = [self.snapshot.claims[uid] for uid in uids if uid in self.snapshot.claims]
        if mine:
            assert one.cpus == CPUSet.union(claim.cpus for claim in mine)
            # A container that outlived its claim may have it again, once the claim is prepared for other pods.
            assert all(one.pod.uid in self.pods[claim.claim.uid] for claim in mine)
        else:
            assert one.cpus.isdisjoint(self.snapshot.held)

    @invariant()
    def nobody_is_overlooked(self) -> None:
        assert due(self.containers, self.snapshot) == due(Containers(self.containers), self.snapshot)

    @invariant()
    def somebody_is_known(self) -> None:
        assert set(self.runtime) <= {each.container.id for each in self.containers}


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=60, stateful_step_count=25)
