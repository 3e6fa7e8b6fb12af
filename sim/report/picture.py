"""Pictures of a cluster: now, compared with an earlier dump, or before and after placing pods.

Why pods wait is explained with kube-scheduler's own message, with Events, and with the simulated scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from dranode.api.errors import DocumentError
from dranode.show.picture.fleet import DeviceKey, FleetClaim, FleetPicture, WaitingPod
from dranode.show.picture.pictures import fleet_picture, shares_of
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.taint_rules import rules_on
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.choice import group_line
from dranode.sim.fit.demand import demand_of
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.questions import ClusterQuestions, PodAnswer
from dranode.sim.fit.state import ClusterState
from dranode.sim.report.cluster import ClusterSeen, PodSeen

_MOST_WARNINGS: Final = 3
_MOST_GROUPS: Final = 6
# A page explains so many waiting pods; for more, `fit` has the answers.
_MOST_EXPLAINED: Final = 200


def waiting(seen: ClusterSeen, features: Features) -> tuple[tuple[WaitingPod, ...], tuple[str, ...]]:
    """Return waiting pods and unused waiting claims, and a sentence for each pod that could not be explained.

    Each pod is placed on the current cluster, as if it were next.
    """
    explainer = _Explainer(seen, features)
    waiting_pods = (*_pods(seen, explainer), *_claims(seen))
    return waiting_pods, tuple(explainer.notes)


def _pods(seen: ClusterSeen, explainer: _Explainer) -> Iterator[WaitingPod]:
    for pod in seen.pods:
        missing = tuple(name for name in pod.claims if name not in seen.claims)
        unallocated = tuple(
            name for name in pod.claims if name in seen.claims and seen.claims[name].status.allocation is None
        )
        lacks_something = unallocated or missing or pod.ungenerated
        if not pod.waits or not (pod.claims or pod.ungenerated) or not (lacks_something or pod.pod.status.phase):
            continue
        reasons = [f"kube-scheduler: {pod.scheduler}"] if pod.scheduler else []
        reasons += pod.warnings[:_MOST_WARNINGS]
        reasons += [f"claim {name} does not exist" for name in missing]
        reasons += [f'the claim for its entry "{name}" does not exist yet' for name in pod.ungenerated]
        if not (missing or pod.ungenerated or pod.pod.spec.node_name):
            reasons += explainer.sentences(pod)
        if not reasons:
            namespace, _, name = pod.name.partition("/")
            reasons.append(f"the reason is unknown; see kubectl describe pod -n {namespace} {name}")
        yield WaitingPod(pod.name, unallocated, tuple(dict.fromkeys(reasons)))


def _claims(seen: ClusterSeen) -> Iterator[WaitingPod]:
    used = {name for pod in seen.pods for name in pod.claims}
    for name, claim in seen.claims.items():
        if name not in used and claim.status.allocation is None and not claim.metadata.deletion_timestamp:
            yield WaitingPod(name, (name,), ("no known pod uses it, so kube-scheduler does not allocate it",))


class _Explainer:
    """Explains with the simulated scheduler why pods wait; pods that it cannot explain are noted."""

    def __init__(self, seen: ClusterSeen, features: Features) -> None:
        self._seen = seen
        self._features = features
        self._questions: ClusterQuestions | None = None
        self._explained = 0
        self.notes: list[str] = []

    def sentences(self, pod: PodSeen) -> list[str]:
        """Return why the simulated scheduler would not place a pod."""
        if not self._seen.slices or not self._seen.classes or not self._seen.nodes:
            return []  # the notes of the cluster say so
        self._explained += 1
        if self._explained > _MOST_EXPLAINED:
            return [f"not checked, because {_MOST_EXPLAINED} pods come first; see dranode fit --pod {pod.name}"]
        try:
            questions = self._cluster_questions()
            waiting_pod = next(item for item in questions.dump.pods if item.key == pod.name)
            answer = questions.answer(questions.state, demand_of(waiting_pod, questions.dump, questions.features))
        except DocumentError as error:
            self.notes.append(f"cannot tell why {pod.name} waits: {error}")
            return []
        return list(_sentences(answer))

    def _cluster_questions(self) -> ClusterQuestions:
        if self._questions is None:
            dump = read_dump(self._seen.sources)
            self._questions = ClusterQuestions.of(dump, self._features, lambda: "share")
        return self._questions


def _sentences(answer: PodAnswer) -> Iterator[str]:
    if answer.choice.node is not None:
        yield f"it fits on node {answer.choice.node} now"
    else:
        yield f"the simulated scheduler says: {answer.choice.message}"
    for group in answer.choice.groups[:_MOST_GROUPS] if answer.choice.node is None else ():
        yield group_line(group)
    if answer.choice.node is None and len(answer.choice.groups) > _MOST_GROUPS:
        yield f"and {len(answer.choice.groups) - _MOST_GROUPS} more groups of nodes; dranode fit shows all"
    yield from answer.notes


def cluster_picture(
    current: ClusterSeen, before: ClusterSeen | None, features: Features, *, title: str, moment: str = ""
) -> FleetPicture:
    """Return a picture of a cluster, next to an earlier one if `before` is not None."""
    known: dict[str, Sequence[str]] = dict(current.node_remarks)
    moments = [("now", tuple(current.fleet_claims()))]
    slices = current.slices
    if before is not None:
        moments = [("before", tuple(before.fleet_claims())), ("after", moments[0][1])]
        pools = {(slice_.spec.driver, slice_.spec.pool.name) for slice_ in slices}
        gone = [slice_ for slice_ in before.slices if (slice_.spec.driver, slice_.spec.pool.name) not in pools]
        slices = (*slices, *gone)
        for node, pool in dict.fromkeys((slice_.spec.node_name or "", slice_.spec.pool.name) for slice_ in gone):
            known[node] = (*known.get(node, ()), f"gone: pool {pool} is only in the earlier dump")
    waiting_pods, unsaid = waiting(current, features)
    return fleet_picture(
        title,
        slices,
        moments,
        known=known,
        waiting=waiting_pods,
        notes=(*current.notes, *unsaid),
        unknown={
            name: {slice_.spec.driver for slice_ in slices} if seen is not None and not seen.claims_known else ()
            for name, seen in (("now", current), ("before", before), ("after", current))
        },
        taken=moment,
        ruled=lambda device: ruled_taints(current, device, features),
    )


def ruled_taints(seen: ClusterSeen, device: DeviceKey, features: Features) -> tuple[str, ...]:
    """Return the taints of DeviceTaintRules on a device, each with its rule."""
    if not features.device_taint_rules:
        return ()
    rules = rules_on(seen.rules, *device, features)
    return tuple(f"{rule.spec.taint.text} (rule {rule.metadata.name})" for rule in rules)


_MOST_FACTS: Final = 50


def placed_picture(
    seen: ClusterSeen, answers: Sequence[PodAnswer], end: ClusterState, features: Features, *, title: str
) -> FleetPicture:
    """Return a picture of a cluster before and after placing pods.

    Args:
        seen: the cluster with the pods to place.
        answers: the answers about these pods.
        end: the cluster after the last of them.
        features: the release and the gates.
        title: the title of the picture.
    """
    before = tuple(seen.fleet_claims())
    placed = [answer for answer in answers if answer.choice.node is not None]
    facts = [f"{answer.choice.pod} goes to {answer.choice.node}" for answer in placed]
    if len(facts) > _MOST_FACTS:
        facts[_MOST_FACTS:] = [f"and {len(facts) - _MOST_FACTS} more pods"]
    return fleet_picture(
        title,
        seen.slices,
        [("before", before), ("after", tuple(_after(before, placed, end)))],
        known=seen.node_remarks,
        waiting=tuple(_waiting(answers)),
        notes=seen.notes,
        facts=facts,
        unknown={
            moment: () if seen.claims_known else {slice_.spec.driver for slice_ in seen.slices}
            for moment in ("before", "after")
        },
        ruled=lambda device: ruled_taints(seen, device, features),
    )


def _after(before: Sequence[FleetClaim], placed: Sequence[PodAnswer], end: ClusterState) -> Iterator[FleetClaim]:
    """Yield the claims at the end, with their devices and including those from templates."""
    pods: dict[str, list[str]] = defaultdict(list)
    for answer in placed:
        for key in answer.demand.entries.values():
            pods[str(key)].append(answer.choice.pod)
    claims = {claim.name: claim for claim in before}
    names = dict.fromkeys((*claims, *pods))
    allocations = {str(key): allocation for key, allocation in end.allocations.items()}
    for name in names:
        claim = claims.get(name, FleetClaim(name))
        users = tuple(dict.fromkeys((*claim.pods, *pods.get(name, ()))))
        yield replace(claim, pods=users, shares=shares_of(allocations.get(name)))


def _waiting(answers: Sequence[PodAnswer]) -> Iterator[WaitingPod]:
    for answer in answers:
        if answer.choice.node is None:
            claims = tuple(str(ClaimKey.of(claim)) for claim in answer.demand.claims)
            yield WaitingPod(answer.choice.pod, claims, (answer.choice.message, *map(group_line, answer.choice.groups)))
