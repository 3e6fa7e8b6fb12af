"""Which starts would put two containers on one CPU of a claim, according to the kernel."""

from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.pinning.container_index import Containers
from dranode.driver.pinning.containers import Container, Pinned
from dranode.driver.pinning.refusals import compared_at_start, overlaps_at_start, start_refusal
from tests.fakes.enforcement import A, B, container, snapshot

HELD = snapshot(A, B)
FREE = container("free", "p9", started=True)


def pinned(one: Container, *claims: str, started: bool = True) -> Pinned:
    return Pinned(replace(one, started=started), claims)


MINE = pinned(container("mine"), "a", started=False)


def found(starting: Pinned, *others: Pinned, on: dict[str, str]) -> list[str]:
    runs_on = {key: CPUSet.parse(cpus) for key, cpus in on.items()}
    return [str(each) for each in overlaps_at_start(Containers((starting, *others)), HELD, starting, runs_on)]


def test_a_container_that_is_still_on_the_claims_cpus_is_in_the_way() -> None:
    (text,) = found(MINE, pinned(FREE), on={MINE.container.id: "0-1", FREE.id: "1,4-7"})
    assert text == 'container "free" of pod default/p9 is on CPUs 1,4-7, but claim default/claim-a holds 1'


def test_a_container_that_has_left_is_not_in_the_way() -> None:
    assert found(MINE, pinned(FREE), on={MINE.container.id: "0-1", FREE.id: "4-7"}) == []


def test_a_container_that_does_not_run_or_is_unknown_is_not_in_the_way() -> None:
    everywhere = {FREE.id: "0-7"}
    assert found(MINE, pinned(FREE, started=False), on=everywhere) == []
    assert found(MINE, pinned(FREE), on={}) == []
    assert found(MINE, replace(pinned(FREE), unanswered=True), on=everywhere) == []
    assert found(MINE, replace(pinned(FREE), unsure=True), on=everywhere) == []


def test_containers_of_one_claim_are_not_in_each_others_way() -> None:
    other = pinned(container("second"), "a")
    assert found(MINE, other, on={MINE.container.id: "0-1", other.container.id: "0-1"}) == []


def test_a_container_created_on_cpus_of_a_used_claim_is_in_the_way_itself() -> None:
    late = pinned(FREE, started=False)
    user = pinned(container("mine"), "a")
    (text,) = found(late, user, on={late.container.id: "0-7", user.container.id: "0-1"})
    assert text == 'container "free" of pod default/p9 is on CPUs 0-7, but claim default/claim-a holds 0-1'
    # Nobody uses claim b yet; its user may start only after this container has left its CPUs.
    assert found(late, replace(user, container=replace(user.container, started=False)), on={FREE.id: "0-7"}) == []


def test_a_container_without_its_own_cpus_needs_no_check_of_others() -> None:
    others = (pinned(FREE), pinned(container("more", "p8")))
    late = pinned(container("late", "p7"), started=False)
    assert compared_at_start(Containers((late, *others)), HELD, late) == (late.container,)
    assert compared_at_start(Containers((late, *others)), snapshot(), late) == ()
    assert len(compared_at_start(Containers((MINE, *others)), HELD, MINE)) == 3


def test_a_refusal_names_the_container_in_the_way_and_what_follows() -> None:
    runs_on = {MINE.container.id: CPUSet((0, 1)), FREE.id: CPUSet(range(8))}
    in_the_way = overlaps_at_start(Containers((MINE, pinned(FREE))), HELD, MINE, runs_on)
    assert start_refusal(MINE.container, in_the_way) == (
        'container "mine" of pod default/p1 cannot start yet: container "free" of pod default/p9 is on CPUs 0-7, but '
        "claim default/claim-a holds 0-1; the other one is moved, and kubelet will start this one again"
    )
    assert start_refusal(FREE, in_the_way).endswith("kubelet will create it again, on other CPUs")
