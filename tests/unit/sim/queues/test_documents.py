"""Jobs, priority classes and namespaces among the documents, and notes on what is not simulated."""

from __future__ import annotations

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
    queue = cluster_queue("q", QUOTA, admissionChecks=["prov"], fairSharing={"weight": 2}, namespaceSelector={})
    nodes = document("ResourceFlavor", "f", {"topologyName": "racks"})
    made = workload("w", "door", {**pod_set(cpu=1), "topologyRequest": {"required": "rack"}})
    check = document("AdmissionCheck", "prov", {"controllerName": "x"})
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {}}, "spec": {}}
    deployment["metadata"] = {"name": "d", "labels": {"kueue.x-k8s.io/queue-name": "door"}}
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "waitForPodsReady": {"enable": True},
    }
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": []}}
    done = run(nodes, queue, local_queue("door", "q"), made, check, deployment, settings, limits)
    said = [note.removeprefix("queues.yaml, document ") for note in done.notes]
    assert [each.partition(": ")[0] for each in said] == [
        "1 (ResourceFlavor f)",
        "2 (ClusterQueue q)",
        "2 (ClusterQueue q)",
        "4 (Workload w)",
        "5 (AdmissionCheck prov)",
        "6 (Deployment d)",
        "7 (Configuration)",
        "8 (LimitRange l)",
    ]
    for each, what in zip(
        said,
        [
            "spec.topologyName is not simulated: pods are placed without regard to racks",
            "spec.admissionChecks is not simulated: its workloads count as admitted once they hold quota",
            "spec.fairSharing is not simulated: preemption and order go by priority alone",
            "spec.podSets[0].topologyRequest.required is not simulated",
            "objects of this kind are not simulated",
            "it has the label kueue.x-k8s.io/queue-name, but only admission of Jobs and Workloads is simulated",
            "waitForPodsReady is not simulated",
            "it is not considered: the pods of Jobs count what is written",
        ],
        strict=True,
    ):
        assert what in each
