"""Decisions about containers: the reference driver's cases (sections A.11 and A.12 of its fact sheet) and our rules.

A row says where its expectation differs from the reference's.
"""

from collections.abc import Mapping

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.held import ClaimRef
from dranode.driver.pinning.container_index import settle
from dranode.driver.pinning.containers import Container
from dranode.driver.pinning.enforcement import Allowed, CreationRefused, create, remove, start, stop, synchronize
from dranode.driver.pinning.identity import AskProcesses, Evidence, KubeletPodClaims
from dranode.driver.pinning.snapshot import PinnedClaim, PinSnapshot
from tests.fakes.enforcement import (
    NONE,
    A,
    B,
    after,
    claim,
    container,
    env,
    ids,
    made,
    masks,
    refusal,
    running,
    snapshot,
)


@pytest.mark.parametrize(
    ("on_record", "known", "environment", "cpus", "updates"),
    [
        (snapshot(claim("a", "0-3")), (), env("a", "0-3"), "0-3", {}),
        (snapshot(), (), (), "0-7", {}),
        (snapshot(claim("a", "0-3", "other")), (), (), "4-7", {}),
        (
            snapshot(claim("a", "2-3")),
            (container("s1", "shared-1", cpus="0-7"), container("s2", "shared-2", cpus="0-7")),
            env("a", "2-3"),
            "2-3",
            {"shared-1-s1": "0-1,4-7", "shared-2-s2": "0-1,4-7"},
        ),
    ],
)
def test_a_new_container_gets_its_claims_or_the_shared_pool_and_others_make_room(
    on_record: PinSnapshot,
    known: tuple[Container, ...],
    environment: tuple[str, ...],
    cpus: str,
    updates: Mapping[str, str],
) -> None:
    before = running(snapshot(), *known)
    allowed = made(before, on_record, container("new", env=environment))
    assert str(allowed.resources.cpus) == cpus
    assert masks(allowed.updates) == updates


@pytest.mark.parametrize(
    ("on_record", "environment", "reason"),
    [
        # The reference says "failed to parse cpuset value"; here the value is only compared.
        (
            snapshot(claim("a", "0-3")),
            env("a", "a-b"),
            'has DRA_CPUSET_a="a-b", but claim default/claim-a was given CPUs 0-3',
        ),
        (snapshot(), env("a", "0-3"), 'names claim "a", which is not prepared on this node'),
        (
            snapshot(claim("a", "0-1")),
            env("a", "0-3"),
            'has DRA_CPUSET_a="0-3", but claim default/claim-a was given CPUs 0-1',
        ),
        # The reference says "malformed DRA env entry".
        (
            snapshot(claim("a", "0-1")),
            ("DRA_CPUSET_a",),
            'has DRA_CPUSET_a="", but claim default/claim-a was given CPUs 0-1',
        ),
    ],
)
def test_a_variable_that_does_not_fit_the_record_is_refused(
    on_record: PinSnapshot, environment: tuple[str, ...], reason: str
) -> None:
    assert reason in refusal(NONE, on_record, container("new", env=environment))


def test_the_life_of_a_claim_whose_container_restarts() -> None:
    """A.11's restart sequence: 4 CPUs, claim 0-1, one shared container."""
    none, held = snapshot(online="0-3"), snapshot(claim("a", "0-1"), online="0-3")
    first = container("g", env=env("a", "0-1"), identity="g1")
    known = running(none, container("s", "p2", cpus="0-3"))
    allowed = made(known, held, first)
    assert (str(allowed.resources.cpus), masks(allowed.updates)) == ("0-1", {"p2-s": "2-3"})
    known = after(known, allowed)
    stopped = stop(known, held, first)
    assert stopped.updates == ()
    known = after(known, stopped)
    again = made(known, held, container("g", env=env("a", "0-1"), identity="g2"))
    assert (str(again.resources.cpus), again.updates) == ("0-1", ())
    known = after(known, again)
    known = after(known, remove(known, first))
    late = stop(known, held, first)
    assert (ids(after(known, late)), late.updates) == (["g2", "p2-s"], ())
    gone = stop(known, held, container("g", identity="g2"))
    assert (ids(after(known, gone)), gone.updates) == (["p2-s"], ())
    # Unprepare: the others are widened with the next answer.
    assert masks(settle(after(known, gone), none)[1]) == {"p2-s": "0-3"}


# --- Synchronize, A.12: 8 CPUs 0-7. The record decides where the reference asks CDI files ---


@pytest.mark.parametrize(
    ("on_record", "listed", "updates"),
    [
        (snapshot(), (), {}),
        (
            snapshot(A),
            (container("g", env=env("a", "0,1")), container("s"), container("s", "p2")),
            {"p1-g": "0-1", "p1-s": "2-7", "p2-s": "2-7"},
        ),
        (snapshot(), (container("s"), container("s", "p2")), {"p1-s": "0-7", "p2-s": "0-7"}),
        (
            snapshot(A, B),
            (container("g", env=env("a", "0,1")), container("g", "p2", env("b", "2,3"))),
            {"p1-g": "0-1", "p2-g": "2-3"},
        ),
        (snapshot(A, B), (container("m", env=env("a", "0,1") + env("b", "2,3")),), {"p1-m": "0-3"}),
        # dra-driver-cpu ignores a container with an unreadable variable, and so leaves it on every CPU.
        (
            snapshot(A),
            (container("bad", env=env("a", "a-b")), container("g", env=env("a", "0,1"))),
            {"p1-bad": "2-7", "p1-g": "0-1"},
        ),
        (
            snapshot(B),
            (container("x", env=env("a", "0,1")), container("g", "p2", env("b", "2,3"))),
            {"p1-x": "0-1,4-7", "p2-g": "2-3"},
        ),
        # The reference frees 2-3, since no container uses them: "x -> 0-7". Here a claim on record stays held.
        (snapshot(claim("a", "2-3")), (container("x", env=env("a", "0,1")),), {"p1-x": "0-1,4-7"}),
    ],
)
def test_synchronize_pins_existing_containers(
    on_record: PinSnapshot, listed: tuple[Container, ...], updates: Mapping[str, str]
) -> None:
    quiet = {"p1": KubeletPodClaims({}), "p2": KubeletPodClaims({})}
    decision = synchronize(on_record, listed, Evidence(reread=True, pods=quiet))
    assert isinstance(decision, Allowed)
    assert masks(decision.updates) == updates
    assert all(each.ignore_failure for each in decision.updates)


def test_synchronize_sends_nothing_to_a_container_that_has_its_mask() -> None:
    listed = (container("g", env=env("a", "0-1"), cpus="0-1"), container("s", "p2", cpus="2-7"))
    decision = synchronize(snapshot(A), listed)
    assert isinstance(decision, Allowed)
    assert decision.updates == ()
    assert decision.unpinned == ()


def test_synchronize_names_the_containers_that_had_no_cpu_set() -> None:
    decision = synchronize(snapshot(A), (container("g", env=env("a", "0-1")), container("s", "p2", cpus="2-7")))
    assert isinstance(decision, Allowed)
    assert [each.id for each in decision.unpinned] == ["p1-g"]


def test_a_prepared_claim_without_a_container_stays_held_over_a_synchronize() -> None:
    """The reference forgets it (section 9.1, number 3)."""
    on_record = snapshot(A)
    known = running(on_record, container("s", "p2"))
    assert str(made(known, on_record, container("late", "p3")).resources.cpus) == "2-7"
    assert str(made(known, on_record, container("g", env=env("a", "0-1"))).resources.cpus) == "0-1"


# --- sharing ---


def test_two_containers_of_an_unshared_claim_are_both_named() -> None:
    on_record = snapshot(claim("a", "0-1", "p1", "p2"))
    known = after(NONE, made(NONE, on_record, container("one", env=env("a", "0-1"))))
    reason = refusal(known, on_record, container("two", "p2", env("a", "0-1")))
    assert 'claim default/claim-a is in use by container "one" of pod default/p1' in reason
    assert 'so container "two" of pod default/p2 cannot have it' in reason


def test_an_init_container_and_then_the_main_one_may_use_a_claim() -> None:
    on_record = snapshot(A)
    init = container("init", env=env("a", "0-1"))
    known = after(NONE, made(NONE, on_record, init))
    known = after(known, start(known, on_record, init))
    known = after(known, stop(known, on_record, init))
    assert str(made(known, on_record, container("main", env=env("a", "0-1"))).resources.cpus) == "0-1"


def test_an_unreported_exit_is_noticed_by_the_missing_processes() -> None:
    """CRI-O sends no StopContainer for a container that exits by itself."""
    on_record = snapshot(A)
    init, main = container("init", env=env("a", "0-1")), container("main", env=env("a", "0-1"))
    known = after(NONE, made(NONE, on_record, init))
    known = after(known, start(known, on_record, init))
    assert create(known, on_record, main) == AskProcesses(("p1-init",))
    assert "in use by" in refusal(known, on_record, main, Evidence(gone=frozenset()))
    allowed = made(known, on_record, main, Evidence(gone=frozenset(("p1-init",))))
    assert ids(after(known, allowed)) == ["p1-main"]


def test_exited_containers_of_several_claims_are_checked_together() -> None:
    """Two init containers with a claim each exit by themselves, and the main container has both claims."""
    on_record = snapshot(A, B)
    known = NONE
    for init in (container("one", env=env("a", "0-1")), container("two", env=env("b", "2-3"))):
        known = after(known, made(known, on_record, init))
        known = after(known, start(known, on_record, init))
    main = container("main", env=(*env("a", "0-1"), *env("b", "2-3")))
    asked = create(known, on_record, main)
    assert asked == AskProcesses(("p1-one", "p1-two"))
    allowed = made(known, on_record, main, Evidence(gone=frozenset(("p1-one", "p1-two"))))
    assert ids(after(known, allowed)) == ["p1-main"]
    assert 'in use by container "two"' in refusal(known, on_record, main, Evidence(gone=frozenset(("p1-one",))))


def test_a_container_that_was_not_started_is_in_the_way_without_a_check() -> None:
    on_record = snapshot(claim("a", "0-1", "p1", "p2"))
    known = after(NONE, made(NONE, on_record, container("one", env=env("a", "0-1"))))
    assert isinstance(create(known, on_record, container("two", "p2", env("a", "0-1"))), CreationRefused)


def test_a_restarted_container_replaces_the_earlier_one_of_its_name() -> None:
    on_record = snapshot(A)
    known = after(NONE, made(NONE, on_record, container("main", env=env("a", "0-1"), identity="old")))
    known = after(known, made(known, on_record, container("main", env=env("a", "0-1"), identity="new")))
    assert ids(known) == ["new"]


def test_existing_containers_of_an_unshared_claim_are_named() -> None:
    """Nobody refused the second one at its start; both have the claim, so both run on its CPUs."""
    listed = (container("one", env=env("a", "0-1")), container("two", "p2", env("a", "0-1")))
    decision = synchronize(snapshot(claim("a", "0-1", "p1", "p2", shared_in_pod=True)), listed)
    assert isinstance(decision, Allowed)
    assert masks(decision.updates) == {"p1-one": "0-1", "p2-two": "0-1"}
    (warning,) = decision.warnings
    for name in ("claim default/claim-a", 'container "one" of pod default/p1', 'container "two" of pod default/p2'):
        assert name in warning
    alone = synchronize(snapshot(claim("a", "0-1", "p1", "p2")), listed[:1])
    assert isinstance(alone, Allowed)
    assert alone.warnings == ()


def test_every_container_of_one_pod_may_use_a_claim_that_is_shared_in_the_pod() -> None:
    on_record = snapshot(claim("a", "0-1", "p1", "p2", shared_in_pod=True))
    known = after(NONE, made(NONE, on_record, container("one", env=env("a", "0-1"))))
    known = after(known, made(known, on_record, container("two", env=env("a", "0-1"))))
    assert "only containers of one pod may share it" in refusal(known, on_record, container("x", "p2", env("a", "0-1")))


def test_a_claim_that_holds_nothing_may_be_used_by_any_container() -> None:
    admin = PinnedClaim(ClaimRef("default", "admin", "a"), CPUSet((0,)), CPUSet(), frozenset(("p1", "p2")))
    known = after(NONE, made(NONE, snapshot(admin), container("one", env=env("a", "0"))))
    assert str(made(known, snapshot(admin), container("two", "p2", env("a", "0"))).resources.cpus) == "0"


# --- masks ---


def test_nobody_runs_on_the_held_cpus_that_a_claims_container_leaves_free() -> None:
    on_record = snapshot(claim("a", "0,2", held="0-3"))
    allowed = made(NONE, on_record, container("g", env=env("a", "0,2")))
    assert str(allowed.resources.cpus) == "0,2"
    assert str(made(NONE, on_record, container("s", "p2")).resources.cpus) == "4-7"


def test_containers_without_a_claim_get_the_reserved_cpus_only_when_nothing_else_is_left() -> None:
    assert str(made(NONE, snapshot(reserved="0-1"), container("s")).resources.cpus) == "2-7"
    on_record = snapshot(claim("a", "2-7", "other"), reserved="0-1")
    assert str(made(NONE, on_record, container("s")).resources.cpus) == "0-1"


def test_without_any_shared_cpu_a_container_without_a_claim_is_refused_and_no_empty_mask_is_sent() -> None:
    before = running(snapshot(), container("s", "p2", cpus="0-7"))
    on_record = snapshot(claim("a", "0-7"))
    assert "reserve CPUs" in refusal(before, on_record, container("new", "p3"))
    allowed = made(before, on_record, container("g", env=env("a", "0-7")))
    assert allowed.updates == ()


def test_offline_cpus_are_left_out_and_reported() -> None:
    on_record = snapshot(claim("a", "0-3"), online="0-1,4-7")
    allowed = made(NONE, on_record, container("g", env=env("a", "0-3")))
    assert str(allowed.resources.cpus) == "0-1"
    assert allowed.warnings == ("claim default/claim-a has CPUs 0-3, but 2-3 are offline or not for pods",)
    gone = snapshot(claim("a", "0-3"), online="4-7")
    assert "every CPU of default/claim-a is offline" in refusal(NONE, gone, container("g", env=env("a", "0-3")))
