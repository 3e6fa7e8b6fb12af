"""The known containers, and what is known about them after they came, changed and went."""

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.users import PodSandbox
from dranode.driver.pinning.container_index import ContainerChange, Containers, settle
from dranode.driver.pinning.containers import Container, Pinned
from dranode.driver.pinning.snapshot import PinnedClaim, PinnedClaims, PinSnapshot


def pinned(identity: str, *claims: str, unsure: bool = False) -> Pinned:
    sandbox = PodSandbox("sandbox", "pod", "default", "pod")
    return Pinned(Container(identity, "main", sandbox), claims, CPUSet(range(8)), unsure=unsure)


def snapshot(**claims: str) -> PinSnapshot:
    cpus = {uid: CPUSet.parse(held) for uid, held in claims.items()}
    on_record = (PinnedClaim(ClaimRef("default", uid, uid), held, held) for uid, held in cpus.items())
    return PinSnapshot(PinnedClaims.of(on_record), CPUSet(range(8)))


def users(containers: Containers, uid: str) -> list[str]:
    return sorted(container.id for container in containers.users(uid))


def test_a_container_with_another_claim_no_longer_uses_the_earlier_one() -> None:
    containers = Containers((pinned("c1", "a"), pinned("c2", "a")))
    containers.apply(ContainerChange((pinned("c1", "b"),)))
    assert (users(containers, "a"), users(containers, "b")) == (["c2"], ["c1"])
    containers.apply(ContainerChange((pinned("c2"),)))
    assert users(containers, "a") == []
    assert len(containers) == 2
    assert sorted(containers.namesakes(pinned("c1").container)) == ["c1", "c2"]


def test_a_removed_container_uses_no_claim_and_has_no_namesake() -> None:
    containers = Containers((pinned("c1", "a"), pinned("c2", "a")))
    containers.apply(ContainerChange(drop=("c1", "unknown")))
    assert users(containers, "a") == ["c2"]
    assert containers.namesakes(pinned("c1").container) == ("c2",)


def test_an_uncertain_container_prevents_certainty_until_it_is_removed_or_known() -> None:
    unsure = pinned("c1", unsure=True)
    for change in (
        ContainerChange(drop=("c1",)),
        ContainerChange((pinned("c1"),)),
        ContainerChange((pinned("c1", "a"),)),
    ):
        containers = Containers((unsure, pinned("c2")))
        assert not containers.certain
        containers.apply(change)
        assert containers.certain
    containers.apply(ContainerChange((replace(unsure, claims=("a",)),)))
    assert not containers.certain


def test_a_pool_change_concerns_only_existing_containers_in_the_pool() -> None:
    containers = Containers((pinned("s1"), pinned("s2"), pinned("g", "a")))
    before = snapshot(a="0-1")
    change, _ = settle(containers, before)
    containers.apply(change)
    containers.apply(ContainerChange(drop=("s1",), settled=before))
    after = snapshot(a="0-1", b="2-3")
    assert [each.container.id for each in containers.concerned(after)] == ["s2"]
    assert containers.concerned(before) == ()
