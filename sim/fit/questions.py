"""Questions to a cluster, answered one pod after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.resource import ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.explain import Miss
from dranode.sim.allocator.features import Features
from dranode.sim.fit.demand import PodDemand, demand_of
from dranode.sim.fit.dump import ClusterDump
from dranode.sim.fit.notes import pod_notes
from dranode.sim.fit.reasons import RefusalGroup, available, refusal_groups
from dranode.sim.fit.scheduler import Placement, Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod
from dranode.sim.scheduler.filters import CONTRADICTION
from dranode.sim.scheduler.scores import DEVICES


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """The answer about a pod.

    Attributes:
        demand: the pod.
        before: the cluster as the pod met it.
        placement: where it would go.
        message: if it fits nowhere, kube-scheduler's sentence, or why kube-scheduler looks at no node; else empty.
        groups: the nodes that refuse it.
        notes: what the answer does not rest on.
    """

    demand: PodDemand
    before: ClusterState
    placement: Placement
    message: str
    groups: tuple[RefusalGroup, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ClusterQuestions:
    """A cluster that answers.

    Attributes:
        dump: its documents.
        state: as it is now.
        features: the release and the gates.
        new_share_id: makes the ids of shares.
    """

    dump: ClusterDump
    state: ClusterState
    features: Features
    new_share_id: Callable[[], str]

    @classmethod
    def of(cls, dump: ClusterDump, features: Features, new_share_id: Callable[[], str]) -> ClusterQuestions:
        """Get ready to answer as a release does.

        Raises:
            DocumentError: there is no node, or a selector of a pod is none.
        """
        if not dump.nodes:
            raise DocumentError("no document is a Node, so there is nothing that a pod could fit on")
        state = ClusterState.of(dump, features)
        return cls(dump, state, features, new_share_id)

    @cached_property
    def scheduler(self) -> Scheduler:
        """Return what answers."""
        return self.with_slices(self.dump.slices)

    def with_slices(self, slices: Iterable[ResourceSlice]) -> Scheduler:
        """Return what would answer if these were the slices."""
        dump = self.dump
        allocator = Allocator(slices, dump.classes, self.features, new_share_id=self.new_share_id, rules=dump.rules)
        return Scheduler(allocator)

    def selected(self, names: Sequence[str]) -> tuple[SchedulingPod, ...]:
        """Return the pods of these names, `<namespace>/<name>` or a name alone; without names, all that wait.

        Raises:
            DocumentError: there is no such pod, there are several, or none waits.
        """
        if names:
            return tuple(_named_pod(name, self.dump.pods) for name in names)
        waiting = self.dump.waiting
        if not waiting:
            raise DocumentError("no pod waits for a node, so there is nothing to ask; add one, or name one with --pod")
        return waiting

    def answers(self, pods: Sequence[SchedulingPod]) -> Iterator[PodAnswer]:
        """Place pod by pod, each with what those before it have left."""
        state = self.state
        for pod in pods:
            answer = self.answer(state, demand_of(pod, self.dump, self.features))
            yield answer
            state = self.after(answer)

    def after(self, answer: PodAnswer) -> ClusterState:
        """Return the cluster as the pod leaves it: with the pod, if it fits."""
        placement = answer.placement
        if placement.node is None:
            return answer.before
        return self.scheduler.bind(answer.before, answer.demand, placement.node, placement.outcomes)

    def answer(self, state: ClusterState, demand: PodDemand) -> PodAnswer:
        """Place one pod."""
        placement = self.scheduler.place(state, demand)
        groups = refusal_groups(placement, self._misses(state, demand, placement))
        message = "" if placement.node is not None else _message(placement, len(state.nodes))
        return PodAnswer(demand, state, placement, message, groups, tuple(pod_notes(self.dump, demand, placement)))

    def _misses(self, state: ClusterState, demand: PodDemand, placement: Placement) -> dict[str, Miss]:
        """Return what the devices of each node lack that refuses the pod for them."""
        refused = [name for name, refusal in placement.refusals.items() if refusal.plugin == DEVICES]
        misses = {name: self.scheduler.miss(state, demand, name) for name in refused}
        return {name: miss for name, miss in misses.items() if miss is not None}


def _message(placement: Placement, nodes: int) -> str:
    """kube-scheduler's sentence where it has looked at nodes, else why it has not."""
    looked = placement.problem in ("", CONTRADICTION)
    return available(placement, nodes) if looked else placement.problem


def _named_pod(name: str, pods: Sequence[SchedulingPod]) -> SchedulingPod:
    found = [pod for pod in pods if name in (pod.key, pod.metadata.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise DocumentError(
            f"{len(found)} pods are called {name}: {', '.join(pod.key for pod in found)}; name one whole"
        )
    raise DocumentError(f"no document is a pod {name} that has not ended")
