"""Places pods on a cluster one after another, with notes on what the answers do not cover."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from dranode.api.errors import DocumentError, number_of
from dranode.api.resource import ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.explain import notes_on_failure
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import contradictions
from dranode.sim.fit.choice import Placement, PodChoice, RefusalGroup, refusal_groups
from dranode.sim.fit.daemons import unknown_daemon_sets
from dranode.sim.fit.demand import PodDemand, demand_of
from dranode.sim.fit.dump import NEEDED, ClusterDump
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import PodAffinity, PodAffinityTerm, SchedulingPod
from dranode.sim.scheduler.scores import DEVICES

DEFAULT_SCHEDULER: Final = "default-scheduler"
# `minFeasibleNodesToFind` and `minFeasibleNodesPercentageToFind` of kube-scheduler: in smaller clusters it looks at all
# nodes, and never at a smaller share of them.
_ALWAYS_ALL: Final = 100
_LEAST_PERCENT: Final = 5
_VOLUMES_SCORED: Final = 36  # the minor release since which images of volumes count for ImageLocality
# Kinds by which admission changes or refuses new pods.
_ADMISSION: Final = frozenset({"LimitRange", "ResourceQuota"})
# Without these no claim can be allocated.
_PLURALS: Final = {"ResourceSlice": "resourceslices", "DeviceClass": "deviceclasses"}


def cluster_notes(dump: ClusterDump, *, adds: bool = False) -> Iterator[str]:
    """Yield what the documents lack for complete answers, one sentence each; `adds` is whether nodes are added."""
    node_names = {node.metadata.name for node in dump.nodes}
    missing_nodes = sorted({pod.spec.node_name for pod in dump.pods if pod.spec.node_name} - node_names)
    if missing_nodes:
        nodes = number_of(len(missing_nodes), "node")
        yield f"pods on {nodes} without a Node document are not counted: {_listed(missing_nodes)}"
    yield from contradictions(dump.slices)
    daemon_sets = sorted(map(str, unknown_daemon_sets(dump, dump.pods))) if adds else []
    if daemon_sets:
        yield (
            f"added nodes have no pods of DaemonSets without a document: {_listed(daemon_sets)}; add the output of "
            "kubectl get daemonsets -A -o yaml"
        )
    missing = [kind for kind in _PLURALS if kind not in dump.kinds]
    if missing and any(pod.spec.resource_claims for pod in dump.pods):
        plurals = ",".join(_PLURALS[kind] for kind in missing)
        yield (
            f"the documents have no {' and no '.join(missing)}, so no claim can be allocated; add the output of "
            f"kubectl get {plurals} -o yaml"
        )
    admission = sorted(_ADMISSION & dump.kinds)
    new = sorted(pod.key for pod in dump.waiting if not pod.metadata.uid)
    if admission and new:
        yield f"{' and '.join(admission)} objects are ignored; they may change or refuse {_listed(new)} when created"
    nominated = sorted(pod.key for pod in dump.waiting if pod.status.nominated_node_name)
    if nominated:
        yield f"kube-scheduler reserves room for {_listed(nominated)}, which preempted other pods; dranode does not"


def pod_notes(dump: ClusterDump, demand: PodDemand, choice: PodChoice, features: Features) -> Iterator[str]:
    """Yield what the answer for one pod does not cover, one sentence each."""
    pod = demand.pod
    if pod.spec.scheduler_name not in ("", DEFAULT_SCHEDULER):
        yield f"its scheduler is {pod.spec.scheduler_name}; this is what kube-scheduler's default profile would do"
    volumes = [volume.name for volume in pod.spec.volumes if volume.placed]
    if volumes:
        yield f"its volumes may rule out nodes, but are not checked: {_listed(volumes)}"
    if pod.spec.scheduling_group is not None:
        yield "kube-scheduler places the pods of its PodGroup together; dranode places it alone"
    if pod.spec.runtime_class_name and not pod.metadata.uid:
        yield (
            f"RuntimeClass {pod.spec.runtime_class_name} is not read: its overhead, node selector and tolerations "
            "count only if the pod's document already has them"
        )
    if pod.spec.priority_class_name and pod.spec.priority is None:
        yield f"PriorityClass {pod.spec.priority_class_name} is not in the documents, so the priority counts as 0"
    yield from _preemption(dump, pod, choice)
    for outcome in choice.outcomes:
        yield from (f"claim {outcome.claim.metadata.name}: {note}" for note in outcome.notes)
    yield from notes_on_failure(choice.oddities)
    feasible = choice.best.feasible if choice.best is not None else 0
    if feasible > 1:
        yield from _images(dump, pod, features.release.number[0])
    yield from _unknown_objects(dump, pod, feasible)
    most = nodes_to_find(len(dump.nodes))
    if feasible > most:
        yield (
            f"{feasible} nodes fit, but kube-scheduler scores only the first {most} that it finds and may miss the best"
        )


def _preemption(dump: ClusterDump, pod: SchedulingPod, choice: PodChoice) -> Iterator[str]:
    least = dump.least_important
    if least is None or least >= pod.priority or pod.spec.preemption_policy == "Never":
        return
    refused_by = {group.nearest.refusal.plugin for group in choice.groups if not group.hopeless}
    if refused_by - {DEVICES}:
        yield (
            "kube-scheduler may preempt pods of lower priority to make room for it; dranode does not, but --evict "
            "shows which pods could be evicted"
        )
    elif refused_by:
        yield "kube-scheduler preempts no pods for their devices (KEP-5690); --evict shows which could be evicted"


def _images(dump: ClusterDump, pod: SchedulingPod, minor: int) -> Iterator[str]:
    images = [container.image for container in (*pod.spec.init_containers, *pod.spec.containers)]
    if minor >= _VOLUMES_SCORED:
        images += [volume.image.reference for volume in pod.spec.volumes]
    for image in dict.fromkeys(images):
        last = image.rpartition("/")[2]
        count = dump.images.get(image if ":" in last or "@" in last else f"{image}:latest", 0)
        if 0 < count < len(dump.nodes):
            yield (
                f"kube-scheduler may prefer the {count} of {len(dump.nodes)} nodes that have its image {image}; "
                "dranode scores ImageLocality as 0"
            )


def nodes_to_find(nodes: int) -> int:
    """Return how many nodes that fit kube-scheduler looks for at most, if `percentageOfNodesToScore` is 0."""
    if nodes < _ALWAYS_ALL:
        return nodes
    percent = max(50 - nodes // 125, _LEAST_PERCENT)
    return max(nodes * percent // 100, _ALWAYS_ALL)


def _unknown_objects(dump: ClusterDump, pod: SchedulingPod, feasible: int) -> Iterator[str]:
    if "Namespace" not in dump.kinds and _selects_namespaces(pod):
        yield f"the documents have no Namespace, so {NEEDED['Namespace']} are unknown, except their names"
    kinds = [kind for kind in ("Service", "ReplicaSet", "StatefulSet") if kind not in dump.kinds]
    if kinds and feasible > 1 and not pod.spec.topology_spread_constraints:
        yield f"the documents have no {' or '.join(kinds)}, so whether kube-scheduler spreads its pods is unknown"


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


def _listed(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True)
class PodAnswer:
    """The answer about a pod.

    Attributes:
        demand: the pod and its claims.
        before: the cluster before the pod is placed.
        choice: its node, or why there is none.
        notes: what the answer does not cover.
    """

    demand: PodDemand
    before: ClusterState
    choice: PodChoice
    notes: tuple[str, ...]
    _scheduler: Scheduler = field(repr=False, compare=False)

    @property
    def placement(self) -> Placement:
        """The answer with all nodes; every access evaluates each node again."""
        placement = self._scheduler.place(self.before, self.demand)
        return replace(placement, outcomes=self.choice.outcomes)

    def refusals(self, placement: Placement) -> list[tuple[RefusalGroup, tuple[str, ...]]]:
        """Return the groups of nodes that refuse the pod in its placement, with their names, the nearest first."""
        cases = self._scheduler.cases(self.before, self.demand, placement.refusals)
        return [(group, tuple(case.node for case in members)) for group, members in refusal_groups(cases)]


@dataclass(frozen=True)
class ClusterQuestions:
    """A cluster on which pods can be placed.

    Attributes:
        dump: its documents.
        state: its current state.
        features: the release and the gates.
        new_share_id: generates the ids of shares.
    """

    dump: ClusterDump
    state: ClusterState
    features: Features
    new_share_id: Callable[[], str]

    @classmethod
    def of(cls, dump: ClusterDump, features: Features, new_share_id: Callable[[], str]) -> ClusterQuestions:
        """Prepare to answer as this release would.

        Raises:
            DocumentError: there is no node, or a selector of a pod is invalid.
        """
        if not dump.nodes:
            raise DocumentError("the documents have no Node, so no pod can fit")
        state = ClusterState.of(dump, features)
        return cls(dump, state, features, new_share_id)

    @cached_property
    def scheduler(self) -> Scheduler:
        """Return the scheduler for the slices of the cluster."""
        return self.with_slices(self.dump.slices)

    def with_slices(self, slices: Iterable[ResourceSlice]) -> Scheduler:
        """Return the scheduler for other slices."""
        dump = self.dump
        allocator = Allocator(
            slices,
            dump.classes,
            self.features,
            new_share_id=self.new_share_id,
            rules=dump.rules,
            claims=dump.device_claims,
        )
        return Scheduler(allocator)

    def selected(self, names: Sequence[str]) -> tuple[SchedulingPod, ...]:
        """Return the pods with these names (`<namespace>/<name>` or only `<name>`); without names, all waiting pods.

        Raises:
            DocumentError: a name fits no pod or several, or no pod waits.
        """
        if names:
            return tuple(_named_pod(name, self.dump.pods) for name in names)
        waiting = self.dump.waiting
        if not waiting:
            raise DocumentError("no pod waits for a node; add one, or name one with --pod")
        return waiting

    def answers(self, pods: Sequence[SchedulingPod]) -> Iterator[PodAnswer]:
        """Place the pods one after another, each on what the earlier ones left."""
        state = self.state
        for pod in pods:
            answer = self.answer(state, demand_of(pod, self.dump, self.features))
            yield answer
            state = self.after(answer)

    def after(self, answer: PodAnswer) -> ClusterState:
        """Return the cluster after the answer: with the pod on its node, if it fits."""
        choice = answer.choice
        if choice.node is None:
            return answer.before
        return self.scheduler.bind(answer.before, answer.demand, choice.node, choice.outcomes)

    def answer(self, state: ClusterState, demand: PodDemand) -> PodAnswer:
        """Place one pod."""
        choice = self.scheduler.choose(state, demand)
        return PodAnswer(
            demand, state, choice, tuple(pod_notes(self.dump, demand, choice, self.features)), self.scheduler
        )


def _named_pod(name: str, pods: Sequence[SchedulingPod]) -> SchedulingPod:
    matching = [pod for pod in pods if name in (pod.key, pod.metadata.name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise DocumentError(
            f"{len(matching)} pods are called {name}: {', '.join(pod.key for pod in matching)}; add the namespace"
        )
    raise DocumentError(f"the documents have no pod {name} that waits or runs")
