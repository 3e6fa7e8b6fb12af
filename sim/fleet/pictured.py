"""A fleet after its pods were placed, as a picture: before and after, and who found no place."""

from __future__ import annotations

from collections.abc import Iterator

from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.show.picture.fleet import FleetClaim, FleetPicture, WaitingPod
from dranode.show.picture.pictures import fleet_picture, shares_of
from dranode.sim.fleet.report import FleetReport, add_units, unit_amount


def report_picture(report: FleetReport) -> FleetPicture:
    """Return the picture of a fleet."""
    before: dict[str, FleetClaim] = {}
    for pod in report.pods:
        for claim in pod.claims:
            if claim.status.allocation is not None:
                _enter(before, pod.name, claim, claim.status.allocation)
    after = dict(before)
    for result in report.results:
        for outcome in (*result.outcomes, *result.shared):
            _enter(after, result.pod, outcome.claim, outcome.allocation or outcome.claim.status.allocation)
    return fleet_picture(
        report.headline,
        report.slices,
        [("before", tuple(before.values())), ("after", tuple(after.values()))],
        known={node.name: () for node in report.nodes},
        waiting=tuple(_waiting(report)),
        facts=tuple(_facts(report)),
    )


def _enter(claims: dict[str, FleetClaim], pod: str, claim: ResourceClaim, allocation: AllocationResult | None) -> None:
    name = f"{claim.metadata.namespace}/{claim.metadata.name}"
    pods = (*(claims[name].pods if name in claims else ()), pod)
    claims[name] = FleetClaim(name, tuple(dict.fromkeys(pods)), shares_of(allocation))


def _waiting(report: FleetReport) -> Iterator[WaitingPod]:
    for result in report.results:
        if result.node is None:
            claims = (outcome.claim for outcome in (*result.outcomes, *result.shared))
            names = tuple(f"{claim.metadata.namespace}/{claim.metadata.name}" for claim in claims)
            yield WaitingPod(result.pod, names, (result.error, *result.details))


def _facts(report: FleetReport) -> Iterator[str]:
    for name, unit in add_units(report.nodes).items():
        if unit.stranded:
            yield f"{unit_amount(unit.stranded)} of {name} are stranded: free, but no claim of the run fits there"
    for request, counts in report.alternatives.items():
        taken = ", ".join(f"{name or 'none fits'} {count}" for name, count in counts.items())
        yield f"request {request}, alternatives taken: {taken}"
