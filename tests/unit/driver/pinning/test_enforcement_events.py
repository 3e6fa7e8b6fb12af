"""Decisions about existing containers: updates, starts, and claims and pods that end."""

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.driver.pinning.container_index import settle
from dranode.driver.pinning.containers import ContainerUpdate, Resources
from dranode.driver.pinning.enforcement import Allowed, create, remove, remove_pod, start, stop, synchronize, update
from dranode.driver.pinning.identity import AskKubelet, AskLedger, AskProcesses, Evidence, KubeletPodClaims
from tests.fakes.enforcement import NONE, A, after, claim, container, env, ids, made, masks, pod, running, snapshot


def test_a_container_whose_claim_was_unprepared_joins_the_shared_pool() -> None:
    known = after(NONE, made(NONE, snapshot(A), container("g", env=env("a", "0-1"))))
    taken = snapshot(claim("b", "0-1", "p2"))
    assert masks(made(known, taken, container("g", "p2", env("b", "0-1"))).updates) == {"p1-g": "2-7"}


def test_the_quota_is_lifted_and_memory_is_local_if_the_claim_says_so() -> None:
    near = claim("a", "0-1", mems="1", lift_quota=True)
    resources = made(NONE, snapshot(near), container("g", env=env("a", "0-1"))).resources
    assert resources == Resources(CPUSet((0, 1)), CPUSet((1,)), lift_quota=True)
    both = snapshot(near, claim("b", "2", mems="0"))
    resources = made(NONE, both, container("g", env=env("a", "0-1") + env("b", "2"))).resources
    assert resources.mems == CPUSet((0, 1))
    far = snapshot(near, claim("b", "2"))
    assert made(NONE, far, container("g", env=env("a", "0-1") + env("b", "2"))).resources.mems == CPUSet()


def test_memory_is_widened_to_all_nodes_when_the_claim_ends() -> None:
    known = after(
        NONE, made(NONE, snapshot(claim("a", "0-1", mems="0"), mems="0-1"), container("g", env=env("a", "0-1")))
    )
    change, updates = settle(known, snapshot(mems="0-1"))
    assert [each.resources for each in updates] == [Resources(CPUSet(range(8)), CPUSet((0, 1)))]
    assert settle(after(known, change), snapshot(mems="0-1"))[1] == ()


def test_a_pool_change_sends_one_update_for_each_changed_mask() -> None:
    before = running(snapshot(A), container("g", env=env("a", "0-1")), *(container(f"s{n}", "p2") for n in range(5)))
    more = snapshot(A, claim("b", "4", "p3"))
    change, updates = settle(before, more)
    assert masks(updates) == {f"p2-s{n}": "2-3,5-7" for n in range(5)}
    assert settle(after(before, change), more)[1] == ()
    assert settle(after(before, change), replace(more))[1] == ()


def test_a_container_that_asked_for_the_shared_pool_as_well_follows_it() -> None:
    both = replace(claim("a", "0-1"), with_pool=True)
    known = running(snapshot(both), container("g", env=env("a", "0-1")), container("s", "p2"))
    more = snapshot(both, claim("b", "4", "p3"))
    change, updates = settle(known, more)
    assert masks(updates) == {"p1-g": "0-3,5-7", "p2-s": "2-3,5-7"}
    fewer = snapshot(both)
    known = after(known, change)
    change, updates = settle(known, fewer)
    assert masks(updates) == {"p1-g": "0-7", "p2-s": "2-7"}
    # Its own CPUs stay exclusive.
    assert settle(after(known, change), snapshot(claim("a", "0-1")))[1][0].resources.cpus == CPUSet((0, 1))


def test_the_container_that_is_created_is_never_among_the_updates() -> None:
    before = running(snapshot(), container("g", "p1", cpus="0-7", identity="same"))
    allowed = made(before, snapshot(A), container("g", env=env("a", "0-1"), identity="same"))
    assert allowed.updates == ()


# --- UpdateContainer ---


@pytest.mark.parametrize(
    ("wanted", "quota", "answer"),
    [
        (Resources(CPUSet((5,))), 0, Resources(CPUSet((0, 1)))),
        (Resources(CPUSet((0, 1))), 0, Resources()),
        (Resources(), 0, Resources()),
        (Resources(mems=CPUSet((1,))), 0, Resources(mems=CPUSet((0,)))),
        (Resources(), 50_000, Resources(lift_quota=True)),
        (Resources(), -1, Resources()),
    ],
)
def test_an_update_keeps_the_mask_and_changes_the_request_only_if_needed(
    wanted: Resources, quota: int, answer: Resources
) -> None:
    on_record = snapshot(claim("a", "0-1", mems="0", lift_quota=True))
    one = container("g", env=env("a", "0-1"))
    known = after(NONE, made(NONE, on_record, one))
    allowed = update(known, on_record, one, wanted, quota)
    assert allowed.updates == ((ContainerUpdate("p1-g", answer),) if answer else ())


def test_an_update_keeps_a_container_with_only_offline_cpus_off_other_claims_cpus() -> None:
    one = container("g", env=env("a", "0-1"))
    known = after(NONE, made(NONE, snapshot(A), one))
    wide = Resources(CPUSet(range(8)))
    offline, none_left = snapshot(A, claim("b", "2-3"), online="2-7"), snapshot(A, claim("b", "2-7"), online="2-7")
    for before in (known, after(known, start(known, snapshot(A), one)), NONE):
        assert masks(update(before, offline, one, wide, 0).updates) == {"p1-g": "4-7"}
    assert masks(update(known, none_left, one, wide, 0).updates) == {"p1-g": "0-1"}


def test_a_container_with_only_offline_cpus_uses_the_pool_until_one_is_back() -> None:
    one = container("g", env=env("a", "0-1"))
    known = after(NONE, made(NONE, snapshot(A), one))
    known = after(known, start(known, snapshot(A), one))
    for online, taken, mask in [
        ("2-7", snapshot(A, online="2-7"), "2-7"),
        ("2-7", snapshot(A, claim("b", "2", "p2"), online="2-7"), "3-7"),
        ("1-7", snapshot(A, claim("b", "2", "p2"), online="1-7"), "1"),
    ]:
        change, updates = settle(known, taken)
        known = after(known, change)
        assert masks(updates) == {"p1-g": mask}, online


def test_an_unpinned_container_with_only_offline_cpus_is_moved_off_claims_cpus() -> None:
    on_record = snapshot(A, claim("b", "2-3", "p2"), online="2-7")
    kubelet = Evidence(pods={"p1": KubeletPodClaims({"g": ("dra.k8s.io/cpu=claim-a",)})})
    found = synchronize(on_record, (container("g", env=env("a", "0-1")),), kubelet)
    assert isinstance(found, Allowed)
    assert masks(found.updates) == {"p1-g": "4-7"}


def test_an_update_widens_no_container_where_claims_hold_every_cpu() -> None:
    shared = container("s", "p3", cpus="2-7")
    known = running(snapshot(A), shared)
    taken = snapshot(A, claim("b", "2-7", "p2"))
    assert masks(update(known, taken, shared, Resources(CPUSet(range(8))), 0).updates) == {"p3-s": "2-7"}


def test_an_update_of_an_unknown_container_adds_it() -> None:
    one = container("g", env=env("a", "0-1"))
    allowed = update(NONE, snapshot(A), one, Resources(CPUSet((5,))), 0)
    assert masks(allowed.updates) == {"p1-g": "0-1"}
    assert ids(after(NONE, allowed)) == ["p1-g"]


def test_an_update_of_an_unidentified_container_leaves_it_unchanged() -> None:
    one = container("g", env=env("unknown", "0-1"))
    allowed = update(NONE, snapshot(A), one, Resources(CPUSet((5,))), 0)
    assert (allowed.updates, ids(after(NONE, allowed))) == ((), [])


# --- events that come twice, late or for nobody ---


def test_events_for_unknown_containers_change_nothing() -> None:
    before = running(snapshot(A), container("s", "p2"))
    stranger = container("x", "p9")
    stopped = stop(before, snapshot(A), stranger)
    assert stopped.updates == ()
    for change in (stopped, remove(before, stranger), remove_pod(before, pod("p9"))):
        assert list(after(before, change)) == list(before)


def test_an_unknown_started_container_is_added_and_repaired_with_the_next_answer() -> None:
    """CRI-O may create a container during the plug-in's synchronization."""
    known = after(NONE, start(NONE, snapshot(A), container("g", env=env("a", "0-1"))))
    assert masks(stop(known, snapshot(A), container("x", "p9")).updates) == {"p1-g": "0-1"}


def test_a_started_container_that_was_never_seen_may_have_exited_already() -> None:
    """Only a running container's processes are checked; a created one is in the way until it is removed."""
    on_record = snapshot(A)
    known = after(NONE, start(NONE, on_record, container("one", env=env("a", "0-1"))))
    assert create(known, on_record, container("two", env=env("a", "0-1"))) == AskProcesses(("p1-one",))
    allowed = made(known, on_record, container("two", env=env("a", "0-1")), Evidence(gone=frozenset(("p1-one",))))
    assert ids(after(known, allowed)) == ["p1-two"]


def test_a_start_sends_no_updates_unless_the_container_itself_needs_one() -> None:
    on_record, known = snapshot(A), running(snapshot(A), container("s", "p2", cpus="2-7"))
    assert known.settled is not None
    assert start(known, on_record, container("s", "p2")).settled is known.settled
    assert start(known, on_record, container("g", env=env("a", "0-1"))).settled is None
    unknown = start(known, on_record, container("x", env=env("unknown", "0-1")))
    assert (unknown.put, unknown.settled) == ((), known.settled)


def test_an_update_between_creation_and_start_is_sent_again_once_the_container_runs() -> None:
    """containerd may have read the configuration for the start before the update changed it."""
    on_record, one = snapshot(A), container("s", "p2")
    known = running(on_record, one, container("r", "p2", started=True))
    for each in (one, container("r", "p2")):
        known = after(known, start(known, on_record, each))
    answer = stop(known, on_record, container("x", "p9"))
    assert masks(answer.updates) == {"p2-s": "2-7"}
    known = after(known, answer)
    assert stop(known, on_record, container("x", "p9")).updates == ()


def test_a_container_whose_creation_was_seen_is_not_updated_twice() -> None:
    on_record, one = snapshot(A), container("s", "p2")
    known = after(NONE, made(NONE, on_record, one))
    known = after(known, start(known, on_record, one))
    assert settle(known, on_record)[1] == ()


def test_the_removal_of_a_pod_removes_its_containers() -> None:
    before = running(snapshot(A), container("g", env=env("a", "0-1")), container("s", "p2"))
    assert ids(after(before, remove_pod(before, pod("p1")))) == ["p2-s"]


def test_synchronize_asks_once_for_all_evidence() -> None:
    listed = (container("x", "p8", env("a", "0-1")), container("y", "p9", env("a", "0-1")))
    assert synchronize(snapshot(A), (container("z", env=env("unknown", "1")), *listed)) == AskLedger()
    assert synchronize(snapshot(A), listed) == AskKubelet((pod("p8"), pod("p9")))
