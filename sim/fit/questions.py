"""Questions to a cluster, answered one pod after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dranode.api.errors import DocumentError
from dranode.api.resource import ResourceSlice
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.fit.choice import PodChoice
from dranode.sim.fit.demand import PodDemand, demand_of
from dranode.sim.fit.dump import ClusterDump
from dranode.sim.fit.notes import pod_notes
from dranode.sim.fit.placement import Placement
from dranode.sim.fit.reasons import RefusalGroup, refusal_groups
from dranode.sim.fit.scheduler import Scheduler
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.documents import SchedulingPod


@dataclass(frozen=True)
class PodAnswer:
    """The answer about a pod.

    Attributes:
        demand: the pod.
        before: the cluster as the pod met it.
        choice: where it would go.
        notes: what the answer does not rest on.
    """

    demand: PodDemand
    before: ClusterState
    choice: PodChoice
    notes: tuple[str, ...]
    _scheduler: Scheduler = field(repr=False, compare=False)

    @property
    def placement(self) -> Placement:
        """The same with all nodes, which are looked at for it one by one, each time."""
        placement = self._scheduler.place(self.before, self.demand)
        return replace(placement, outcomes=self.choice.outcomes)

    def refusals(self, placement: Placement) -> list[tuple[RefusalGroup, tuple[str, ...]]]:
        """The nodes that refuse the pod in its placement, in groups with their names, the nearest first."""
        cases = self._scheduler.cases(self.before, self.demand, placement.refusals)
        return [(group, tuple(case.node for case in members)) for group, members in refusal_groups(cases)]


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
        allocator = Allocator(
            slices,
            dump.classes,
            self.features,
            new_share_id=self.new_share_id,
            rules=dump.rules,
            claims=dump.asked,
        )
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
        choice = answer.choice
        if choice.node is None:
            return answer.before
        return self.scheduler.bind(answer.before, answer.demand, choice.node, choice.outcomes)

    def answer(self, state: ClusterState, demand: PodDemand) -> PodAnswer:
        """Place one pod."""
        choice = self.scheduler.choose(state, demand)
        return PodAnswer(demand, state, choice, tuple(pod_notes(self.dump, demand, choice)), self.scheduler)


def _named_pod(name: str, pods: Sequence[SchedulingPod]) -> SchedulingPod:
    found = [pod for pod in pods if name in (pod.key, pod.metadata.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise DocumentError(
            f"{len(found)} pods are called {name}: {', '.join(pod.key for pod in found)}; name one whole"
        )
    raise DocumentError(f"no document is a pod {name} that has not ended")
