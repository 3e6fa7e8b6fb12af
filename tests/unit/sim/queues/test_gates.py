"""Pods that have ended, pod sets that share a flavor, and Kueue's feature gates."""

from typing import Any

import pytest

from dranode.api.errors import DocumentError
from dranode.sim.queues.report import Anywhere, QueueRun, run_queues
from dranode.sim.queues.setup import load
from tests.fakes.queues import cluster_queue, document, flavor, group, local_queue, pod_set, sources, workload

QUOTA = group(["cpu"], f=[4])
BASE = [flavor("f"), cluster_queue("q", QUOTA), local_queue("door", "q")]


def run(*documents: dict[str, Any]) -> QueueRun:
    return run_queues(load(sources(documents)), Anywhere())


def got(done: QueueRun) -> dict[str, Any]:
    return {item.workload.key.removeprefix("default/"): item.flavors for item in done.situation.admitted}


def gates(**settings: bool) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "metadata": {"name": "c"},
        "featureGates": settings,
    }


def holding(name: str, count: int, ended: int) -> dict[str, Any]:
    """An admitted workload of `count` pods with one CPU each, of which `ended` have ended."""
    made = workload(name, "door", pod_set(count=count, cpu=1))
    assignment = {"name": "main", "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": str(count)}, "count": count}
    admission = {"clusterQueue": "q", "podSetAssignments": [assignment]}
    return {**made, "status": {"admission": admission, "reclaimablePods": [{"name": "main", "count": ended}]}}


def test_the_quota_of_pods_that_have_ended_goes_to_others() -> None:
    waiting = workload("w", "door", pod_set(count=3, cpu=1))
    assert set(got(run(*BASE, holding("h", 4, 3), waiting))) == {"h", "w"}
    assert set(got(run(*BASE, holding("h", 4, 2), waiting))) == {"h"}
    assert set(got(run(*BASE, gates(ReclaimablePods=False), holding("h", 4, 3), waiting))) == {"h"}
    # More may have ended than there are, for a moment.
    assert set(got(run(*BASE, holding("h", 4, 9), workload("w", "door", pod_set(count=4, cpu=1))))) == {"h", "w"}


def test_a_requeued_workload_asks_only_for_pods_that_have_not_ended() -> None:
    again = {
        **workload("w", "door", pod_set(count=6, cpu=1)),
        "status": {"reclaimablePods": [{"name": "main", "count": 2}]},
    }
    done = run(*BASE, again)
    assert [dict(item.counts) for item in done.situation.admitted] == [{"main": 4}]


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        ([{"name": "nope", "count": 1}], '"nope" is not a pod set of the workload; it has main'),
        ([{"name": "main", "count": 1}, {"name": "main", "count": 1}], '"main" is listed twice'),
        ([{"name": "main", "count": -1}], "-1 is below 0"),
    ],
)
def test_an_impossible_number_of_ended_pods_is_refused(ended: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        load(sources([*BASE, {**workload("w", "door", pod_set(cpu=1)), "status": {"reclaimablePods": ended}}]))


def grouped(name: str, count: int, group_name: str = "g", **requests: Any) -> dict[str, Any]:
    return {**pod_set(name, count, **requests), "topologyRequest": {"podSetGroupName": group_name}}


def test_pod_sets_of_a_group_get_the_same_flavor() -> None:
    queue = [flavor("a"), flavor("b"), cluster_queue("q", group(["cpu"], a=[3], b=[9])), local_queue("door", "q")]
    apart = run(*queue, workload("w", "door", pod_set("leader", cpu=2), pod_set("workers", 2, cpu=2)))
    assert got(apart)["w"] == {"leader": {"cpu": "a"}, "workers": {"cpu": "b"}}
    together = run(*queue, workload("w", "door", grouped("leader", 1, cpu=2), grouped("workers", 2, cpu=2)))
    assert got(together)["w"] == {"leader": {"cpu": "b"}, "workers": {"cpu": "b"}}
    (admitted,) = together.situation.admitted
    assert sum(admitted.usage.values()) == 6000


def test_a_flavor_has_to_match_every_pod_set_of_the_group() -> None:
    queue = [flavor("a", kind="x"), flavor("b", kind="y"), cluster_queue("q", group(["cpu"], a=[9], b=[9]))]
    picky = grouped("workers", 1, cpu=1, spec={"nodeSelector": {"kind": "y"}})
    done = run(*queue, local_queue("door", "q"), workload("w", "door", grouped("leader", 1, cpu=1), picky))
    assert got(done)["w"] == {"leader": {"cpu": "b"}, "workers": {"cpu": "b"}}


def test_a_resource_that_one_pod_set_asks_for_is_not_counted_for_the_other() -> None:
    queue = [flavor("f"), cluster_queue("q", group(["cpu", "memory"], f=[4, 8])), local_queue("door", "q")]
    done = run(*queue, workload("w", "door", grouped("leader", 1, cpu=1), grouped("workers", 2, cpu=1, memory=4)))
    assert got(done)["w"] == {"leader": {"cpu": "f"}, "workers": {"cpu": "f", "memory": "f"}}


def test_partial_admission_can_be_turned_off() -> None:
    partial = workload("w", "door", pod_set(count=9, min_count=2, cpu=1))
    assert [dict(item.counts) for item in run(*BASE, partial).situation.admitted] == [{"main": 4}]
    assert got(run(*BASE, gates(PartialAdmission=False), partial)) == {}


def test_a_priority_can_be_boosted_if_the_gate_is_on() -> None:
    late = workload("late", "door", pod_set(cpu=4), created=9)
    late["metadata"]["annotations"] = {"kueue.x-k8s.io/priority-boost": "3"}
    early = workload("early", "door", pod_set(cpu=4), priority=2, created=1)
    assert set(got(run(*BASE, early, late))) == {"early"}
    assert set(got(run(*BASE, gates(PriorityBoost=True), early, late))) == {"late"}
    late["metadata"]["annotations"] = {"kueue.x-k8s.io/priority-boost": "much"}
    with pytest.raises(DocumentError, match='"much" is not a whole number'):
        run(*BASE, gates(PriorityBoost=True), early, late)


def test_a_gated_workload_waits_for_the_workloads_that_it_names() -> None:
    gated = workload("w", "door", pod_set(cpu=1))
    gated["metadata"]["annotations"] = {"kueue.x-k8s.io/admission-gated-by": "example.com/budget"}
    done = run(*BASE, gated)
    assert done.waiting == ("w",)
    assert "keeps it waiting for example.com/budget" in done.rows[0].reason
    assert set(got(run(*BASE, gates(AdmissionGatedBy=False), gated))) == {"w"}


def test_within_a_cycle_age_decides_between_equal_priorities() -> None:
    queues = [
        flavor("f"),
        cluster_queue("p", group(["cpu"], f=[{"nominalQuota": 0}]), cohort="c"),
        cluster_queue("q", group(["cpu"], f=[{"nominalQuota": 2}]), cohort="c"),
        cluster_queue("r", group(["cpu"], f=[{"nominalQuota": 0}]), cohort="c"),
        local_queue("p", "p"),
        local_queue("r", "r"),
    ]
    old, urgent = workload("old", "p", pod_set(cpu=2), created=1), workload("urgent", "r", pod_set(cpu=2), priority=9)
    assert set(got(run(*queues, old, urgent))) == {"urgent"}
    assert set(got(run(*queues, gates(PrioritySortingWithinCohort=False), old, urgent))) == {"old"}


def test_a_job_without_a_class_has_the_default_one() -> None:
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    default = {**kind, "metadata": {"name": "default"}, "value": 7}
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]}}
    job = document("Job", "j", {"template": template}, "batch/v1")
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "door"}
    rival = workload("w", "door", pod_set(cpu=4), priority=5)
    assert set(got(run(*BASE, default, rival, job))) == {"job-j"}
    off = gates(WorkloadPriorityClassDefaulting=False)
    assert set(got(run(*BASE, off, default, rival, job))) == {"w"}


def test_unknown_gates_are_refused_and_unsimulated_ones_are_named() -> None:
    with pytest.raises(DocumentError, match='no feature gate "PartialAdmision"; did you mean "PartialAdmission"'):
        run(*BASE, gates(PartialAdmision=False))
    with pytest.raises(DocumentError, match="neither true nor false"):
        run(*BASE, {**gates(), "featureGates": {"PartialAdmission": "no"}})
    done = run(*BASE, gates(FlavorFungibility=False, TopologyAwareScheduling=True, LocalQueueMetrics=True))
    assert [note.partition(": ")[2] for note in done.notes] == [
        "featureGates.FlavorFungibility is not simulated: its default applies"
    ]
