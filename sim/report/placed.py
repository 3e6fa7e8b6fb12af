"""A cluster before and after pods are placed, as a picture: the same devices, and what `fit` would give of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from dranode.show.picture.fleet import FleetClaim, FleetPicture, WaitingPod
from dranode.show.picture.pictures import fleet_picture, shares_of
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.questions import PodAnswer
from dranode.sim.fit.reasons import group_line
from dranode.sim.fit.state import ClusterState
from dranode.sim.report.cluster import ClusterSeen
from dranode.sim.report.picture import ruled_taints

_MOST_FACTS: Final = 50


def placed_picture(
    seen: ClusterSeen, answers: Sequence[PodAnswer], end: ClusterState, features: Features, *, title: str
) -> FleetPicture:
    """Return a cluster before and after its pods are placed.

    Args:
        seen: the cluster with the pods that were asked for.
        answers: what became of them.
        end: the cluster as the last of them leaves it.
        features: the release and the gates.
        title: what the picture is called.
    """
    before = tuple(seen.fleet_claims())
    placed = [answer for answer in answers if answer.choice.node is not None]
    facts = [f"{answer.choice.pod} goes to {answer.choice.node}" for answer in placed]
    if len(facts) > _MOST_FACTS:
        facts[_MOST_FACTS:] = [f"and {len(facts) - _MOST_FACTS} pods more"]
    return fleet_picture(
        title,
        seen.slices,
        [("before", before), ("after", tuple(_after(before, placed, end)))],
        known=seen.node_remarks,
        waiting=tuple(_waiting(answers)),
        notes=seen.notes,
        facts=facts,
        unknown={
            moment: () if seen.claims_known else {each.spec.driver for each in seen.slices}
            for moment in ("before", "after")
        },
        ruled=lambda device: ruled_taints(seen, device, features),
    )


def _after(before: Sequence[FleetClaim], placed: Sequence[PodAnswer], end: ClusterState) -> Iterator[FleetClaim]:
    """Yield the claims as they are at the end: with what they got, and those that templates make."""
    pods: dict[str, list[str]] = defaultdict(list)
    for answer in placed:
        for key in answer.demand.entries.values():
            pods[str(key)].append(answer.choice.pod)
    known = {claim.name: claim for claim in before}
    names = dict.fromkeys((*known, *pods))
    allocations = {str(key): allocation for key, allocation in end.allocations.items()}
    for name in names:
        claim = known.get(name, FleetClaim(name))
        users = tuple(dict.fromkeys((*claim.pods, *pods.get(name, ()))))
        yield replace(claim, pods=users, shares=shares_of(allocations.get(name)))


def _waiting(answers: Sequence[PodAnswer]) -> Iterator[WaitingPod]:
    for answer in answers:
        if answer.choice.node is None:
            claims = tuple(str(ClaimKey.of(claim)) for claim in answer.demand.claims)
            yield WaitingPod(answer.choice.pod, claims, (answer.choice.message, *map(group_line, answer.choice.groups)))
