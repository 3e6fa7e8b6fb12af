"""Who waits and why: by kube-scheduler's own words, by Events, and by the allocator for claims that have nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dranode.driver.core.api.resource import Node, ObjectMeta, ResourceClaim
from dranode.driver.picture.fleet import WaitingPod
from dranode.sim.allocator.allocate import Allocator
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.state import Allocated
from dranode.sim.cluster.place import Fleet
from dranode.sim.cluster.pods import PodPlacement, place_pods
from dranode.sim.cluster.workload import PodWithClaims
from dranode.sim.report.cluster import ClusterSeen, PodSeen

_MOST_WARNINGS: Final = 3
# Each pod that would find a place makes the next one be judged on a fleet that is made anew.
_MOST_JUDGED: Final = 200


def waiting(seen: ClusterSeen, features: Features) -> tuple[WaitingPod, ...]:
    """Return the pods that wait, and the claims without a pod that do, each judged by how the cluster stands now."""
    judge = _Judge(seen, features)
    return (*_pods(seen, judge), *_claims(seen, judge))


def _pods(seen: ClusterSeen, judge: _Judge) -> Iterator[WaitingPod]:
    for pod in seen.pods:
        claims = tuple(seen.claims[name] for name in pod.claims if name in seen.claims)
        missing = tuple(name for name in pod.claims if name not in seen.claims)
        has_claims = bool(pod.claims or pod.ungenerated)
        unallocated = tuple(claim for claim in claims if claim.status.allocation is None)
        if not pod.waits or not has_claims or not (unallocated or missing or pod.ungenerated or pod.phase):
            continue
        reasons = [f"kube-scheduler: {pod.scheduler}"] if pod.scheduler else []
        reasons += pod.warnings[:_MOST_WARNINGS]
        reasons += [f"there is no claim {name}" for name in missing]
        reasons += [f'the claim of its entry "{name}" is not generated yet' for name in pod.ungenerated]
        if unallocated and not missing and not pod.ungenerated:
            reasons += judge.sentences(pod, claims)
        if not reasons:
            namespace, _, name = pod.name.partition("/")
            reasons.append(f"nothing that was read says why; see kubectl describe pod -n {namespace} {name}")
        yield WaitingPod(pod.name, tuple(map(_name, unallocated)), tuple(dict.fromkeys(reasons)))


def _claims(seen: ClusterSeen, judge: _Judge) -> Iterator[WaitingPod]:
    used = {name for pod in seen.pods for name in pod.claims}
    for name, claim in seen.claims.items():
        if name not in used and claim.status.allocation is None and not claim.metadata.deletion_timestamp:
            nobody = "no pod that was read uses it, so the scheduler does not look at it"
            yield WaitingPod(name, (name,), (nobody, *judge.sentences(None, (claim,))))


class _Judge:
    """Asks the allocator about one pod after another, each on the cluster as it is."""

    def __init__(self, seen: ClusterSeen, features: Features) -> None:
        self._seen = seen
        self._features = features
        self._fleet: Fleet | None = None
        self._judged = 0
        self._specs = {pod.name: pod.pod.spec for pod in seen.pods}

    def sentences(self, pod: PodSeen | None, claims: Sequence[ResourceClaim]) -> list[str]:
        """Return what the allocator says of a pod's claims, or of a claim without a pod."""
        if not self._seen.slices or not self._seen.classes:
            return []  # a note says so
        self._judged += 1
        if self._judged > _MOST_JUDGED:
            return [f"the allocator was not asked: {_MOST_JUDGED} pods are before it"]
        name = pod.name if pod is not None else _name(claims[0])
        if self._fleet is None:
            self._fleet = self._made()
        for placement in place_pods(self._fleet, [PodWithClaims(name, tuple(claims))], self._specs):
            if placement.node is not None:
                self._fleet = None
            return list(_sentences(placement))
        return []

    def _made(self) -> Fleet:
        allocator = Allocator(self._seen.slices, self._seen.classes, self._features, new_share_id=lambda: "share")
        names = dict.fromkeys(each.spec.node_name for each in self._seen.slices if each.spec.node_name)
        nodes = self._seen.nodes or tuple(
            Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name})) for name in names
        )
        return Fleet(allocator, nodes, Allocated.of(self._seen.claims.values()))


def _sentences(placement: PodPlacement) -> Iterator[str]:
    if placement.node is not None:
        yield f"by its claims alone it would fit on node {placement.node} now"
        return
    yield from dict.fromkeys(outcome.error for outcome in (*placement.outcomes, *placement.shared) if outcome.error)
    for node, miss in placement.misses[1:]:
        yield f"{node}: {miss.sentence}"


def _name(claim: ResourceClaim) -> str:
    return f"{claim.metadata.namespace or 'default'}/{claim.metadata.name}"
