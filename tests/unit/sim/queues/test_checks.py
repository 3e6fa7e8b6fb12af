"""What makes no sense is reported in one sentence with file, object and path."""

from typing import Any

import pytest

from dranode.api.errors import DocumentError
from dranode.sim.queues.setup import load
from tests.fakes.queues import (
    admitted,
    cluster_queue,
    cohort,
    document,
    flavor,
    group,
    local_queue,
    pod_set,
    sources,
    workload,
)

BASE = [flavor("f"), flavor("g"), cluster_queue("q", group(["cpu"], f=[4])), local_queue("door", "q")]
QUOTA = "spec.resourceGroups[0].flavors[0].resources[0]"


def _queue(quota: dict[str, Any], cohort_name: str = "c", **spec: Any) -> dict[str, Any]:
    return cluster_queue("bad", group(["cpu"], f=[{"nominalQuota": 4, **quota}]), cohort=cohort_name, **spec)


def _with_status(**assignment: Any) -> dict[str, Any]:
    made = admitted("w", "q", {"cpu": "f"}, {"cpu": 1})
    made["status"]["admission"]["podSetAssignments"][0].update(assignment)
    return made


def _mapping(*mappings: dict[str, Any]) -> dict[str, Any]:
    kind = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "metadata": {"name": ""}}
    return {**kind, "resources": {"deviceClassMappings": list(mappings)}}


# name: (further documents, path, what the sentence says)
REFUSED: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "a flavor that nothing defines": (
        [cluster_queue("bad", group(["cpu"], nope=[1]))],
        "spec.resourceGroups[0].flavors[0].name",
        'no document defines ResourceFlavor "nope"; add it',
    ),
    "an unknown flavor of a cohort": (
        [cohort("bad", group(["cpu"], nope=[1]))],
        "spec.resourceGroups[0].flavors[0].name",
        'no document defines ResourceFlavor "nope"; add it',
    ),
    "a flavor in two groups": (
        [cluster_queue("bad", group(["cpu"], f=[1]), group(["memory"], f=[1]))],
        "spec.resourceGroups[1].flavors[0].name",
        'flavor "f" is listed twice; list it once',
    ),
    "a resource in two groups": (
        [cluster_queue("bad", group(["cpu"], f=[1]), group(["cpu"], g=[1]))],
        "spec.resourceGroups[1].coveredResources",
        "cpu is covered twice; list it once",
    ),
    "quotas in another order than the resources": (
        [
            cluster_queue(
                "bad",
                {
                    "coveredResources": ["cpu", "memory"],
                    "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": 1}]}],
                },
            )
        ],
        "spec.resourceGroups[0].flavors[0].resources",
        "has cpu where coveredResources has cpu, memory",
    ),
    "a negative quota": ([_queue({"nominalQuota": -1})], f"{QUOTA}.nominalQuota", "-1 is below 0"),
    "a negative borrowing limit": ([_queue({"borrowingLimit": "-2"})], f"{QUOTA}.borrowingLimit", "-2 is below 0"),
    "a negative lending limit": ([_queue({"lendingLimit": -1})], f"{QUOTA}.lendingLimit", "-1 is below 0"),
    "a limit without a cohort": (
        [_queue({"borrowingLimit": 1}, cohort_name="")],
        f"{QUOTA}.borrowingLimit",
        "1 has no effect without cohortName",
    ),
    "more lent than owned": (
        [_queue({"lendingLimit": 5})],
        f"{QUOTA}.lendingLimit",
        "5 is more than the nominalQuota 4",
    ),
    "a preference that cannot come to bear": (
        [_queue({}, flavorFungibility={"preference": "PreemptionOverBorrowing"})],
        "spec.flavorFungibility.preference",
        "needs whenCanBorrow and whenCanPreempt to be TryNextFlavor",
    ),
    "borrowing while preempting without reclaim": (
        [_queue({}, preemption={"borrowWithinCohort": {"policy": "LowerPriority"}})],
        "spec.preemption.borrowWithinCohort",
        "needs a reclaimWithinCohort other than Never",
    ),
    "a policy that is none for borrowing": (
        [_queue({}, preemption={"borrowWithinCohort": {"policy": "Any"}})],
        "spec.preemption.borrowWithinCohort.policy",
        "'Any' is not LowerPriority or Never",
    ),
    "a policy that is none within a queue": (
        [_queue({}, preemption={"withinClusterQueue": "Any"})],
        "spec.preemption.withinClusterQueue",
        "'Any' is not LowerOrNewerEqualPriority or LowerPriority or Never",
    ),
    "a policy that is none for reclaim": (
        [_queue({}, preemption={"reclaimWithinCohort": "LowerOrNewerEqualPriority"})],
        "spec.preemption.reclaimWithinCohort",
        "'LowerOrNewerEqualPriority' is not Any or LowerPriority or Never",
    ),
    "a word that is no policy": (
        [_queue({}, preemption={"withinClusterQueue": "Sometimes"})],
        "spec.preemption.withinClusterQueue",
        "Sometimes",
    ),
    "a v1beta1 word in v1beta2": (
        [_queue({}, flavorFungibility={"whenCanBorrow": "Borrow"})],
        "spec.flavorFungibility.whenCanBorrow",
        "Borrow",
    ),
    "an unknown queueing strategy": (
        [_queue({}, queueingStrategy="Random")],
        "spec.queueingStrategy",
        "'Random' is not BestEffortFIFO or StrictFIFO",
    ),
    "v1beta1's field in v1beta2": (
        [document("ClusterQueue", "bad", {"cohort": "c"})],
        "spec.cohort",
        'there is no such field; did you mean "cohortName"',
    ),
    "v1beta2's field in v1beta1": (
        [document("ClusterQueue", "bad", {"cohortName": "c"}, "kueue.x-k8s.io/v1beta1")],
        "spec.cohortName",
        "v1beta1 calls this field cohort",
    ),
    "a version that is neither": (
        [document("ClusterQueue", "bad", {}, "kueue.x-k8s.io/v1alpha1")],
        "apiVersion",
        'supported as v1beta1 and v1beta2, not as "v1alpha1"',
    ),
    "a cohort that is its own parent": (
        [cohort("a", parent="a")],
        "spec.parentName",
        'cohorts form a cycle: "a" -> "a"; remove one parentName',
    ),
    "a cycle of cohorts": (
        [cohort("a", parent="b"), cohort("b", parent="c"), cohort("c", parent="a")],
        "spec.parentName",
        'cohorts form a cycle: "a" -> "b" -> "c" -> "a"',
    ),
    "a negative request": (
        [workload("w", "door", pod_set(cpu=-1))],
        "spec.podSets[0].template.spec.containers[0].resources.requests.cpu",
        "-1 is below 0",
    ),
    "a negative count": ([workload("w", "door", pod_set(count=-1))], "spec.podSets[0].count", "-1 is below 0"),
    "a least count above the count": (
        [workload("w", "door", pod_set(count=2, min_count=3))],
        "spec.podSets[0].minCount",
        "3 is not between 1 and the count 2",
    ),
    "no name for a pod set": (
        [workload("w", "door", pod_set("X_y"))],
        "spec.podSets[0].name",
        '"X_y" is not a name of at most 63 lower-case letters, digits and -',
    ),
    "no label": (
        [workload("w", "door", {"template": {"metadata": {"labels": {"a b": "c"}}}})],
        "spec.podSets[0].template.metadata.labels",
        '"a b: c" is not a label',
    ),
    "two pod sets of one name": (
        [workload("w", "door", pod_set("a"), pod_set("a"))],
        "spec.podSets[1].name",
        'pod set "a" is listed twice',
    ),
    "a priority class without its number": (
        [
            document(
                "Workload", "w", {"queueName": "door", "podSets": [pod_set()], "priorityClassRef": {"name": "high"}}
            )
        ],
        "spec.priority",
        'no document defines the WorkloadPriorityClass or PriorityClass "high"; add it, or set the number here',
    ),
    "an admitted workload in a queue that nothing defines": (
        [admitted("w", "nope", {"cpu": "f"}, {"cpu": 1})],
        "status.admission.clusterQueue",
        'no document defines ClusterQueue "nope"',
    ),
    "an admitted workload in a flavor that its queue lacks": (
        [admitted("w", "q", {"cpu": "g"}, {"cpu": 1})],
        "status.admission.podSetAssignments[0].flavors.cpu",
        'ClusterQueue "q" has no quota of cpu in flavor "g"',
    ),
    "an admitted pod set that the workload lacks": (
        [_with_status(name="other")],
        "status.admission.podSetAssignments[0].name",
        'the workload has no pod set "other"',
    ),
    "negative usage": (
        [_with_status(resourceUsage={"cpu": "-3"})],
        "status.admission.podSetAssignments[0].resourceUsage.cpu",
        "-3 is below 0",
    ),
    "quota by counters": (
        [_mapping({"name": "m", "deviceClassNames": ["d"], "sources": [{"counter": {}}]})],
        "resources.deviceClassMappings[0].sources",
        'counts "m" by sources',
    ),
    "a class that counts under two names": (
        [_mapping({"name": "m", "deviceClassNames": ["d"]}, {"name": "n", "deviceClassNames": ["d"]})],
        "resources.deviceClassMappings[1].deviceClassNames",
        'DeviceClass "d" already counts as "m"',
    ),
    "pods as a request": (
        [workload("w", "door", pod_set(pods=1))],
        "spec.podSets[0].template.spec.containers[0].resources.requests.pods",
        "Kueue counts the pods itself",
    ),
    "a misspelt field": (
        [_queue({"borowingLimit": 1})],
        f"{QUOTA}.borowingLimit",
        'there is no such field; did you mean "borrowingLimit"',
    ),
    "a field in the wrong place": (
        [{**flavor("bad"), "metadata": {"name": "bad", "nodeTaints": []}}],
        "metadata.nodeTaints",
        "there is no such field",
    ),
    "a misspelt setting": (
        [{**_mapping(), "resources": {"deviceClassMapping": []}}],
        "resources.deviceClassMapping",
        'did you mean "deviceClassMappings"',
    ),
    "an old name of a cohort's parent": ([document("Cohort", "bad", {"parent": "p"})], "spec.parent", "parentName"),
    "a group without flavors": (
        [document("ClusterQueue", "bad", {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": []}]})],
        "spec.resourceGroups[0].flavors",
        "the list needs at least 1 entry",
    ),
    "too many pod sets": (
        [workload("w", "door", *(pod_set(f"p{number}") for number in range(19)))],
        "spec.podSets",
        "the list may have at most 18 entries",
    ),
    "two pod sets with a least count": (
        [workload("w", "door", pod_set("a", 2, 1), pod_set("b", 2, 1))],
        "spec.podSets",
        "only one pod set may have a minCount",
    ),
    "an effect that no taint has": (
        [document("ResourceFlavor", "bad", {"nodeTaints": [{"key": "k", "effect": "noschedule"}]})],
        "spec.nodeTaints[0].effect",
        "'noschedule' is not NoExecute or NoSchedule or PreferNoSchedule",
    ),
    "an operator that no toleration has": (
        [document("ResourceFlavor", "bad", {"tolerations": [{"operator": "Exist"}]})],
        "spec.tolerations[0].operator",
        "'Exist' is not Equal or Exists",
    ),
    "an operator that no label selector has": (
        [_queue({}, namespaceSelector={"matchExpressions": [{"key": "team", "operator": "Is"}]})],
        "spec.namespaceSelector",
        'has no operator "Is"',
    ),
    "an unknown stop policy": ([_queue({}, stopPolicy="hold")], "spec.stopPolicy", "'hold' is not Hold"),
    "no name": ([document("Cohort", "", {})], "metadata.name", "a name is required"),
    "no name of a resource": (
        [_mapping({"name": "my gpus!", "deviceClassNames": ["d"]})],
        "resources.deviceClassMappings[0].name",
        '"my gpus!" is not the name of a resource',
    ),
    "two mappings of one name": (
        [_mapping(*({"name": "m", "deviceClassNames": [name]} for name in "de"))],
        "resources.deviceClassMappings[1].name",
        '"m" is listed twice',
    ),
    "fair sharing": (
        [{"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "fairSharing": {"enable": True}}],
        "fairSharing",
        "preemption by fair shares is not simulated",
    ),
}


@pytest.mark.parametrize(("documents", "path", "says"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_with_file_object_and_path(documents: list[dict[str, Any]], path: str, says: str) -> None:
    with pytest.raises(DocumentError) as refusal:
        load(sources([*BASE, *documents]))
    sentence = str(refusal.value)
    assert refusal.value.path == path
    assert sentence.startswith("queues.yaml, document ")
    assert f": {path}: " in sentence
    assert says in sentence
    assert "\n" not in sentence


def test_usage_above_a_lowered_quota_is_noted_for_each_queue() -> None:
    queues = [cluster_queue(name, group(["cpu"], f=[1]), cohort="c") for name in ("x", "y")]
    held = [admitted("w", "x", {"cpu": "f"}, {"cpu": "1500m"}), admitted("v", "y", {"cpu": "f"}, {"cpu": 1})]
    notes = load(sources([*BASE, *queues, *held])).notes
    assert len(notes) == 2
    assert all(f"{QUOTA}.nominalQuota: " in note and "500m above what the quotas allow" in note for note in notes)


def test_a_duplicate_object_is_refused_with_both_places() -> None:
    with pytest.raises(DocumentError, match=r"document 5 \(ClusterQueue q\) is also in queues.yaml, document 3"):
        load(sources([*BASE, cluster_queue("q", group(["cpu"], f=[1]))]))


def test_a_null_field_counts_as_missing() -> None:
    queue = cluster_queue("q", group(["cpu"], f=[{"nominalQuota": 4, "borrowingLimit": None}]), preemption=None)
    assert load(sources([flavor("f"), queue])).queues == load(sources([flavor("f"), BASE[2]])).queues


def test_documents_of_other_kinds_are_ignored() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}
    other = {"apiVersion": "example.com/v1", "kind": "ClusterQueue", "metadata": {"name": "x"}, "spec": 7}
    assert set(load(sources([*BASE, pod, other])).queues.cluster_queues) == {"q"}


def test_workloads_that_have_finished_or_are_not_active_do_not_count() -> None:
    finished = admitted("w", "q", {"cpu": "f"}, {"cpu": 9})
    finished["status"]["conditions"] = [{"type": "Finished", "status": "True"}]
    inactive = workload("v", "door", pod_set(cpu=1))
    inactive["spec"]["active"] = False
    setup = load(sources([*BASE, finished, inactive]))
    assert (setup.pending, setup.admitted) == ((), ())
