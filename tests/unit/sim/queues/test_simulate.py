"""Cycles over queues: which workloads are admitted, at whose expense, and what each attempt reports."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dranode.driver.machine.yaml_files import load_documents
from dranode.sim.fleet.show import attempts_drawn
from dranode.sim.queues.report import Anywhere, QueueRun, run_queues
from dranode.sim.queues.setup import load
from dranode.sim.queues.simulate import Nodes
from dranode.sim.queues.workloads import pods_of
from tests.fakes.fleet import PodSlots
from tests.fakes.queues import admitted, cluster_queue, flavor, group, local_queue, pod_set, sources, workload

EXAMPLES = Path(__file__).parents[4] / "examples"
KEYS = ["workload", "podSet", "resource", "flavor", "mode", "chosen", "reason", "preempted", "next"]


def _run(*documents: Mapping[str, Any], nodes: Nodes | None = None) -> QueueRun:
    base = [flavor("one", tier="a"), flavor("two", tier="b"), local_queue("door", "q")]
    return run_queues(load(sources([*base, *documents])), nodes if nodes is not None else PodSlots())


def _queue(*, name: str = "q", cohort: str = "", one: int = 4, two: int = 4, **spec: Any) -> dict[str, Any]:
    return cluster_queue(name, group(["cpu"], one=[one], two=[two]), cohort=cohort, **spec)


def _holders(run: QueueRun) -> dict[str, list[str]]:
    return {item.workload.label: sorted(set(item.flavors["main"].values())) for item in run.situation.admitted}


def _table(run: QueueRun) -> list[tuple[Any, ...]]:
    return [(row["workload"], row["flavor"], row["mode"], row["chosen"], row["next"]) for row in run.attempts]


def test_higher_priority_goes_first_then_the_older_then_the_order_of_the_file() -> None:
    run = _run(
        _queue(two=0),
        workload("later", "door", pod_set(cpu=2)),
        workload("last", "door", pod_set(cpu=2)),
        workload("newer", "door", pod_set(cpu=1), created=20),
        workload("older", "door", pod_set(cpu=1), created=10),
        workload("urgent", "door", pod_set(cpu=1), created=30, priority=1),
    )
    assert list(dict.fromkeys(row["workload"] for row in run.attempts)) == ["urgent", "older", "newer", "later", "last"]
    assert sorted(_holders(run)) == ["newer", "older", "urgent"]
    assert run.waiting == ("later", "last")


def test_only_a_strict_queue_waits_for_a_workload_that_does_not_fit() -> None:
    documents = [
        workload("big", "door", pod_set(cpu=9), created=1),
        workload("small", "door", pod_set(cpu=1), created=2),
    ]
    assert list(_holders(_run(_queue(), *documents))) == ["small"]
    strict = _run(_queue(queueingStrategy="StrictFIFO"), *documents)
    assert _holders(strict) == {}
    assert [row["workload"] for row in strict.attempts] == ["big", "big"]


@pytest.mark.parametrize(
    ("strategy", "reclaims", "limit", "borrower"),
    [
        ("StrictFIFO", "Never", None, False),
        ("StrictFIFO", "Never", 0, False),
        ("StrictFIFO", "Any", None, True),
        ("BestEffortFIFO", "Never", None, True),
    ],
)
def test_a_strict_queue_keeps_quota_that_it_could_not_reclaim(
    strategy: str, reclaims: str, limit: int | None, *, borrower: bool
) -> None:
    spec: dict[str, Any] = {"queueingStrategy": strategy, "preemption": {"reclaimWithinCohort": reclaims}}
    run = _run(
        cluster_queue("q", group(["cpu"], one=[{"nominalQuota": 2, "borrowingLimit": limit}]), cohort="c", **spec),
        cluster_queue("other", group(["cpu"], one=[0]), cohort="c"),
        local_queue("other", "other"),
        admitted("first", "q", {"cpu": "one"}, {"cpu": 1}),
        workload("next", "door", pod_set(cpu=2), created=1),
        workload("borrower", "other", pod_set(cpu=1), created=2),
    )
    assert ("borrower" in _holders(run)) is borrower


def test_a_workload_takes_back_what_another_queue_borrowed() -> None:
    run = _run(
        _queue(cohort="c", two=0, preemption={"reclaimWithinCohort": "Any"}),
        _queue(name="other", cohort="c", two=0),
        admitted("borrower", "other", {"cpu": "one"}, {"cpu": 7}, priority=9),
        workload("owner", "door", pod_set(cpu=2)),
    )
    assert _table(run) == [
        ("owner", "one", "Preempt", True, "one"),
        ("owner", "two", "NoFit", False, "one"),
        ("owner", "one", "Fit", True, None),
        ("borrower", "one", "Borrow", True, "two"),
        ("borrower", "two", "NoFit", False, "one"),
    ]
    assert run.attempts[0]["preempted"] == ["borrower"]
    assert [row["preempted"] for row in run.attempts[1:]] == [[], [], [], []]
    assert _holders(run) == {"owner": ["one"]}
    assert run.waiting == ("borrower",)


def test_a_workload_that_need_not_be_preempted_keeps_its_place() -> None:
    run = _run(
        _queue(two=0, preemption={"withinClusterQueue": "LowerPriority"}),
        admitted("low", "q", {"cpu": "one"}, {"cpu": 2}),
        admitted("lower", "q", {"cpu": "one"}, {"cpu": 2}, priority=-1),
        workload("new", "door", pod_set(cpu=2), priority=5),
    )
    assert run.attempts[0]["preempted"] == ["lower"]
    assert sorted(_holders(run)) == ["low", "new"]


def test_pods_that_cannot_be_placed_try_the_next_flavor() -> None:
    run = _run(_queue(), workload("w", "door", pod_set(count=2, cpu=1)), nodes=PodSlots({"one": 1}))
    assert _table(run) == [("w", "one", "Fit", True, "two"), ("w", "two", "Fit", True, None)]
    assert "admitted, but its pods cannot be placed: 2 pods, but one has room for 1" in run.attempts[0]["reason"]
    assert _holders(run) == {"w": ["two"]}
    node = run.situation.usage.nodes["q"]
    assert {of.flavor: run.situation.usage.at(node, of) for of in node.quotas} == {"one": 0, "two": 2000}


def test_a_workload_waits_if_no_flavor_has_nodes_for_it() -> None:
    run = _run(_queue(), workload("w", "door", pod_set(count=2, cpu=1)), nodes=PodSlots({"one": 1, "two": 0}))
    assert [row["flavor"] for row in run.attempts] == ["one", "two"]
    assert run.waiting == ("w",)


def test_admitted_workloads_use_nodes_too() -> None:
    holder = admitted("old", "q", {"cpu": "one"}, {"cpu": 1})
    run = _run(_queue(two=0), holder, workload("new", "door", pod_set(cpu=1)), nodes=PodSlots({"one": 1}))
    assert "one has room for 0" in run.attempts[0]["reason"]


def test_an_admitted_workload_without_nodes_is_reported() -> None:
    run = _run(_queue(), admitted("old", "q", {"cpu": "one"}, {"cpu": 1}), nodes=PodSlots({"one": 0}))
    assert [(row["workload"], row["flavor"], row["chosen"]) for row in run.attempts] == [("old", None, True)]
    assert "one has room for 0" in run.attempts[0]["reason"]


def test_two_queues_do_not_borrow_the_same_quota() -> None:
    run = _run(
        _queue(cohort="c", one=0, two=0),
        _queue(name="other", cohort="c", one=0, two=0),
        _queue(name="lender", cohort="c", one=3, two=0),
        local_queue("other", "other"),
        workload("first", "door", pod_set(cpu=2), created=1),
        workload("second", "other", pod_set(cpu=2), created=2),
    )
    assert list(_holders(run)) == ["first"]
    assert next(row["reason"] for row in run.attempts if row["workload"] == "second").endswith(
        "another workload of this cycle took the quota"
    )


def test_a_workload_within_quota_goes_before_an_older_borrower() -> None:
    run = _run(
        _queue(cohort="c", one=1, two=0),
        _queue(name="other", cohort="c", one=3, two=0),
        local_queue("other", "other"),
        workload("borrows", "door", pod_set(cpu=2), created=1),
        workload("owns", "other", pod_set(cpu=3), created=2),
    )
    assert list(_holders(run)) == ["owns"]


def test_a_preemptor_goes_before_a_hopeless_workload() -> None:
    run = _run(
        _queue(cohort="c", one=1, two=0, preemption={"reclaimWithinCohort": "Any"}),
        _queue(name="other", cohort="c", one=0, two=0),
        local_queue("other", "other"),
        workload("borrower", "other", pod_set(cpu=1)),
        workload("hopeless", "door", pod_set(cpu=2), priority=1),
        workload("owner", "door", pod_set(cpu=1)),
    )
    assert list(_holders(run)) == ["owner"]


def test_a_preemptor_does_not_go_before_a_workload_that_borrows_less() -> None:
    while_borrowing = {
        "withinClusterQueue": "LowerPriority",
        "reclaimWithinCohort": "LowerPriority",
        "borrowWithinCohort": {"policy": "LowerPriority"},
    }
    run = _run(
        _queue(cohort="c", one=2, two=0, preemption=while_borrowing),
        _queue(name="other", cohort="c", one=2, two=0),
        local_queue("other", "other"),
        admitted("low", "q", {"cpu": "one"}, {"cpu": 3}),
        workload("new", "door", pod_set(cpu=3), priority=5),
        workload("own", "other", pod_set(cpu=2), priority=9),
    )
    assert list(_holders(run)) == ["own"]


def test_a_request_of_nothing_preempts_even_if_its_quota_is_exceeded() -> None:
    both = {"coveredResources": ["cpu", "gpu"]}
    made = group(["cpu", "gpu"], one=[0, 2]) | both
    guest = group(["cpu", "gpu"], one=[0, 0]) | both
    run = _run(
        cluster_queue("q", made, cohort="c", preemption={"reclaimWithinCohort": "Any"}),
        cluster_queue("guest", guest, cohort="c"),
        admitted("over", "q", {"cpu": "one"}, {"cpu": 3}),
        admitted("victim", "guest", {"gpu": "one"}, {"gpu": 2}),
        workload("new", "door", pod_set(cpu=0, gpu=2), priority=1),
    )
    assert sorted(_holders(run)) == ["new", "over"]


def test_two_workloads_that_need_the_same_victim_take_turns() -> None:
    reclaim: dict[str, Any] = {"preemption": {"reclaimWithinCohort": "Any"}}
    run = _run(
        _queue(cohort="c", one=2, two=0, **reclaim),
        _queue(name="other", cohort="c", one=2, two=0, **reclaim),
        _queue(name="guest", cohort="c", one=0, two=0),
        local_queue("other", "other"),
        admitted("victim", "guest", {"cpu": "one"}, {"cpu": 4}),
        workload("first", "door", pod_set(cpu=2), created=1),
        workload("second", "other", pod_set(cpu=2), created=2),
    )
    assert [row["preempted"] for row in run.attempts if row["preempted"]] == [["victim"]]
    assert "another workload preempts the same" in run.attempts[2]["reason"]
    assert sorted(_holders(run)) == ["first", "second"]


def test_a_preemptor_whose_victim_leaves_already_takes_another_one() -> None:
    reclaim: dict[str, Any] = {"preemption": {"reclaimWithinCohort": "Any"}}
    run = _run(
        _queue(cohort="c", one=2, two=0, **reclaim),
        _queue(name="other", cohort="c", one=2, two=0, **reclaim),
        _queue(name="guest", cohort="c", one=0, two=0),
        local_queue("other", "other"),
        *(admitted(name, "guest", {"cpu": "one"}, {"cpu": 2}) for name in ("v", "w")),
        *(workload(name, queue, pod_set(cpu=2)) for name, queue in (("first", "door"), ("second", "other"))),
    )
    assert [(row.cycle, row.preempted) for row in run.rows if row.preempted] == [(1, ("v",)), (1, ("w",))]


def test_the_quota_that_a_preemptor_waits_for_is_reserved() -> None:
    run = _run(
        _queue(cohort="c", one=4, two=0, preemption={"withinClusterQueue": "LowerPriority"}),
        _queue(name="other", cohort="c", one=0, two=0),
        local_queue("other", "other"),
        admitted("low", "q", {"cpu": "one"}, {"cpu": 2}),
        workload("new", "door", pod_set(cpu=4), priority=5),
        workload("guest", "other", pod_set(cpu=1)),
    )
    assert list(_holders(run)) == ["new"]
    guest = [row["reason"] for row in run.attempts if row["workload"] == "guest"]
    assert guest[0].endswith("another workload of this cycle took the quota")


def test_a_preempted_workload_frees_its_nodes() -> None:
    run = _run(
        _queue(two=0, preemption={"withinClusterQueue": "LowerPriority"}),
        admitted("low", "q", {"cpu": "one"}, {"cpu": 4}),
        workload("new", "door", pod_set(cpu=1), priority=5),
        nodes=PodSlots({"one": 1}),
    )
    assert list(_holders(run)) == ["new"]


def test_a_preempted_workload_waits_if_its_queue_is_stopped() -> None:
    stopped = local_queue("stopped", "q")
    stopped["spec"]["stopPolicy"] = "Hold"
    low = admitted("low", "q", {"cpu": "one"}, {"cpu": 4})
    low["spec"]["queueName"] = "stopped"
    run = _run(
        _queue(
            preemption={"withinClusterQueue": "LowerPriority"},
            flavorFungibility={"whenCanPreempt": "MayStopSearch"},
            queueingStrategy="StrictFIFO",
        ),
        stopped,
        low,
        workload("high", "door", pod_set(cpu=4), priority=1),
        workload("next", "door", pod_set(cpu=1)),
    )
    assert _holders(run) == {"high": ["one"], "next": ["two"]}
    assert run.waiting == ("low",)
    assert ("low", "the queue is stopped (Hold)") in {(row["workload"], row["reason"]) for row in run.attempts}


def test_a_workload_of_a_missing_queue_waits_and_others_are_admitted() -> None:
    lost = [workload("lost", "nope", pod_set(cpu=1)), workload("stray", "away", pod_set(cpu=1))]
    run = _run(_queue(), local_queue("away", "gone"), *lost, workload("w", "door", pod_set(cpu=1)))
    assert list(_holders(run)) == ["w"]
    assert {row["workload"]: row["reason"] for row in run.attempts if row["flavor"] is None} == {
        "lost": 'no document defines LocalQueue "default/nope"; add it',
        "stray": 'no document defines ClusterQueue "gone"; add it',
    }


def test_a_workload_that_leaves_wakes_the_others_in_its_tree() -> None:
    run = _run(
        _queue(cohort="c", one=4, two=0, preemption={"reclaimWithinCohort": "Any"}),
        _queue(name="other", cohort="c", one=2, two=0),
        local_queue("other", "other"),
        admitted("big", "other", {"cpu": "one"}, {"cpu": 6}, priority=9),
        workload("small", "other", pod_set(cpu=1), created=1, priority=10),
        workload("owner", "door", pod_set(cpu=4), created=2),
    )
    small = [
        (row["mode"], row["chosen"]) for row in run.attempts if row["workload"] == "small" and row["flavor"] == "one"
    ]
    assert small == [("Preempt", True), ("Fit", True)]
    assert sorted(_holders(run)) == ["owner", "small"]


def test_a_search_starts_again_once_something_has_left_the_queue() -> None:
    run = _run(
        _queue(cohort="c", one=2, two=4),
        _queue(
            name="owner",
            cohort="c",
            one=4,
            two=0,
            preemption={"reclaimWithinCohort": "Any"},
            flavorFungibility={"whenCanPreempt": "MayStopSearch"},
        ),
        local_queue("owner", "owner"),
        admitted("loan", "q", {"cpu": "one"}, {"cpu": 5}, priority=9),
        workload("reclaims", "owner", pod_set(cpu=4)),
        workload("slow", "door", pod_set(count=2, cpu="500m")),
        nodes=PodSlots({"one": 2}),
    )
    slow = [(row["flavor"], row["next"]) for row in run.attempts if row["workload"] == "slow"]
    # Its first attempt ended at "one"; then "loan" had to leave, and was tried before it.
    assert slow == [("one", "two"), ("one", "two"), ("two", None)]


def test_fewer_pods_are_admitted_where_the_workload_allows_it() -> None:
    run = _run(_queue(), workload("w", "door", pod_set(count=9, min_count=2, cpu=1)))
    assert run.situation.admitted[0].counts == {"main": 4}
    assert _holders(run) == {"w": ["one"]}


def test_uncovered_or_uncountable_resources_are_a_row_without_a_flavor() -> None:
    claims = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "nope"}]}
    run = _run(_queue(), workload("a", "door", pod_set(memory=1)), workload("b", "door", pod_set(spec=claims)))
    by_name = {row["workload"]: row for row in run.attempts}
    assert by_name["a"]["reason"] == 'ClusterQueue "q" has no quota of memory'
    assert (by_name["b"]["flavor"], by_name["b"]["mode"], by_name["b"]["chosen"]) == (None, "NoFit", False)
    assert 'ResourceClaimTemplate "nope" does not exist' in by_name["b"]["reason"]
    assert sorted(run.waiting) == ["a", "b"]


def test_pods_that_ask_for_nothing_are_admitted_and_have_a_row() -> None:
    run = _run(_queue(), workload("w", "door", pod_set()))
    assert run.attempts[0]["reason"] == "requests nothing that quota counts; admitted"
    assert [(row["flavor"], row["mode"], row["chosen"]) for row in run.attempts] == [(None, "Fit", True)]


def test_two_workloads_do_not_preempt_each_other_forever() -> None:
    both: dict[str, Any] = {
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerOrNewerEqualPriority"}
    }
    run = _run(
        _queue(cohort="c", one=1, two=0, **both),
        _queue(name="other", cohort="c", one=1, two=0, **both),
        local_queue("other", "other"),
        *(workload(f"a{n}", "door", pod_set(cpu=1)) for n in range(3)),
        *(workload(f"b{n}", "other", pod_set(cpu=2)) for n in range(3)),
    )
    assert len(run.situation.admitted) + len(run.waiting) == 6


def test_rows_keep_their_keys_and_say_why() -> None:
    run = _run(
        _queue(cohort="c", one=2, flavorFungibility={"whenCanBorrow": "TryNextFlavor"}),
        _queue(name="lender", cohort="c"),
        workload("w", "door", pod_set(cpu=3)),
    )
    assert [list(row) for row in run.attempts] == [KEYS, KEYS]
    assert run.attempts[0]["reason"] == (
        '3 of 6 available; borrows from 1 level up; whenCanBorrow is TryNextFlavor, and "two" is better'
    )
    assert run.attempts[1]["reason"] == "3 of 8 available; the search stops here; admitted"


def test_the_table_has_a_line_for_each_flavor() -> None:
    console = Console(width=160, record=True, file=StringIO())
    console.print(attempts_drawn(_run(_queue(), workload("w", "door", pod_set(cpu=9))).rows))
    drawn = console.export_text()
    assert "9 is more than the 4 that" in drawn
    assert drawn.count("NoFit") == 2


def test_pods_of_an_admitted_workload_are_bound_to_its_flavors() -> None:
    claims = {"resourceClaims": [{"name": "c", "resourceClaimName": "shared"}], "nodeSelector": {"disk": "ssd"}}
    assignment = {"name": "main", "flavors": {"cpu": "one"}, "count": 2}
    admission = {"clusterQueue": "q", "podSetAssignments": [assignment]}
    documents = sources(
        [
            flavor("one", tier="a"),
            cluster_queue("q", group(["cpu"], one=[4])),
            local_queue("door", "q"),
            {**workload("w", "door", pod_set(count=2, cpu=1, spec=claims)), "status": {"admission": admission}},
        ]
    )
    setup = load(documents)
    run = run_queues(setup, Anywhere())
    pods = pods_of(setup.documents["default/w"], run.situation.admitted[0], setup.queues.flavors)
    assert [pod.name for pod in pods] == ["w-main-0", "w-main-1"]
    assert pods[0].document["spec"]["nodeSelector"] == {"disk": "ssd", "tier": "a"}
    assert list(pods[0].document["spec"]["resourceClaims"]) == [{"name": "c", "resourceClaimName": "shared"}]


def test_the_example_shows_reclaim_and_a_second_flavor() -> None:
    documents = load_documents([EXAMPLES / "queues.yaml", EXAMPLES / "queues-workloads.yaml"])
    run = run_queues(load(documents), Anywhere())
    assert _holders(run) == {"train": ["reserved"], "label": ["spot"]}
    assert run.waiting == ("transcribe",)
    assert ["transcribe"] in [row["preempted"] for row in run.attempts]
