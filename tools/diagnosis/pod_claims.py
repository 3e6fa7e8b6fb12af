"""The station of a pod's claims: whether each was made, exists and is the pod's own."""

from __future__ import annotations

from collections.abc import Iterator

from dranode.api.resource import ResourceClaim
from dranode.driver.claims.consumers import owning_group
from dranode.tools.diagnosis.causes import StopCause
from dranode.tools.diagnosis.live_objects import LivePod
from dranode.tools.diagnosis.pod_facts import PodClaim, PodFacts, Presence
from dranode.tools.diagnosis.reports import creation_report, reported
from dranode.tools.diagnosis.station import Station, stopped, unseen, went


def claim_stations(facts: PodFacts) -> Iterator[Station]:
    """Yield the station of the pod's claims, and those of them that could not be asked for."""
    needed = [claim for claim in facts.claims if claim.needed]
    for claim in needed:
        station = _claim(facts, claim)
        if station is not None:
            yield station
    known = [f"{claim.name}{f' ({claim.entry})' if claim.entry else ' (for extended resources)'}" for claim in needed]
    yield went("claims", ", ".join(known) if known else _none(facts))


def _none(facts: PodFacts) -> str:
    """Return what is to be said of a pod without claims."""
    extended = facts.scheduler.extended if facts.scheduler is not None else ()
    if extended:
        asked = ", ".join(f"{resource} (DeviceClass {device_class})" for resource, device_class in extended)
        return f"none yet: kube-scheduler makes one for the extended resources that the pod asks for, {asked}"
    return "it has none"


def _claim(facts: PodFacts, claim: PodClaim) -> Station | None:
    if not claim.name:
        return _unmade(facts, claim)
    if claim.presence is Presence.MISSING:
        group = facts.pod.spec.pod_group if facts.pod is not None else ""
        whose = f"the pod, or for its PodGroup {group}," if group else "the pod"
        anew = f"it was made for {whose} and has been deleted: delete the pod, so that it is made anew"
        return stopped(
            "claims",
            StopCause.CLAIM_MISSING,
            f"there is no claim {facts.namespace}/{claim.name}, which the pod names as {claim.entry}",
            anew if claim.template else "create it in that namespace, or correct resourceClaimName",
        )
    if claim.claim is None:
        return unseen("claims", f"the claim {claim.name} could not be asked for")
    metadata, pod = claim.claim.metadata, facts.pod
    if claim.template and pod is not None and not _made_for(claim.claim, pod):
        group = f", nor for its PodGroup {pod.spec.pod_group}" if pod.spec.pod_group else ""
        return stopped(
            "claims",
            StopCause.CLAIM_OF_ANOTHER_POD,
            f"the claim {claim.name} was not made for this pod{group}",
            "delete the claim of that name, or call the pod otherwise, and recreate the pod",
        )
    if metadata.deletion_timestamp is not None and not facts.started:
        return stopped(
            "claims",
            StopCause.CLAIM_BEING_DELETED,
            f"the claim {claim.name} is being deleted, and goes once no pod uses it",
            "wait until it is gone, and create it anew; the pod then goes on by itself",
        )
    return None


def _made_for(claim: ResourceClaim, pod: LivePod) -> bool:
    if pod.metadata.uid in {owner.uid for owner in claim.metadata.owner_references}:
        return True
    return bool(pod.spec.pod_group) and owning_group(claim) == pod.spec.pod_group


def _unmade(facts: PodFacts, claim: PodClaim) -> Station:
    report = creation_report(facts.events or (), facts.namespace, claim.entry)
    if claim.template_presence is Presence.MISSING:
        return stopped(
            "claims",
            StopCause.TEMPLATE_MISSING,
            f'there is no ResourceClaimTemplate "{claim.template}" in namespace {facts.namespace}, from which the '
            f'claim "{claim.entry}" would be made',
            "create the template in that namespace, or correct resourceClaimTemplateName; the pod goes on by itself",
        )
    # A template that is there now was created after the Event that misses it.
    if report is not None and report.cause is not StopCause.TEMPLATE_MISSING:
        return reported("claims", report)
    return stopped(
        "claims",
        StopCause.CLAIM_NOT_CREATED,
        f'the claim "{claim.entry}" has not been made from the template {claim.template} yet',
        "wait a moment; if it stays so, see that kube-controller-manager runs, which makes it",
    )
