"""The search over flavors in cases of our own: the rules of KEP-582, and how a search is resumed."""

from collections.abc import Mapping
from typing import Any

import pytest

from dranode.sim.queues.assign import (
    LAST_FLAVOR,
    Assignment,
    FlavorMode,
    Moment,
    Oracle,
    Simulation,
    assign,
    still_valid,
    visiting_order,
)
from dranode.sim.queues.setup import Setup, load
from dranode.sim.queues.values import FlavorResource, Workload
from tests.fakes.queues import admitted, cluster_queue, cohort, flavor, group, local_queue, pod_set, sources, workload

FLAVORS = ("one", "two", "three")


def _setup(*documents: Mapping[str, Any]) -> Setup:
    return load(sources([*(flavor(name) for name in FLAVORS), local_queue("door", "q"), *documents]))


def _never(workload: Workload, of: FlavorResource, wanted: int) -> Simulation:
    raise AssertionError(f"nobody asked for preemption of {wanted} {of} by {workload.key}")


def _answers(**modes: FlavorMode) -> Oracle:
    """An oracle with one answer for each flavor."""
    return lambda _, of, __: Simulation(modes[of.flavor])


def _taken(assignment: Assignment) -> list[dict[str, str]]:
    return [{name: got.flavor for name, got in item.flavors.items()} for item in assignment.pod_sets]


def _grouped(*pod_sets: Mapping[str, Any]) -> Setup:
    return _setup(
        cluster_queue("q", group(["cpu", "memory"], one=[4, "8Gi"], two=[8, "8Gi"]), group(["gpu"], three=[2])),
        workload("new", "door", *pod_sets),
    )


def test_the_resources_of_a_group_share_a_flavor() -> None:
    setup = _grouped(pod_set(cpu=6, memory="1Gi", gpu=1))
    assignment, state = assign(setup.queues, setup.usage, setup.pending[0], None, _never)
    assert _taken(assignment) == [{"cpu": "two", "memory": "two", "gpu": "three"}]
    assert state.tried == ({"cpu": LAST_FLAVOR, "memory": LAST_FLAVOR, "gpu": LAST_FLAVOR},)


def test_a_pod_set_has_no_flavors_if_one_group_has_no_room() -> None:
    setup = _grouped(pod_set(cpu=1, gpu=3))
    assignment, state = assign(setup.queues, setup.usage, setup.pending[0], None, _never)
    assert assignment.mode is FlavorMode.NO_FIT
    assert _taken(assignment) == [{}]
    assert state.tried == ({},)


def test_a_pod_set_counts_what_earlier_ones_were_given() -> None:
    setup = _grouped(pod_set("driver", cpu=3), pod_set("workers", 2, cpu=1))
    assignment, _ = assign(setup.queues, setup.usage, setup.pending[0], None, _never)
    assert _taken(assignment) == [{"cpu": "one"}, {"cpu": "two"}]
    assert assignment.usage == {FlavorResource("one", "cpu"): 3000, FlavorResource("two", "cpu"): 2000}


def test_pod_sets_after_one_that_does_not_fit_are_not_searched() -> None:
    setup = _grouped(pod_set("a", cpu=1), pod_set("b", cpu=9), pod_set("c", cpu=1))
    assignment, _ = assign(setup.queues, setup.usage, setup.pending[0], None, _never)
    assert [item.pod_set.name for item in assignment.pod_sets] == ["a", "b"]
    assert assignment.mode is FlavorMode.NO_FIT


def _three() -> Setup:
    return _setup(
        cluster_queue("q", group(["cpu"], one=[4], two=[4], three=[4])), workload("new", "door", pod_set(cpu=1))
    )


# generation then, generation now, cycles passed: does the state still count?
AGES: list[tuple[int, int, int, bool]] = [
    (3, 3, 1, True),
    (3, 3, 9, True),
    (3, 4, 1, True),
    (3, 4, 2, False),
    (4, 3, 2, True),
]


@pytest.mark.parametrize(("then", "now", "passed", "counts"), AGES)
def test_a_newer_generation_resets_the_search(then: int, now: int, passed: int, counts: bool) -> None:  # noqa: FBT001 - a case
    setup = _three()
    first, state = assign(setup.queues, setup.usage, setup.pending[0], None, _never, moment=Moment(then, 5))
    second, _ = assign(setup.queues, setup.usage, setup.pending[0], state, _never, moment=Moment(now, 5 + passed))
    assert _taken(first) == [{"cpu": "one"}]
    assert _taken(second) == [{"cpu": "two" if counts else "one"}]


def test_a_workload_that_changed_resets_the_search() -> None:
    setup = _three()
    _, state = assign(setup.queues, setup.usage, setup.pending[0], None, _never, moment=Moment(1, 5))
    other = _setup(cluster_queue("q", group(["cpu"], one=[4])), workload("new", "door", pod_set(cpu=2))).pending[0]
    assert still_valid(state, setup.pending[0], Moment(1, 6))
    assert not still_valid(state, other, Moment(1, 6))


def test_resources_are_visited_in_the_order_of_their_names_hashes() -> None:
    # The published test vectors of FNV-1a, 64 bits: "" cbf29ce484222325, "a" af63dc4c8601ec8c, "b" af63df4c8601f1a5.
    assert visiting_order(["", "b", "a"]) == ["a", "b", ""]


@pytest.mark.parametrize(("above", "mode"), [("top", FlavorMode.RECLAIM), ("", FlavorMode.NO_FIT)])
def test_above_its_quota_a_queue_may_preempt_within_its_cohorts(above: str, mode: FlavorMode) -> None:
    setup = _setup(
        *([cohort("top"), cluster_queue("far", group(["cpu"], one=[1]), cohort="top")] if above else []),
        cohort("left", parent=above),
        cluster_queue("q", group(["cpu"], one=[1]), cohort="left"),
        cluster_queue("near", group(["cpu"], one=[3]), cohort="left"),
        *([admitted("user", "far", {"cpu": "one"}, {"cpu": 3})] if above else []),
        *([] if above else [admitted("user", "near", {"cpu": "one"}, {"cpu": 2})]),
        workload("new", "door", pod_set(cpu=3)),
    )
    assignment, _ = assign(setup.queues, setup.usage, setup.pending[0], None, _answers(one=FlavorMode.RECLAIM))
    assert assignment.mode is mode


SELECTORS: list[tuple[str, dict[str, Any], str | None]] = [
    ("a label that another flavor has", {"nodeSelector": {"zone": "b"}}, "two"),
    ("a label that no flavor states", {"nodeSelector": {"disk": "ssd"}}, "one"),
    ("a label that none has", {"nodeSelector": {"zone": "z"}}, None),
    ("affinity to one of two", {"affinity": [("zone", "In", ["b", "z"])]}, "two"),
    ("affinity away from one", {"affinity": [("zone", "NotIn", ["a"])]}, "two"),
    ("affinity to a label that no flavor states", {"affinity": [("disk", "Exists", [])]}, "one"),
    ("affinity by number", {"affinity": [("age", "Gt", ["3"])]}, "two"),
    ("an operator that is not one", {"affinity": [("zone", "Is", ["a"])]}, None),
]


@pytest.mark.parametrize(("spec", "taken"), [case[1:] for case in SELECTORS], ids=[case[0] for case in SELECTORS])
def test_a_flavor_has_to_match_the_pods(spec: dict[str, Any], taken: str | None) -> None:
    if "affinity" in spec:
        terms = [
            {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
            for key, operator, values in spec["affinity"]
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec = {"affinity": {"nodeAffinity": required}}
    setup = load(
        sources(
            [
                flavor("one", zone="a", age="1"),
                flavor("two", zone="b", age="5"),
                cluster_queue("q", group(["cpu"], one=[4], two=[4])),
                local_queue("door", "q"),
                workload("new", "door", pod_set(cpu=1, spec=spec)),
            ]
        )
    )
    assignment, _ = assign(setup.queues, setup.usage, setup.pending[0], None, _never)
    assert _taken(assignment) == [{"cpu": taken} if taken else {}]
    if taken is None:
        assert all("flavor" in attempt.worst.why for attempt in assignment.pod_sets[0].scans[0].attempts)


def test_preemption_is_asked_for_the_sum_of_all_pod_sets() -> None:
    asked: list[tuple[str, str, int]] = []

    def oracle(_: Workload, of: FlavorResource, wanted: int) -> Simulation:
        asked.append((*of, wanted))
        return Simulation(FlavorMode.PREEMPT)

    setup = _setup(
        cluster_queue("q", group(["cpu"], one=[10]), flavorFungibility={"whenCanPreempt": "MayStopSearch"}),
        admitted("user", "q", {"cpu": "one"}, {"cpu": 8}),
        workload("new", "door", pod_set("a", cpu=2), pod_set("b", 2, cpu=3)),
    )
    assignment, _ = assign(setup.queues, setup.usage, setup.pending[0], None, oracle)
    assert asked == [("one", "cpu", 8000)]
    assert [item.mode for item in assignment.pod_sets] == [FlavorMode.FIT, FlavorMode.PREEMPT]
