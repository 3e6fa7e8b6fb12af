"""Notes what a placement does not know: what was not seen is neither empty nor fine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dranode.api.errors import number_of
from dranode.sim.allocator.notes import notes_on_failure
from dranode.sim.fit.choice import PodChoice
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.dump import NEEDED, ClusterDump
from dranode.sim.scheduler.documents import PodAffinity, PodAffinityTerm, SchedulingPod

DEFAULT_SCHEDULER: Final = "default-scheduler"
# Below this kube-scheduler looks at all nodes.
_ALWAYS_ALL: Final = 100
_LEAST_PERCENT: Final = 5


def cluster_notes(dump: ClusterDump) -> Iterator[str]:
    """Return what the documents lack for whole answers, one sentence each."""
    known = {node.metadata.name for node in dump.nodes}
    lost = sorted({pod.spec.node_name for pod in dump.pods if pod.spec.node_name} - known)
    if lost:
        nodes = number_of(len(lost), "node")
        yield f"pods are bound to {nodes} that no document has, and take nothing here: {_some(lost)}"
    missing = [kind for kind in ("ResourceSlice", "DeviceClass") if kind not in dump.kinds]
    if missing and any(pod.spec.resource_claims for pod in dump.pods):
        yield f"no document is a {' or a '.join(missing)}, so no claim can be allocated"
    nominated = sorted(pod.key for pod in dump.waiting if pod.status.nominated_node_name)
    if nominated:
        yield f"kube-scheduler keeps room for {_some(nominated)}, which preempted others; here none is kept"


def pod_notes(dump: ClusterDump, demand: PodDemand, choice: PodChoice) -> Iterator[str]:
    """Return what one answer does not rest on, one sentence each."""
    pod = demand.pod
    if pod.spec.scheduler_name not in ("", DEFAULT_SCHEDULER):
        yield f"{pod.spec.scheduler_name} schedules it, and this is what kube-scheduler's default profile would do"
    volumes = [each.name for each in pod.spec.volumes if each.placed]
    if volumes:
        yield f"volumes are not looked at, which may keep it off nodes: {_some(volumes)}"
    if pod.spec.scheduling_group is not None:
        yield "it belongs to a PodGroup, whose pods kube-scheduler places together; here it is looked at by itself"
    if pod.spec.runtime_class_name and not pod.metadata.uid:
        yield (
            f"no RuntimeClass is read: what {pod.spec.runtime_class_name} adds to a pod when it is created (overhead, "
            "a node selector, tolerations) counts only as far as the document has it"
        )
    if pod.spec.priority_class_name and pod.spec.priority is None:
        yield f"no document is the PriorityClass {pod.spec.priority_class_name}; its priority counts as 0"
    yield from _preemption(dump, pod, choice)
    for outcome in choice.outcomes:
        yield from (f"claim {outcome.claim.metadata.name}: {note}" for note in outcome.notes)
    yield from notes_on_failure(choice.oddities)
    feasible = choice.best.feasible if choice.best is not None else 0
    if feasible > 1:
        yield from _images(dump, pod)
    yield from _unseen(dump, pod, feasible)
    most = nodes_to_find(len(dump.nodes))
    if feasible > most:
        yield (
            f"of {feasible} nodes that fit, kube-scheduler scores the first {most} that it comes to, "
            "which may leave out the best"
        )


def _preemption(dump: ClusterDump, pod: SchedulingPod, choice: PodChoice) -> Iterator[str]:
    least = dump.least_important
    helps = any(not group.hopeless for group in choice.groups)
    if helps and least is not None and least < pod.priority and pod.spec.preemption_policy != "Never":
        yield (
            "kube-scheduler may preempt pods that are less important to make room for it, which is not done here; "
            "--evict says which could go"
        )


def _images(dump: ClusterDump, pod: SchedulingPod) -> Iterator[str]:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    for image in dict.fromkeys(container.image for container in containers):
        last = image.rpartition("/")[2]
        count = dump.images.get(image if ":" in last or "@" in last else f"{image}:latest", 0)
        if 0 < count < len(dump.nodes):
            yield (
                f"{count} of {len(dump.nodes)} nodes have its image {image} already, and kube-scheduler may prefer "
                "them; here ImageLocality scores 0"
            )


def nodes_to_find(nodes: int) -> int:
    """After how many nodes that fit kube-scheduler stops looking (`percentageOfNodesToScore` of 0)."""
    if nodes < _ALWAYS_ALL:
        return nodes
    percent = max(50 - nodes // 125, _LEAST_PERCENT)
    return max(nodes * percent // 100, _ALWAYS_ALL)


def _unseen(dump: ClusterDump, pod: SchedulingPod, feasible: int) -> Iterator[str]:
    if "Namespace" not in dump.kinds and _selects_namespaces(pod):
        yield f"no document is a Namespace: {NEEDED['Namespace']} were not seen, but for their names"
    kinds = [kind for kind in ("Service", "ReplicaSet", "StatefulSet") if kind not in dump.kinds]
    if kinds and feasible > 1 and not pod.spec.topology_spread_constraints:
        yield f"no document is a {', a '.join(kinds)}: whether kube-scheduler spreads it by these was not seen"


def _selects_namespaces(pod: SchedulingPod) -> bool:
    affinity = pod.spec.affinity
    return any(
        term.namespace_selector is not None
        for part in (affinity.pod_affinity, affinity.pod_anti_affinity)
        for term in _terms(part)
    )


def _terms(affinity: PodAffinity) -> Iterator[PodAffinityTerm]:
    yield from affinity.required_during_scheduling_ignored_during_execution
    for weighted in affinity.preferred_during_scheduling_ignored_during_execution:
        yield weighted.pod_affinity_term


def _some(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
