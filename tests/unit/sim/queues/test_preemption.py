"""Whom a workload may preempt, and whom not."""

from collections.abc import Mapping
from typing import Any

import pytest

from dranode.sim.queues.assign import FlavorMode
from dranode.sim.queues.preemption import Preemptor
from dranode.sim.queues.setup import load
from dranode.sim.queues.values import FlavorResource
from tests.fakes.queues import admitted, cluster_queue, cohort, flavor, group, local_queue, pod_set, sources, workload

OF = FlavorResource("f", "gpu")
RECLAIM: dict[str, Any] = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}


def _queue(
    name: str, nominal: int, above: str = "c", limits: Mapping[str, int] | None = None, **preemption: Any
) -> dict[str, Any]:
    quota = {"nominalQuota": nominal, **(limits or {})}
    return cluster_queue(name, group(["gpu"], f=[quota]), cohort=above, preemption=preemption)


def _holder(name: str, queue: str, used: int, priority: int = 0, created: float = 0, **status: Any) -> dict[str, Any]:
    made = admitted(name, queue, {"gpu": "f"}, {"gpu": used}, priority=priority, created=created)
    made["status"].update(status)
    return made


def _simulated(wanted: int, *documents: Mapping[str, Any], priority: int = 10) -> tuple[str, int, list[str]]:
    new = workload("new", "door", pod_set(gpu=wanted), priority=priority, created=100)
    setup = load(sources([flavor("f"), local_queue("door", "q"), new, *documents]))
    answer = Preemptor(setup.queues, setup.usage, setup.admitted).simulate(setup.pending[0], OF, wanted)
    return answer.mode.name, answer.borrow, [key.removeprefix("default/") for key in answer.targets]


NOBODY = FlavorMode.NO_CANDIDATES.name
PREEMPT = FlavorMode.PREEMPT.name
RECLAIMS = FlavorMode.RECLAIM.name


@pytest.mark.parametrize(
    ("policy", "targets"),
    [
        ("Never", []),
        ("LowerPriority", ["low"]),
        ("LowerOrNewerEqualPriority", ["low"]),
    ],
)
def test_the_lowest_priority_goes_first_if_the_policy_allows_it(policy: str, targets: list[str]) -> None:
    holders = [_holder("low", "q", 2, 0), _holder("newer", "q", 2, 10, 200), _holder("older", "q", 2, 10, 50)]
    _, _, found = _simulated(2, _queue("q", 6, withinClusterQueue=policy), *holders)
    assert found == targets


def test_equal_priority_goes_only_if_it_is_newer() -> None:
    holders = [_holder("newer", "q", 3, 10, 200), _holder("older", "q", 3, 10, 50)]
    queue = _queue("q", 6, withinClusterQueue="LowerOrNewerEqualPriority")
    assert _simulated(3, queue, *holders)[2] == ["newer"]
    assert _simulated(4, queue, *holders)[0] == NOBODY


def test_of_equals_the_one_that_was_admitted_last_goes_first() -> None:
    early: dict[str, Any] = {
        "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    }
    late: dict[str, Any] = {
        "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-02-01T00:00:00Z"}]
    }
    holders = [_holder("late", "q", 3, created=1, **late), _holder("early", "q", 3, created=2, **early)]
    assert _simulated(3, _queue("q", 6, **RECLAIM), *holders)[2] == ["late"]


def test_a_workload_that_is_already_evicted_goes_first() -> None:
    leaving: dict[str, Any] = {"conditions": [{"type": "Evicted", "status": "True"}]}
    holders = [_holder("low", "q", 3, 0), _holder("leaving", "q", 3, 5, **leaving)]
    assert _simulated(3, _queue("q", 6, **RECLAIM), *holders)[2] == ["leaving"]


def test_a_workload_that_need_not_go_is_spared() -> None:
    holders = [_holder("low", "q", 1, 0), _holder("middle", "q", 4, 1)]
    assert _simulated(4, _queue("q", 5, **RECLAIM), *holders) == (PREEMPT, 0, ["middle"])


def test_borrowers_go_first_and_only_until_they_are_within_quota() -> None:
    documents = [
        _queue("q", 4, **RECLAIM),
        _queue("other", 4),
        _holder("own", "q", 1, 0),
        _holder("b1", "other", 2, 0, 1),
        _holder("b2", "other", 2, 0, 2),
        _holder("b3", "other", 3, 0, 3),
    ]
    assert _simulated(3, *documents) == (RECLAIMS, 0, ["b3"])


def test_a_queue_within_its_quota_is_left_alone() -> None:
    documents = [_queue("q", 4, **RECLAIM), _queue("other", 4), _holder("own", "q", 4, 50), _holder("b", "other", 4, 0)]
    assert _simulated(2, *documents)[0] == NOBODY


def test_a_cohort_within_its_quota_is_left_alone_though_a_queue_in_it_borrows() -> None:
    documents = [
        cohort("top"),
        cohort("left", parent="top"),
        cohort("right", parent="top"),
        _queue("q", 4, "left", **RECLAIM),
        _queue("near", 0, "left"),
        _queue("x", 1, "right"),
        _queue("y", 2, "right"),
        _holder("own", "q", 3, 50),
        _holder("near", "near", 1, 50),
        _holder("far", "x", 3, 0),
    ]
    assert _simulated(1, *documents) == (RECLAIMS, 0, ["near"])


def test_a_cohort_is_left_alone_once_enough_of_it_has_gone() -> None:
    documents = [
        cohort("top"),
        cohort("left", parent="top"),
        cohort("right", parent="top"),
        _queue("q", 4, "left", **RECLAIM),
        _queue("x", 0, "right"),
        _queue("y", 2, "right"),
        _holder("own", "q", 2, 50),
        _holder("x1", "x", 2, 0),
        _holder("x2", "x", 2, 1),
    ]
    # x may have to return what right borrowed from top, but not what y lends to x.
    assert _simulated(2, *documents) == (RECLAIMS, 0, ["x1"])


def test_a_subtree_takes_back_its_quota_from_borrowers() -> None:
    documents = [
        cohort("top"),
        cohort("left", parent="top"),
        _queue("q", 1, "left", withinClusterQueue="Never", reclaimWithinCohort="Any"),
        _queue("near", 3, "left"),
        _queue("far", 2, "top"),
        _holder("f", "far", 4, 50),
    ]
    # q borrows from near, but far has taken what belongs to left.
    assert _simulated(4, *documents) == (RECLAIMS, 1, ["f"])


@pytest.mark.parametrize(
    ("policy", "holder", "outcome"),
    [
        ({}, 0, (NOBODY, 1, [])),
        ({"borrowWithinCohort": {"policy": "LowerPriority"}}, 0, (RECLAIMS, 1, ["b"])),
        ({"borrowWithinCohort": {"policy": "LowerPriority"}}, 10, (NOBODY, 1, [])),
        ({"borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 3}}, 3, (RECLAIMS, 1, ["b"])),
        ({"borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 3}}, 4, (NOBODY, 1, [])),
    ],
    ids=["forbidden", "lower", "equal", "at the threshold", "above the threshold"],
)
def test_preempting_while_borrowing_has_to_be_allowed(
    policy: dict[str, Any], holder: int, outcome: tuple[str, int, list[str]]
) -> None:
    documents = [
        _queue("q", 2, **RECLAIM, **policy),
        _queue("other", 2),
        _queue("idle", 2),
        _holder("b", "other", 4, holder),
    ]
    assert _simulated(4, *documents) == outcome


def test_a_queue_reclaims_nothing_for_what_it_would_borrow() -> None:
    documents = [
        _queue("q", 2, **RECLAIM),
        _queue("other", 2),
        _queue("idle", 2),
        _holder("low", "q", 2, 0),
        _holder("b", "other", 4, 0),
    ]
    assert _simulated(2, *documents) == (PREEMPT, 0, ["low"])
    assert _simulated(3, *documents)[0] == NOBODY


def test_a_queue_reclaims_before_it_borrows() -> None:
    documents = [
        _queue("q", 5, **RECLAIM),
        _queue("other", 1),
        _queue("idle", 1),
        _holder("low1", "q", 2, 0),
        _holder("low2", "q", 2, 1),
        _holder("b", "other", 3, 50),
    ]
    # If it borrowed, both of its own workloads would have to go, and nobody else.
    assert _simulated(3, *documents) == (PREEMPT, 0, ["b", "low1"])


def test_a_cohort_back_within_its_quota_gives_no_more() -> None:
    documents = [
        cohort("top"),
        cohort("left", parent="top"),
        cohort("right", parent="top"),
        _queue("q", 4, "left", **RECLAIM, borrowWithinCohort={"policy": "LowerPriority"}),
        _queue("x", 0, "right"),
        _queue("y", 2, "right"),
        _holder("x1", "x", 2, 0),
        _holder("x2", "x", 2, 1),
    ]
    assert _simulated(4, *documents)[2] == ["x1"]
    assert _simulated(5, *documents)[0] == NOBODY


def test_one_resource_at_its_quota_keeps_another_from_being_reclaimed() -> None:
    both = group(["gpu", "cpu"], f=[2, 2])
    documents = [
        flavor("f"),
        local_queue("door", "q"),
        cluster_queue("q", both, cohort="c", preemption=RECLAIM),
        cluster_queue("other", both, cohort="c"),
        admitted("low", "q", {"gpu": "f"}, {"gpu": 2}),
        admitted("b", "other", {"cpu": "f"}, {"cpu": 4}),
        workload("new", "door", pod_set(gpu=1, cpu=2), priority=10),
    ]
    setup = load(sources(documents))
    preemptor = Preemptor(setup.queues, setup.usage, setup.admitted)
    cpu = FlavorResource("f", "cpu")
    alone = preemptor.targets(setup.pending[0], frozenset({cpu}), {cpu: 2000})
    assert [item.workload.label for item in alone] == ["b"]
    assert preemptor.targets(setup.pending[0], frozenset({cpu, OF}), {cpu: 2000, OF: 1}) == ()
