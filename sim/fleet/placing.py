"""Pods placed on a fleet one after another, with what each of their claims got."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dranode.api.resource import ObjectMeta, ResourceClaim
from dranode.sim.allocator.allocate import unfit
from dranode.sim.allocator.outcome import Outcome, Reason
from dranode.sim.cluster.extended import special_claims
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.questions import ClusterQuestions, PodAnswer
from dranode.sim.fit.reasons import group_line
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.scale import normalized

SCORING: Final = (
    "kube-scheduler's DynamicResources: 100 times raw over the greatest raw, rounded down; total: the weighted sum of "
    "all plug-ins"
)


@dataclass(frozen=True, slots=True)
class NodeScore:
    """The score of a node for a pod.

    Attributes:
        node: the node; the pod fits there.
        raw: of the plug-in for devices, the sum over the prioritized lists of 8 less the index of the alternative.
        score: 100 times `raw` over the greatest `raw` of all nodes that fit, rounded down; 0 for all without a list.
        total: the weighted sum of all plug-ins; None where one node fits, which is not scored.
    """

    node: str
    raw: int
    score: int
    total: int | None


@dataclass(frozen=True, slots=True)
class PodResult:
    """The place of one pod, and the devices of its claims.

    Attributes:
        pod: `<namespace>/<name>`.
        node: the node, or None.
        outcomes: of the claims that were not allocated before, in the order of the pod.
        shared: of the claims that were; the pod goes where they are, or nowhere.
        scores: the nodes that fit, if they were asked for and the pod asks for devices.
        error: if it fits nowhere, kube-scheduler's sentence, or why kube-scheduler looks at no node; else empty.
        details: if it fits nowhere, what is behind that sentence, a line for each group of nodes.
    """

    pod: str
    node: str | None
    outcomes: tuple[Outcome, ...] = ()
    shared: tuple[Outcome, ...] = ()
    scores: tuple[NodeScore, ...] = ()
    error: str = ""
    details: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Return why the pod has no place, with what is behind it; empty if it has one."""
        return " ".join((self.error, *(f"{line}." for line in self.details)))


def place_pods(
    questions: ClusterQuestions,
    state: ClusterState,
    demands: Iterable[PodDemand],
    *,
    scores: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[PodResult, ...], ClusterState]:
    """Place pod by pod, each with what those before it have left, and return the cluster as the last one leaves it.

    A claim that an earlier pod shares is where that pod put it, and the later one follows. A pod that is bound, with
    all its claims, is not asked for.
    """
    results = []
    for demand in demands:
        if demand.pod.spec.node_name and not demand.missing and not _unallocated(state, demand):
            continue
        answer = questions.answer(state, demand)
        results.append(_result(answer, _scores(answer) if scores else ()))
        state = questions.after(answer)
        progress(demand.pod.key)
    return tuple(results), state


def _result(answer: PodAnswer, scores: tuple[NodeScore, ...]) -> PodResult:
    demand, choice, before = answer.demand, answer.choice, answer.before
    allocated = [(claim, before.allocations.get(ClaimKey.of(claim))) for claim in demand.claims]
    if choice.node is not None:
        note = f"it was allocated before; pod {choice.pod} shares it"
        shared = (Outcome(claim, choice.node, held, notes=(note,)) for claim, held in allocated if held is not None)
        return PodResult(choice.pod, choice.node, choice.outcomes, tuple(shared), scores)
    details = tuple(group_line(group) for group in choice.groups if group.detail)
    why = " ".join((choice.message, *(f"{line}." for line in details)))
    namespace = demand.pod.metadata.namespace
    lacking = [
        ResourceClaim(metadata=ObjectMeta(name=name.rpartition(" ")[2], namespace=namespace)) for name in demand.missing
    ]
    waiting = (*lacking, *_unallocated(before, demand), *special_claims(demand.pod, demand.extended))
    held = (claim for claim, allocation in allocated if allocation is not None)
    followed = f"it is allocated already, and pod {choice.pod}, which shares it, can go nowhere: {why}"
    return PodResult(
        choice.pod,
        None,
        unfit(waiting, why, choice.oddities),
        tuple(Outcome(claim, error=followed, reason=Reason.DOES_NOT_FIT) for claim in held),
        error=choice.message,
        details=details,
    )


def _unallocated(state: ClusterState, demand: PodDemand) -> Sequence[ResourceClaim]:
    return [claim for claim in demand.claims if ClaimKey.of(claim) not in state.allocations]


def _scores(answer: PodAnswer) -> tuple[NodeScore, ...]:
    placement = answer.placement
    scores = normalized(placement.devices)
    totals = {score.node: score.total for score in placement.scores}
    return tuple(NodeScore(node, raw, scores[node], totals.get(node)) for node, raw in placement.devices.items())
