"""Whether a pod fits, where, and why not."""

import pytest

from dranode.api.errors import DocumentError
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release
from dranode.sim.fit.choice import group_line
from dranode.sim.fit.questions import ClusterQuestions, PodAnswer, cluster_notes
from tests.fakes.clusters import (
    CLASS,
    Document,
    claim_document,
    node_document,
    pod_document,
    questions_of,
    slice_document,
    template_document,
)


def answers(*documents: Document) -> list[PodAnswer]:
    questions = questions_of(*documents)
    return list(questions.answers(questions.selected(())))


def lines(answer: PodAnswer) -> list[str]:
    return [group_line(group) for group in answer.choice.groups]


def test_nodes_with_the_same_refusal_share_a_line_with_the_nearest_miss() -> None:
    taint = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    nodes = [node_document("a", "4"), node_document("b", "6"), node_document("c", "64", taints=[taint])]
    (answer,) = answers(*nodes, pod_document("big", "7"))
    assert answer.placement.node is None
    assert answer.choice.message == "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu."
    assert lines(answer) == [
        "2 nodes: Insufficient cpu. Closest: b. The pod needs 7 CPUs, the node has 6 CPUs free (1 CPU too few)",
        "1 node: node(s) had untolerated taint(s): dedicated=gpu:NoSchedule",
    ]


def test_missing_devices_are_reported_with_their_nodes() -> None:
    documents = [node_document("a"), node_document("b"), slice_document("a"), slice_document("b"), CLASS]
    (answer,) = answers(*documents, template_document("t-two", 2), pod_document("p", claims=["t-two"]))
    assert answer.choice.message == "0/2 nodes are available: 2 cannot allocate all claims."
    assert len(lines(answer)) == 1
    assert "wants 2 devices" in lines(answer)[0] or "2 devices" in lines(answer)[0]


def test_each_pod_gets_what_earlier_pods_have_left() -> None:
    first, second = answers(node_document("a", "4"), pod_document("p", "3"), pod_document("q", "3"))
    assert (first.placement.node, second.placement.node) == ("a", None)


def test_requests_of_bound_pods_count_and_those_of_ended_pods_do_not() -> None:
    bound = pod_document("b", "3", node="a")
    ended = {**pod_document("e", "3", node="a"), "status": {"phase": "Succeeded"}}
    (answer,) = answers(node_document("a", "4"), bound, ended, pod_document("p", "2"))
    assert answer.placement.node is None
    (answer,) = answers(node_document("a", "4"), ended, pod_document("p", "2"))
    assert answer.placement.node == "a"


def test_the_higher_priority_comes_first_and_the_older_before_the_younger() -> None:
    old = pod_document("old", "1")
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    order = [
        answer.placement.pod
        for answer in answers(node_document("a"), pod_document("new", "1"), old, pod_document("vip", "1", priority=5))
    ]
    assert order == ["default/vip", "default/old", "default/new"]


def test_of_nodes_with_equal_scores_the_first_is_taken() -> None:
    (answer,) = answers(node_document("a"), node_document("b"), pod_document("p", "1"))
    assert answer.placement.node == "a"
    assert answer.placement.tied == ("a", "b")


def test_a_pod_goes_where_its_claim_is() -> None:
    held = claim_document("c", on=("b", "gpu-0"))
    documents = [node_document("a"), node_document("b"), slice_document("a"), slice_document("b"), CLASS, held]
    (answer,) = answers(*documents, pod_document("p", claims=["c"]))
    assert answer.placement.node == "b"
    assert [group.reasons for group, _ in answer.refusals(answer.placement)] == [
        ("resourceclaim not available on the node",)
    ]


def test_a_claim_generated_from_a_template_is_counted_once() -> None:
    made = claim_document("p-x7", on=("a", "gpu-0"), users=["bound"])
    bound = pod_document("bound", claims=["t-one"], node="a")
    bound["status"] = {"resourceClaimStatuses": [{"name": "t-one", "resourceClaimName": "p-x7"}]}
    documents = [node_document("a"), slice_document("a"), CLASS, template_document("t-one"), made, bound]
    (answer,) = answers(*documents, pod_document("p", claims=["t-one"]))
    assert answer.placement.node is None  # the only GPU is held once, not twice


def test_a_pod_that_names_its_node_gets_no_claims_and_a_note_says_so() -> None:
    documents = [node_document("a"), slice_document("a"), CLASS, claim_document("c")]
    questions = questions_of(*documents, pod_document("p", claims=["c"], node="a"))
    (answer,) = questions.answers(questions.selected(["p"]))
    assert answer.placement.node is None
    assert "sets spec.nodeName to a" in answer.placement.problem
    assert "default/c will never be allocated" in answer.placement.problem


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"schedulingGates": [{"name": "wait"}]}, "scheduling gates are removed: wait"),
        (
            {"resourceClaims": [{"name": "c", "resourceClaimName": "gone"}]},
            "pod default/p lacks ResourceClaim gone",
        ),
    ],
)
def test_what_keeps_the_scheduler_from_trying_is_reported(spec: Document, problem: str) -> None:
    (answer,) = answers(node_document("a"), pod_document("p", **spec))
    assert answer.placement.node is None
    assert problem in answer.placement.problem


def test_neither_a_pod_that_is_being_deleted_nor_the_257th_of_a_claim_is_placed() -> None:
    users = [f"elsewhere-{number}" for number in range(256)]
    documents = [slice_document("a"), CLASS, claim_document("c", on=("a", "gpu-0"), users=users)]
    leaving = pod_document("leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = answers(node_document("a"), *documents, leaving, pod_document("p", claims=["c"]))
    assert ["is being deleted" in answer.placement.problem for answer in found] == [True, False]
    assert "already has 256 pods" in found[1].placement.problem


@pytest.mark.parametrize(
    ("terms", "fits"),
    [
        ([("In", "1_000", "-x")], False),
        ([("NotIn", "-x")], False),
        ([("In", "-x"), ("In", "1_000")], True),
        ([("Gt", "5")], False),
        ([("Exists",)], True),
    ],
)
def test_a_stored_term_that_kube_scheduler_cannot_parse_matches_no_node(
    terms: list[tuple[str, ...]], *, fits: bool
) -> None:
    expressions = [{"key": "a", "operator": operator, "values": values} for operator, *values in terms]
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]} for expression in expressions]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    pod = pod_document("p", affinity=affinity)
    pod["metadata"]["uid"] = "stored"
    (answer,) = answers(node_document("a", a="1_000"), pod)
    assert (answer.placement.node is not None) == fits


@pytest.mark.parametrize(("name", "fits"), [("1.36.4", False), ("1.37.1", True)])
def test_a_namespace_that_anti_affinity_excludes_counts_before_1_37(name: str, *, fits: bool) -> None:
    excluded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["default"]}
    term = {"labelSelector": {}, "namespaceSelector": {"matchExpressions": [excluded]}, "topologyKey": "a"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    documents = [node_document("w", a="b"), pod_document("old", node="w"), pod_document("new", affinity=affinity)]
    questions = questions_of(*documents, features=Features.of(release(name)))
    (answer,) = questions.answers(questions.selected(["new"]))
    assert (answer.placement.node is not None) == fits


def test_the_allocatable_amounts_of_a_node_are_its_capacity_by_default() -> None:
    node = node_document("a", "4")
    node["status"] = {"capacity": node["status"]["allocatable"]}
    (answer,) = answers(node, pod_document("p", "4"))
    assert answer.placement.node == "a"


def test_volumes_and_other_schedulers_are_named_as_not_simulated() -> None:
    spec: Document = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}],
        "schedulerName": "mine",
        "schedulingGroup": {"podGroupName": "g"},
    }
    (answer,) = answers(node_document("a"), pod_document("p", **spec))
    assert any("volumes may rule out nodes" in note and "data" in note for note in answer.notes)
    assert any("its scheduler is mine" in note for note in answer.notes)
    assert any("of its PodGroup" in note for note in answer.notes)


@pytest.mark.parametrize(
    "source", ["gcePersistentDisk", "awsElasticBlockStore", "azureDisk", "cinder", "csi", "iscsi", "rbd", "ephemeral"]
)
def test_every_volume_that_kube_scheduler_checks_is_named(source: str) -> None:
    harmless = [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]
    (answer,) = answers(node_document("a"), pod_document("p", volumes=[{"name": "data", source: {}}, *harmless]))
    assert answer.notes == ("its volumes may rule out nodes, but are not checked: data",)


def preempts(*documents: Document) -> bool:
    answer = answers(*documents)[0]
    return any("kube-scheduler may preempt pods of lower priority" in note for note in answer.notes)


def test_a_note_says_that_kube_scheduler_may_preempt_if_that_helps() -> None:
    bound, taint = pod_document("b", "3", node="a"), {"key": "dedicated", "effect": "NoSchedule"}
    node, tainted = node_document("a", "4"), node_document("a", "4", taints=[taint])
    assert preempts(node, bound, pod_document("p", "2", priority=1))
    assert preempts(node, node_document("small", "1"), bound, pod_document("p", "2", priority=1))
    assert not preempts(node, bound, pod_document("p", "2"))
    assert not preempts(node, bound, pod_document("p", "5", priority=1))
    assert not preempts(tainted, bound, pod_document("p", "2", priority=1))
    assert not preempts(node, bound, pod_document("p", "1", priority=1))
    assert not preempts(node, bound, pod_document("p", "2", priority=1, preemptionPolicy="Never"))


@pytest.mark.parametrize(("kubernetes", "node"), [("1.34", "large"), ("1.35", "second"), ("1.37", "second")])
def test_a_node_with_an_earlier_alternative_is_preferred_from_1_35_on(kubernetes: str, node: str) -> None:
    claim = claim_document("c")
    alternatives = [{"name": f"n{count}", "deviceClassName": "gpu", "count": count} for count in (2, 1)]
    claim["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": alternatives}]
    nodes = [
        node_document("large", "64"),
        slice_document("large", 1),
        node_document("second"),
        slice_document("second", 2),
    ]
    pod = pod_document("p", "1", claims=["c"])
    questions = questions_of(*nodes, CLASS, claim, pod, features=Features.of(release(kubernetes)))
    assert [answer.choice.node for answer in questions.answers(questions.selected(()))] == [node]


def test_a_note_says_that_kube_scheduler_does_not_preempt_for_devices() -> None:
    held = [claim_document("held", on=("a", "gpu-0"), users=["b"]), pod_document("b", claims=["held"], node="a")]
    waits = [claim_document("mine"), pod_document("p", claims=["mine"], priority=1)]
    (answer,) = answers(node_document("a"), slice_document("a"), CLASS, *held, *waits)
    assert answer.notes == (
        "kube-scheduler preempts no pods for their devices (KEP-5690); --evict shows which could be evicted",
    )


def test_notes_on_an_allocation_are_shown_with_its_pod() -> None:
    slices = slice_document(
        "a", [{"name": "far", "bindingConditions": ["attached"], "bindingFailureConditions": ["lost"]}]
    )
    (answer,) = answers(node_document("a"), slices, CLASS, claim_document("c"), pod_document("p", claims=["c"]))
    assert answer.choice.node == "a"
    (note,) = answer.notes
    assert note.startswith("claim c: far has binding conditions: kube-scheduler binds the pod when the claim's status")
    assert "has attached for it" in note


def with_image(node: Document, *names: str) -> Document:
    return {**node, "status": {**node["status"], "images": [{"names": list(names), "sizeBytes": 10**9}]}}


@pytest.mark.parametrize(
    ("image", "noted"), [("r.example/x", True), ("r.example/x:latest", True), ("r.example/x:2", False), ("y", False)]
)
def test_images_that_some_nodes_have_are_named_as_not_scored(image: str, *, noted: bool) -> None:
    bare, full = node_document("a"), with_image(node_document("b"), "r.example/x:latest", "y:latest")
    volume = {"name": "v", "image": {"reference": image}}
    for spec in ({"containers": [{"name": "x", "image": image}]}, {"volumes": [volume]}):
        (answer,) = answers(with_image(bare, "y:latest"), full, pod_document("p", **spec))
        start = f"kube-scheduler may prefer the 1 of 2 nodes that have its image {image};"
        assert [note.startswith(start) for note in answer.notes if "ImageLocality" in note] == [True] * noted


def test_admission_is_named_as_not_simulated_for_new_pods() -> None:
    pod = pod_document("p", runtimeClassName="kata")
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}}
    for uid in ("", "1"):
        pod["metadata"]["uid"] = uid
        (answer,) = answers(node_document("a"), pod)
        assert ["RuntimeClass kata is not read" in note for note in answer.notes] == [True] * (not uid)
        notes = [*cluster_notes(questions_of(limits, node_document("a"), pod).dump)]
        assert ["LimitRange objects are ignored" in note for note in notes] == [True] * (not uid)


def selected(questions: ClusterQuestions, *names: str) -> None:
    questions.selected(names)


def test_an_empty_selection_is_an_error() -> None:
    with pytest.raises(DocumentError, match="no pod waits for a node"):
        selected(questions_of(node_document("a"), pod_document("b", node="a")))
    with pytest.raises(DocumentError, match="the documents have no pod nix"):
        selected(questions_of(node_document("a"), pod_document("p")), "nix")


def test_a_cluster_without_nodes_is_an_error() -> None:
    with pytest.raises(DocumentError, match="the documents have no Node"):
        questions_of(pod_document("p"))


def test_a_pod_that_names_no_claim_is_an_error() -> None:
    pod = pod_document("p")
    pod["spec"]["resourceClaims"] = [{"name": "c", "source": {"resourceClaimName": "c-1"}}]
    with pytest.raises(DocumentError, match=r"\(Pod p\): spec.resourceClaims\[0\]: exactly one of .*none is set"):
        questions_of(node_document("a"), pod)


@pytest.mark.parametrize(
    ("gates", "full"), [("GenericWorkload=true,DRAWorkloadResourceClaims=true", False), ("", True)]
)
def test_a_pod_group_counts_as_one_consumer_of_its_claim(gates: str, *, full: bool) -> None:
    entry = {"name": "c", "resourceClaimName": "c"}
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "crew", "namespace": "default"},
        "spec": {"resourceClaims": [entry]},
    }
    member: Document = {"schedulingGroup": {"podGroupName": "crew"}}
    members = [pod_document(f"m{number}", claims=["c"], node="a", **member) for number in range(256)]
    documents = [node_document("a", pods="500"), slice_document("a"), CLASS, claim_document("c", on=("a", "gpu-0"))]
    features = Features.parse(gates, release("1.37"))
    questions = questions_of(*documents, group, *members, pod_document("late", claims=["c"]), features=features)
    (answer,) = questions.answers(questions.selected(()))
    assert (answer.placement.node is None) is full
    assert ("already has 256 pods" in answer.placement.problem) is full
