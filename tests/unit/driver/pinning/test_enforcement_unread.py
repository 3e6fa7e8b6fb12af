"""Enforcement while the ledger cannot be read: masks stay, and new containers get what the known claims leave."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.errors import UnreadError
from dranode.driver.claims.events import Occurrence
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Unread
from dranode.driver.claims.users import PodSandbox
from dranode.driver.machine.folder import HostRoot
from dranode.driver.nri.enforcer import Enforcer, RefusedError
from dranode.driver.nri.events import RuntimePeer
from dranode.driver.pinning.containers import Container, ContainerUpdate, Resources
from dranode.driver.pinning.identity import KubeletPodClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, PinSnapshot

REASON = "the ledger cannot be read"
EMPTY = PinSnapshot(online=CPUSet(range(8)), reserved=CPUSet((7,)), variable="DRA_CPUSET_", cdi_kind="dra.k8s.io/cpu")
MINE, THEIRS = (
    PinnedClaim(ClaimRef("default", name, name), cpus, cpus, frozenset((f"pod-{name}",)))
    for name, cpus in (("mine", CPUSet((0, 1, 4, 5))), ("theirs", CPUSet((2,))))
)
HELD = replace(EMPTY, claims=PinnedClaims.of([MINE, THEIRS]))
# A CDI spec names no pod, and one of the two specs is missing.
UNREAD = replace(EMPTY, claims=PinnedClaims.of([replace(MINE, pods=frozenset())]), unread=Unread(REASON))
BLIND = replace(EMPTY, unread=Unread(REASON, blind=True))


def container(name: str, cpus: CPUSet, env: tuple[str, ...] = ()) -> Container:
    pod = PodSandbox(f"s-{name}", f"pod-{name}", "default", name)
    return Container(name, "main", pod, env, cpus=cpus, started=True, cgroup=f"/{name}")


EXCLUSIVE = container("mine", MINE.cpus, ("DRA_CPUSET_mine=0-1,4-5",))
UNRESOLVED = container("theirs", THEIRS.cpus, ("DRA_CPUSET_theirs=2",))
SHARED = container("shared", HELD.shared)
NEW = container("new", CPUSet())


@dataclass
class Node:
    """A node service: the claims on record, and kubelet's answers."""

    now: PinSnapshot = UNREAD
    given: Mapping[str, KubeletPodClaims] = field(
        default_factory=lambda: {"pod-mine": KubeletPodClaims({"main": ("dra.k8s.io/cpu=claim-mine",)})}
    )

    def snapshot(self) -> PinSnapshot:
        return self.now

    def reread(self) -> PinSnapshot:
        if self.now.unread is not None:
            raise UnreadError(self.now.unread.reason)
        return self.now

    def pod_claims(self, pods: tuple[PodSandbox, ...]) -> Mapping[str, KubeletPodClaims] | None:
        return {pod.uid: self.given.get(pod.uid, KubeletPodClaims({})) for pod in pods}


class Widened(HostRoot):
    """A kernel that shows all CPUs for every cgroup once it shows anything."""

    speaks = True

    def read_bytes(self, path: str) -> bytes:
        if not self.speaks:
            raise FileNotFoundError(path)
        return b"0-7\n"


@dataclass
class World:
    node: Node
    kernel: Widened
    enforcer: Enforcer
    told: list[Occurrence]


@pytest.fixture
def world() -> World:
    node, kernel, told = Node(), Widened(), list[Occurrence]()
    enforcer = Enforcer(node, kernel, notify=told.append)
    enforcer.configured(RuntimePeer("containerd", "v2.3.4", "v0.12.1"))
    return World(node, kernel, enforcer, told)


def test_no_mask_is_changed_by_whatever_happens(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for world.node.now in (UNREAD, BLIND):
        enforcer = world.enforcer
        unpinned = replace(SHARED, id="unpinned", cpus=CPUSet())
        assert enforcer.synchronize((EXCLUSIVE, UNRESOLVED, SHARED, unpinned)) == ()
        assert enforcer.unsolicited.updates() == ()
        assert enforcer.stop(EXCLUSIVE) == ()
        assert enforcer.verify() == ()
        assert not enforcer.unsolicited.reconnection_due()
    assert (world.told, caplog.messages) == ([], [])


def test_an_update_of_the_mask_is_answered_with_the_mask_that_the_container_has(world: World) -> None:
    world.enforcer.synchronize((EXCLUSIVE, UNRESOLVED))
    wide = Resources(CPUSet(range(8)))
    assert world.enforcer.update(UNRESOLVED, wide, 0) == (ContainerUpdate("theirs", Resources(UNRESOLVED.cpus)),)


def test_a_new_container_gets_what_the_known_claims_leave(world: World) -> None:
    resources, updates = world.enforcer.create(NEW)
    assert (resources.cpus, updates) == (CPUSet((2, 3, 6)), ())


def test_a_new_container_gets_the_cpus_of_a_claim_with_a_spec_if_kubelet_gave_it_the_claim(world: World) -> None:
    assert world.enforcer.create(replace(EXCLUSIVE, cpus=CPUSet()))[0].cpus == MINE.cpus
    world.node.given = {}
    with pytest.raises(RefusedError, match="which kubelet has not given"):
        world.enforcer.create(replace(EXCLUSIVE, id="again", cpus=CPUSet()))


def test_a_new_container_of_an_unknown_claim_is_refused_with_the_reason(world: World) -> None:
    with pytest.raises(UnreadError, match=REASON):
        world.enforcer.create(replace(UNRESOLVED, cpus=CPUSet()))


def test_a_new_container_gets_reserved_cpus_or_is_refused_if_held_cpus_are_unknown(world: World) -> None:
    world.node.now = BLIND
    assert world.enforcer.create(NEW)[0].cpus == CPUSet((7,))
    world.node.now = replace(BLIND, reserved=CPUSet())
    with pytest.raises(RefusedError, match=f"it is not known which CPUs are free .* {REASON}; reserve CPUs"):
        world.enforcer.create(NEW)


def test_a_claim_keeps_cpus_that_were_reserved_later(world: World) -> None:
    early = PinnedClaim(ClaimRef("default", "early", "early"), CPUSet((6,)), CPUSet((6,)))
    world.node.now = replace(BLIND, reserved=CPUSet((6, 7)), claims=PinnedClaims.of([early]))
    assert world.enforcer.create(NEW)[0].cpus == CPUSet((7,))


def test_a_container_with_an_unknown_claim_makes_held_cpus_unknown(world: World) -> None:
    world.enforcer.synchronize((EXCLUSIVE, SHARED))
    assert world.enforcer.create(NEW)[0].cpus == CPUSet((2, 3, 6))
    world.enforcer.synchronize((EXCLUSIVE, UNRESOLVED, SHARED))
    assert world.enforcer.create(NEW)[0].cpus == CPUSet((7,))


def test_once_the_ledger_is_read_the_runtime_is_synchronized_before_any_mask_changes(world: World) -> None:
    enforcer = world.enforcer
    enforcer.synchronize((EXCLUSIVE, UNRESOLVED, SHARED))
    enforcer.create(NEW)
    assert not enforcer.is_certain()
    world.node.now = HELD
    assert enforcer.unsolicited.updates() == ()
    assert enforcer.stop(container("gone", CPUSet())) == ()
    assert enforcer.unsolicited.reconnection_due()
    assert enforcer.claims_in_use() == {"mine"}
    world.kernel.speaks = False
    (update,) = enforcer.synchronize((EXCLUSIVE, UNRESOLVED, SHARED, replace(NEW, cpus=CPUSet((2, 3, 6)))))
    assert (update.container_id, update.resources.cpus) == ("new", CPUSet((3, 6)))
    assert enforcer.claims_in_use() == {"mine", "theirs"}
    assert enforcer.is_certain()
    assert not enforcer.unsolicited.reconnection_due()


def test_containers_known_before_are_pinned_again_without_a_new_connection(world: World) -> None:
    world.node.now = HELD
    world.kernel.speaks = False
    world.enforcer.synchronize((EXCLUSIVE, SHARED))
    world.kernel.speaks = True
    world.node.now = replace(HELD, unread=Unread(REASON))
    assert world.enforcer.verify() == ()
    world.node.now = replace(HELD)
    assert not world.enforcer.unsolicited.reconnection_due()
    assert {drift.container.id for drift in world.enforcer.verify()} == {"mine", "shared"}


def test_masks_of_containers_known_before_stay_whatever_is_unread(world: World) -> None:
    world.node.now = HELD
    world.enforcer.synchronize((EXCLUSIVE, UNRESOLVED, SHARED))
    for now in (BLIND, replace(UNREAD, online=CPUSet(range(7))), replace(EMPTY, unread=Unread(REASON))):
        world.node.now = now
        assert world.enforcer.unsolicited.updates() == ()
        assert world.enforcer.stop(container("gone", CPUSet())) == ()
    # Nothing is known about its claim now; its mask is the one that it was given.
    wide = Resources(CPUSet(range(8)))
    assert world.enforcer.update(UNRESOLVED, wide, 0) == (ContainerUpdate("theirs", Resources(UNRESOLVED.cpus)),)
    assert world.enforcer.update(SHARED, wide, 0) == (ContainerUpdate("shared", Resources(SHARED.cpus)),)


@pytest.mark.parametrize(
    ("shared", "refused"),
    [(CPUSet(range(8)), True), (CPUSet((5, 6)), True), (CPUSet((2, 3, 6, 7)), False), (CPUSet(), True)],
)
def test_a_claims_container_waits_for_others_on_its_cpus(
    world: World,
    shared: CPUSet,
    refused: bool,  # noqa: FBT001 - one of the table
) -> None:
    world.enforcer.synchronize((replace(SHARED, cpus=shared),))
    new = replace(EXCLUSIVE, cpus=CPUSet(), started=False)
    if not refused:
        assert world.enforcer.create(new)[0] is not None
        return
    with pytest.raises(
        RefusedError, match=f"still runs on CPUs {shared or world.node.now.online}.*default/mine.*{REASON}"
    ):
        world.enforcer.create(new)


def test_a_claims_container_waits_until_containers_created_meanwhile_are_listed(world: World) -> None:
    world.enforcer.synchronize((SHARED,))
    came = replace(SHARED, id="came", name="side")
    world.enforcer.create(replace(came, cpus=CPUSet(), started=False))
    world.enforcer.started(came)
    # The claim is another one than those that were held then.
    late = PinnedClaim(ClaimRef("default", "late", "late"), CPUSet((3, 6)), CPUSet((3, 6)), frozenset(("pod-late",)))
    world.node.now = replace(EMPTY, claims=PinnedClaims.of([late]))
    new = replace(container("late", CPUSet(), ("DRA_CPUSET_late=3,6",)), started=False)
    refusal = "still runs on CPUs 3,6, and default/late holds some of them, but it was reported while.*in a moment"
    with pytest.raises(RefusedError, match=refusal):
        world.enforcer.create(new)
    assert world.enforcer.unsolicited.reconnection_due()
    moved = {each.container_id: each.resources.cpus for each in world.enforcer.synchronize((SHARED, came))}
    assert world.enforcer.create(new)[0].cpus == late.cpus
    assert moved["came"].isdisjoint(late.cpus)
