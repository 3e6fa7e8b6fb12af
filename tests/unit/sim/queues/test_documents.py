"""Jobs, priority classes and namespaces among the documents, and notes on what is not simulated."""

from typing import Any

import pytest

from dranode.api.errors import DocumentError
from dranode.sim.queues.report import Anywhere, QueueRun, run_queues
from dranode.sim.queues.setup import load
from tests.fakes.queues import cluster_queue, document, flavor, group, local_queue, pod_set, sources, workload

QUOTA = group(["cpu"], f=[4])
BASE = [flavor("f"), cluster_queue("q", QUOTA), local_queue("door", "q")]
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {"team": "vision"}}}


def job(name: str, *, queue: str = "door", cpu: int = 1, **spec: Any) -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    template = spec.pop("template", {})
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {"template": {"spec": {"containers": containers, "restartPolicy": "Never", **template}}, **spec},
    }


def run(*documents: dict[str, Any]) -> QueueRun:
    return run_queues(load(sources(documents)), Anywhere())


def verdicts(done: QueueRun) -> dict[str, str]:
    return {row.workload: f"{row.mode}: {row.reason}" for row in done.rows}


def test_a_job_with_a_queue_is_admitted_like_kueues_workload() -> None:
    done = run(*BASE, job("small", cpu=1, parallelism=3, completions=2), job("large", cpu=1, parallelism=3))
    assert [item.workload.key for item in done.situation.admitted] == ["default/job-small"]
    assert done.waiting == ("job-large",)
    assert done.notes == ()


def test_other_jobs_create_no_workload() -> None:
    done_job = {**job("done"), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    owned = workload("job-own-1a2b3", "door", pod_set(cpu=1))
    owned["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": "own", "uid": "u"}]
    setup = load(sources([*BASE, job("none", queue=""), done_job, job("own"), owned]))
    assert [each.key for each in setup.pending] == ["default/job-own-1a2b3"]
    owned["metadata"]["ownerReferences"][0]["apiVersion"] = "batch.volcano.sh/v1alpha1"
    assert len(load(sources([*BASE, job("own"), owned])).pending) == 2


@pytest.mark.parametrize(
    ("made", "counts"),
    [
        (job("a", parallelism=4, completions=5), {"default/job-a": 4}),
        ({**job("a", parallelism=4, completions=5), "status": {"succeeded": 3}}, {"default/job-a": 2}),
        (
            {
                **job("a", parallelism=4, completions=4, completionMode="Indexed"),
                "status": {"failedIndexes": "0-1", "completedIndexes": "3", "succeeded": 1},
            },
            {"default/job-a": 1},
        ),
        (job("a", queue=""), {"default/job-a": 1}),
        ({**job("a", queue=""), "metadata": {"name": "a", "uid": "u"}}, {}),
        (
            {**job("a"), "metadata": {"name": "a", "labels": {"kueue.x-k8s.io/prebuilt-workload-name": "w"}}},
            {},
        ),
    ],
)
def test_a_job_counts_pods_that_will_run_and_may_use_the_queue_default(
    made: dict[str, Any], counts: dict[str, int]
) -> None:
    setup = load(sources([*BASE, local_queue("default", "q"), made]))
    assert {each.key: each.pod_sets[0].count for each in setup.pending} == counts


def test_a_job_may_start_with_fewer_pods_and_names_its_priority() -> None:
    value = {"metadata": {"name": "high"}, "value": 7}
    classes = [
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", **value},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **value, "value": 5},
    ]
    least = job("a", parallelism=9, template={"priorityClassName": "high"})
    least["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    labeled = job("b")
    labeled["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    setup = load(sources([*BASE, *classes, least, labeled]))
    assert [(each.priority, each.pod_sets[0].min_count) for each in setup.pending] == [(5, 2), (7, None)]


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ({"overhead": {"cpu": "-1"}}, "overhead.limits[cpu]: -1 is below 0"),
        (
            {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
            "containers[0].resources.requests[cpu]: 2 is more than the limit of 1",
        ),
        (
            {"initContainers": [{"name": "i", "resources": {"limits": {"example.com/gpu": "500m"}}}]},
            "initContainers[0].resources.limits[example.com/gpu]: 500m is not a whole number",
        ),
        (
            {"resources": {"limits": {"hugepages-2Mi": "3Mi"}}},
            "resources.limits[hugepages-2Mi]: 3Mi is not a multiple of the page size",
        ),
    ],
)
def test_a_job_with_impossible_amounts_is_refused_with_the_path(template: dict[str, Any], error: str) -> None:
    with pytest.raises(DocumentError) as raised:
        load(sources([*BASE, job("j", template=template)]))
    assert str(raised.value).endswith(f"(Job j): spec.template.spec.{error}")
    if "more than the limit" in error:
        refused = load(sources([*BASE, workload("w", "door", pod_set(spec=template))])).pending[0].inadmissible
        assert refused == "pod set main: a container requests cpu: 2, more than its limit of 1"


@pytest.mark.parametrize(("number", "minimum"), [("0", None), ("3", None), ("x", None), ("3", 3)])
def test_a_least_number_of_pods_is_below_the_number_of_a_new_job(number: str, minimum: int | None) -> None:
    made = job("j", parallelism=3)
    made["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": number}
    if minimum:
        made["metadata"]["uid"] = "u"
        assert load(sources([*BASE, made])).pending[0].pod_sets[0].min_count == minimum
        return
    with pytest.raises(DocumentError, match=f'"{number}" is not a number from 1 to 2, below the 3 pods of the Job'):
        load(sources([*BASE, made]))


@pytest.mark.parametrize(("kind", "first"), [("workloadpriorityclass", "b"), ("priorityclass", "a")])
def test_v1beta1_says_which_kind_of_class_gives_the_priority(kind: str, first: str) -> None:
    value = {"metadata": {"name": "p"}}
    classes = [
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", **value, "value": 1},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **value, "value": 9},
    ]
    group_of = {"workloadpriorityclass": "kueue.x-k8s.io", "priorityclass": "scheduling.k8s.io"}[kind]
    spec = {"queueName": "door", "podSets": [pod_set(cpu=4)], "priorityClassName": "p"}
    older = document("Workload", "a", {**spec, "priorityClassSource": f"{group_of}/{kind}"}, "kueue.x-k8s.io/v1beta1")
    done = run(*BASE, *classes, older, workload("b", "door", pod_set(cpu=4), priority=5))
    assert [item.workload.label for item in done.situation.admitted] == [first]


def test_a_workload_with_a_missing_priority_class_is_refused() -> None:
    made = workload("w", "door", pod_set(cpu=1))
    made["spec"] |= {"priority": None, "priorityClassRef": {"kind": "PriorityClass", "name": "high"}}
    with pytest.raises(DocumentError, match=r'spec.priority: no document defines the PriorityClass "high"'):
        load(sources([*BASE, made]))


@pytest.mark.parametrize(
    ("selector", "documents", "why"),
    [
        (None, [], "ClusterQueue q has no namespaceSelector, so it admits no workloads; set it to {} to admit all"),
        ({"matchLabels": {"team": "vision"}}, [], "does not match the namespace default, whose labels are unknown"),
        ({"matchLabels": {"team": "speech"}}, [NAMESPACE], "does not match the namespace default"),
        (
            {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]},
            [NAMESPACE],
            "does not match the namespace",
        ),
        ({}, [], ""),
        ({"matchLabels": {"team": "vision"}}, [NAMESPACE], ""),
        ({"matchLabels": {"kubernetes.io/metadata.name": "default"}}, [], ""),
    ],
)
def test_a_queue_takes_workloads_from_the_namespaces_that_it_selects(
    selector: dict[str, Any] | None, documents: list[dict[str, Any]], why: str
) -> None:
    queue = cluster_queue("q", QUOTA, namespaceSelector=selector)
    done = run(flavor("f"), queue, local_queue("door", "q"), *documents, workload("w", "door", pod_set(cpu=1)))
    assert (why or "admitted") in verdicts(done)["w"]
    assert bool(done.waiting) is bool(why)


def test_what_is_not_simulated_is_noted_for_the_object() -> None:
    queue = cluster_queue("q", QUOTA, admissionChecksStrategy={}, fairSharing={"weight": 2}, namespaceSelector={})
    nodes = document("ResourceFlavor", "f", {"topologyName": "racks"})
    made = workload("w", "door", {**pod_set(cpu=1), "topologyRequest": {"required": "rack"}})
    made["metadata"]["annotations"] = {"kueue.x-k8s.io/workload-slice-replacement-for": "default/v"}
    rack = job("j")
    rack["spec"]["template"]["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}
    check = document("AdmissionCheck", "prov", {"controllerName": "x"})
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {}}, "spec": {}}
    deployment["metadata"] = {"name": "d", "labels": {"kueue.x-k8s.io/queue-name": "door"}}
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "waitForPodsReady": {"enable": True},
    }
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": []}}
    done = run(nodes, queue, local_queue("door", "q"), made, check, deployment, settings, limits, rack)
    said = [note.removeprefix("queues.yaml, document ") for note in done.notes]
    assert [each.partition(": ")[0] for each in said] == [
        "1 (ResourceFlavor f)",
        "2 (ClusterQueue q)",
        "2 (ClusterQueue q)",
        "4 (Workload w)",
        "4 (Workload w)",
        "5 (AdmissionCheck prov)",
        "6 (Deployment d)",
        "7 (Configuration)",
        "8 (LimitRange l)",
        "9 (Job j)",
    ]
    for each, what in zip(
        said,
        [
            "spec.topologyName is not simulated: pods are placed without regard to racks",
            "spec.admissionChecksStrategy is not simulated: its workloads count as admitted once they hold quota",
            "spec.fairSharing is not simulated: preemption and order go by priority alone",
            "the annotation kueue.x-k8s.io/workload-slice-replacement-for is not simulated",
            "spec.podSets[0].topologyRequest.required is not simulated",
            "objects of this kind are not simulated",
            "it has the label kueue.x-k8s.io/queue-name, but only admission of Jobs and Workloads is simulated",
            "waitForPodsReady is not simulated",
            "it is not considered: the pods of Jobs count what is written",
            "the annotation kueue.x-k8s.io/podset-required-topology is not simulated",
        ],
        strict=True,
    ):
        assert what in each
