"""The pods of Deployments, Jobs and the like: how many, their names, owners, labels and nodes."""

import re
from typing import Any

import pytest

from dranode.api.errors import DocumentError
from dranode.api.manifests import SourceDocument
from dranode.api.resource import DeviceTaint, ObjectMeta
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.controllers import MadePods, with_pods
from dranode.sim.cluster.pod_templates import ignored_documents
from dranode.sim.cluster.workload import read_workload
from dranode.sim.scheduler.documents import NodeSpec, SchedulingNode

LETTERS = "[bcdfghjklmnpqrstvwxz2456789]"
SPEC = {
    "containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "g"}]}}],
    "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "gpu"}],
}
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": SPEC}
CLAIM_TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu"},
    "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "dra.gpu"}}]}}},
}
VERSIONS = {"Job": "batch/v1", "CronJob": "batch/v1", "ReplicationController": "v1"}


def controller(kind: str, status: dict[str, Any] | None = None, uid: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": VERSIONS.get(kind, "apps/v1"),
        "kind": kind,
        "metadata": {"name": "a", "namespace": "team", **({"uid": uid} if uid else {})},
        "spec": {"template": TEMPLATE, **spec},
        **({"status": status} if status else {}),
    }


def node(name: str, *taints: DeviceTaint, **labels: str) -> SchedulingNode:
    return SchedulingNode(metadata=ObjectMeta(name=name, labels=labels), spec=NodeSpec(taints=taints))


def made(*documents: dict[str, Any], nodes: tuple[SchedulingNode, ...] = (), **options: Any) -> MadePods:
    sources = [SourceDocument("f", index, document) for index, document in enumerate(documents)]
    return with_pods(sources, lambda: nodes, **options)


def pods(*documents: dict[str, Any], nodes: tuple[SchedulingNode, ...] = ()) -> list[dict[str, Any]]:
    given = [document["metadata"]["name"] for document in documents if document["kind"] == "Pod"]
    return [
        source.document
        for source in made(*documents, nodes=nodes).documents
        if source.kind == "Pod" and source.name not in given
    ]


def names(*documents: dict[str, Any], nodes: tuple[SchedulingNode, ...] = ()) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods(*documents, nodes=nodes)]


def owned(name: str, kind: str, **metadata: Any) -> dict[str, Any]:
    owner = {"apiVersion": VERSIONS.get(kind, "apps/v1"), "kind": kind, "name": "a", "uid": "u", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "ownerReferences": [owner], **metadata},
        "spec": {},
    }


@pytest.mark.parametrize(
    ("document", "pattern", "count"),
    [
        (controller("Deployment", replicas=3), f"a-{LETTERS}+-{LETTERS}{{5}}", 3),
        (controller("Deployment"), f"a-{LETTERS}+-{LETTERS}{{5}}", 1),
        (controller("ReplicaSet", replicas=2), f"a-{LETTERS}{{5}}", 2),
        (controller("ReplicationController", replicas=2), f"a-{LETTERS}{{5}}", 2),
        (controller("StatefulSet", replicas=3), "a-[012]", 3),
        (controller("Job", parallelism=4, completions=3), f"a-{LETTERS}{{5}}", 3),
        (controller("Job", parallelism=2, completions=3), f"a-{LETTERS}{{5}}", 2),
        (controller("Job", parallelism=2), f"a-{LETTERS}{{5}}", 2),
        (controller("Job"), f"a-{LETTERS}{{5}}", 1),
        (controller("Job", parallelism=2, completions=5, completionMode="Indexed"), f"a-[01]-{LETTERS}{{5}}", 2),
        (
            {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "metadata": {"name": "a", "namespace": "team"},
                "spec": {"schedule": "@daily", "jobTemplate": {"spec": {"template": TEMPLATE, "parallelism": 2}}},
            },
            rf"a-\d{{8}}-{LETTERS}{{5}}",
            2,
        ),
    ],
)
def test_controllers_create_their_pods_with_kubernetes_names(
    document: dict[str, Any], pattern: str, count: int
) -> None:
    found = names(document)
    assert len(set(found)) == count
    assert all(re.fullmatch(pattern, name) for name in found), found
    assert {pod["metadata"]["namespace"] for pod in pods(document)} == {"team"}


def test_each_pod_has_its_own_claim_and_the_template_has_none() -> None:
    documents = made({**CLAIM_TEMPLATE, "metadata": {"name": "gpu", "namespace": "team"}}, controller("StatefulSet"))
    workload = read_workload(documents.documents, Features())
    assert [(pod.name, [claim.metadata.name for claim in pod.claims]) for pod in workload.pods] == [
        ("team/a-0", ["a-0-g"])
    ]


@pytest.mark.parametrize(
    "document",
    [
        controller("Deployment", replicas=0),
        controller("Job", suspend=True),
        controller("DaemonSet"),
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "a", "namespace": "team"},
            "template": TEMPLATE,
        },
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "a", "namespace": "team"},
            "spec": {"replicatedJobs": [{"template": {"spec": {"template": TEMPLATE}}}]},
        },
    ],
)
def test_a_claim_template_without_pods_is_not_a_claim(document: dict[str, Any]) -> None:
    documents = made({**CLAIM_TEMPLATE, "metadata": {"name": "gpu", "namespace": "team"}}, document)
    assert read_workload(documents.documents, Features()).pods == ()


def test_the_pods_of_a_deployment_belong_to_a_replica_set_that_selects_them() -> None:
    selector = {"matchLabels": {"app": "a"}}
    replica_set, pod = made(controller("Deployment", selector=selector)).documents[1:]
    owner = pod.document["metadata"]["ownerReferences"][0]
    assert (owner["apiVersion"], owner["kind"], owner["name"]) == ("apps/v1", "ReplicaSet", replica_set.name)
    labels = pod.document["metadata"]["labels"]
    assert labels["app"] == "a"
    assert (
        replica_set.document["spec"]["selector"]["matchLabels"]
        == labels
        == {"app": "a"} | {"pod-template-hash": replica_set.name.removeprefix("a-")}
    )


def test_a_daemon_set_has_a_pod_on_each_matching_node() -> None:
    template = {"metadata": {}, "spec": {**SPEC, "nodeSelector": {"gpu": "yes"}}}
    nodes = (
        node("plain"),
        node("gpu", gpu="yes"),
        node("cordoned", DeviceTaint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"), gpu="yes"),
        node("tainted", DeviceTaint(key="x", effect="NoSchedule"), gpu="yes"),
    )
    found = pods(controller("DaemonSet", template=template), nodes=nodes)
    terms = [
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        for pod in found
    ]
    assert [term[0]["matchFields"][0]["values"] for term in terms] == [["gpu"], ["cordoned"]]
    tolerated = [each["key"] for each in found[0]["spec"]["tolerations"]]
    assert "node.kubernetes.io/unschedulable" in tolerated


def test_the_volumes_of_a_stateful_set_are_those_of_its_pods() -> None:
    claims = [{"metadata": {"name": "data"}, "spec": {}}]
    found = pods(controller("StatefulSet", replicas=2, ordinals={"start": 5}, volumeClaimTemplates=claims))
    assert [(pod["metadata"]["name"], pod["spec"]["volumes"]) for pod in found] == [
        (name, [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-{name}"}}]) for name in ("a-5", "a-6")
    ]


@pytest.mark.parametrize(
    ("document", "there", "count"),
    [
        (controller("ReplicaSet", replicas=3, uid="u"), [owned("x", "ReplicaSet"), owned("y", "ReplicaSet")], 1),
        (controller("ReplicaSet", replicas=1, uid="u"), [owned("x", "ReplicaSet", deletionTimestamp="t")], 1),
        (
            controller("ReplicaSet", replicas=1, uid="u"),
            [owned("x", "ReplicaSet") | {"status": {"phase": "Failed"}}],
            1,
        ),
        (controller("StatefulSet", replicas=3, uid="u"), [owned("a-0", "StatefulSet"), owned("a-1", "StatefulSet")], 1),
        (controller("Job", parallelism=3, completions=9, uid="u"), [owned("x", "Job")], 2),
        (controller("Job", {"succeeded": 8}, parallelism=3, completions=9), [], 1),
        (controller("Job", {"succeeded": 1}, parallelism=3), [], 0),
        (controller("Job", {"conditions": [{"type": "Complete", "status": "True"}]}), [], 0),
        (controller("DaemonSet", uid="u"), [owned("x", "DaemonSet") | {"spec": {"nodeName": "n"}}], 1),
        (controller("Deployment", replicas=3, paused=True), [], 0),
        (controller("CronJob", uid="u"), [], 0),
        (controller("CronJob", suspend=True), [], 0),
    ],
)
def test_existing_pods_are_not_created_again(document: dict[str, Any], there: list[dict[str, Any]], count: int) -> None:
    assert len(names(document, *there, nodes=(node("n"), node("m")))) == count


def test_a_deployment_with_replica_sets_creates_no_pods_itself() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a", "uid": "u", "controller": True}
    replica_set = controller("ReplicaSet", replicas=2)
    replica_set["metadata"] = {"name": "a-xyz", "namespace": "team", "ownerReferences": [owner]}
    found = names(controller("Deployment", uid="u", replicas=5), replica_set)
    assert [name[:6] for name in found] == ["a-xyz-", "a-xyz-"]


def test_an_indexed_job_continues_with_the_remaining_indexes() -> None:
    status = {"succeeded": 3, "completedIndexes": "0,2-3"}
    job = controller("Job", status, parallelism=3, completions=7, completionMode="Indexed")
    active = owned("a-1-x", "Job", annotations={"batch.kubernetes.io/job-completion-index": "1"})
    assert [pod["metadata"]["annotations"] for pod in pods(job, active)] == [
        {"batch.kubernetes.io/job-completion-index": index} for index in ("4", "5")
    ]


def test_a_job_of_a_queue_creates_no_pods_if_queues_are_simulated() -> None:
    job = controller("Job", suspend=True)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    assert made(job, queued=True).notes == ()
    (note,) = made(job).notes
    assert "no pod: it is suspended until its queue admits it" in note


def test_a_note_says_which_pods_are_created() -> None:
    (note,) = made(controller("StatefulSet", replicas=5)).notes
    assert note == "f, document 1 (StatefulSet a) creates 5 pods: a-0, a-1, a-2 and 2 more"
    (note,) = made(controller("ReplicaSet", replicas=0)).notes
    assert note == "f, document 1 (ReplicaSet a) creates no pod: spec.replicas is 0"
    (note,) = made(controller("Job", parallelism=0)).notes
    assert note == "f, document 1 (Job a) creates no pod: spec.parallelism is 0"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (controller("Deployment", replicas=-1), "f, document 1 (Deployment a): spec.replicas: -1 must not be negative"),
        (controller("Deployment", replicas="x"), "spec.replicas: a whole number is expected"),
        (controller("Job", completionMode="Indexed"), "spec.completions: completions are required"),
        (controller("Deployment", replicas=10**9), "more than the 150,000"),
        (controller("Job", parallelism=10**9, completions=10**9, completionMode="Indexed"), "more than the 150,000"),
        (
            controller("Deployment", template={"spec": {"containers": 5}}),
            "spec.template.spec.containers: a list is expected",
        ),
        (
            controller("Deployment", template={"spec": {"resourceClaims": [{"name": "g"}]}}),
            "spec.template.spec.resourceClaims[0]: exactly one of",
        ),
        (controller("Deployment", template=[]), "spec.template: an object is expected"),
        (
            controller("Deployment", template={"metadata": {"labels": ["app"]}}),
            "spec.template.metadata.labels: an object is expected",
        ),
    ],
)
def test_what_the_api_server_would_refuse_is_refused_with_its_place(document: dict[str, Any], error: str) -> None:
    with pytest.raises(DocumentError) as caught:
        made(document)
    assert error in str(caught.value)
    (note,) = made(document, tolerant=True).notes
    assert error.partition(": ")[2] in note


def test_custom_resources_have_one_note_per_kind() -> None:
    documents = [
        {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "a"}},
        {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "b"}},
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": "a"},
            "spec": {"mpiReplicaSpecs": {"Worker": {"template": TEMPLATE}}},
        },
        {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "a"}},
    ]
    sources = [SourceDocument("f", index, document) for index, document in enumerate(documents)]
    why = "because custom resources are not simulated"
    assert ignored_documents(sources) == (
        f"NetworkAttachmentDefinition.k8s.cni.cncf.io: 2 objects are ignored, {why}",
        "MPIJob.kubeflow.org: 1 object is ignored, and no pods are made of its pod templates",
        f"PodGroup.scheduling.volcano.sh: 1 object is ignored, {why}",
    )
