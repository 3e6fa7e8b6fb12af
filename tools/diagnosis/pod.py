"""Follows one pod from `kubectl apply` to containers that run, and says where it stopped.

The path of a pod: the pod itself, its claims, kube-scheduler, its node, Prepare, its containers, the health of its
devices. Each step is judged on its own facts, and the steps after the first stop are not reported. An Event
counts as long as the pod is still where the Event was written: one that has passed says nothing of now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from dranode.api.resource import ResourceClaim
from dranode.driver.claims.grant import drivers_of
from dranode.driver.claims.uses import owning_group
from dranode.tools.diagnosis.live_objects import LivePod, Lookup, PodClaim, PodFacts
from dranode.tools.diagnosis.pod_on_node import (
    container_steps,
    device_steps,
    node_steps,
    prepare_steps,
)
from dranode.tools.diagnosis.pod_scheduling import scheduling_steps
from dranode.tools.diagnosis.reports import container_report, creation_report, ending_report, reported
from dranode.tools.diagnosis.steps import Outcome, Step, StopCause, Trace, passed, stopped, unseen

_EVICTIONS: Final = {
    "DeletionByDeviceTaintManager": StopCause.DEVICE_TAINT_EVICTION,
    "DeletionByTaintManager": StopCause.POD_EVICTED,
    "EvictionByEvictionAPI": StopCause.POD_EVICTED,
    "PreemptionByScheduler": StopCause.POD_EVICTED,
    "TerminationByKubelet": StopCause.POD_EVICTED,
}


def follow_pod(facts: PodFacts) -> Trace:
    """Return the pod's path up to the step where it stopped."""
    return Trace(f"pod {facts.name}", tuple(_steps(facts)))


def _steps(facts: PodFacts) -> Iterator[Step]:
    for check in _STEPS:
        for step in check(facts):
            yield step
            if step.outcome is Outcome.STOPPED:
                return
        if facts.pod is None or (check is _itself and facts.pod.status.phase in ("Succeeded", "Failed")):
            return


def _itself(facts: PodFacts) -> Iterator[Step]:
    if facts.lookup is Lookup.UNASKED:
        yield unseen("pod", "the pod could not be read, so only its claims are checked")
        return
    if facts.pod is None:
        yield stopped(
            "pod",
            StopCause.POD_MISSING,
            f"there is no pod {facts.name}",
            "check the namespace and the name; if a Deployment or a Job should have created it, kubectl describe "
            "that: a quota or an admission policy may refuse its pods",
        )
        return
    ended = _ended(facts, facts.pod)
    if ended is not None:
        yield ended
        return
    where = f" on node {facts.node_name}" if facts.node_name else ", on no node"
    yield passed("pod", f"{facts.pod.status.phase or 'Pending'}{where}")


def _ended(facts: PodFacts, pod: LivePod) -> Step | None:
    """Return the step of a pod that has ended or is about to."""
    disruption = pod.status.condition("DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        return _disrupted(disruption.reason, disruption.message)
    match pod.status.phase:
        case "Succeeded":
            return passed("pod", "it has completed successfully")
        case "Failed":
            return _failed(facts, pod)
    return _terminating(facts) if pod.metadata.deletion_timestamp is not None else None


def _disrupted(reason: str, message: str) -> Step:
    cause = _EVICTIONS.get(reason, StopCause.POD_EVICTED)
    fix = (
        "check why a device of its claims is tainted (kubectl dranode devices), and fix it; its controller creates "
        "another pod, which gets other devices"
        if cause is StopCause.DEVICE_TAINT_EVICTION
        else "its controller creates another pod; check why its node or kube-scheduler removed it"
    )
    return stopped("pod", cause, f"it was evicted ({reason}): {message.rstrip('.') or 'no reason is given'}", fix)


def _failed(facts: PodFacts, pod: LivePod) -> Step:
    status = pod.status
    said = status.message.rstrip(".") or "no reason is given"
    if status.reason == "Evicted":
        return stopped("pod", StopCause.POD_EVICTED, f"kubelet evicted it: {said}", "free what its node ran short of")
    containers = [report for one in facts.containers if (report := container_report(one, pod.spec.node_name))]
    if status.reason and not containers:
        return stopped(
            "pod",
            StopCause.POD_REJECTED,
            f"kubelet on {pod.spec.node_name} has rejected it ({status.reason}): {said}",
            "leave spec.nodeName out, or free what the node lacks; a rejected pod is not tried again: recreate it",
        )
    what = containers[0].what if containers else f"it has failed: {said}"
    return stopped("pod", StopCause.POD_ENDED, what, "read its logs (kubectl logs); its claims were prepared")


def _terminating(facts: PodFacts) -> Step:
    running = [one.name for one in facts.containers if one.state.running is not None]
    drivers = sorted(
        {driver for one in facts.claims if one.claim for driver in drivers_of(one.claim.status.allocation)}
    )
    report = ending_report(facts.events or (), facts.node_name) if running else None
    if report is not None:
        return reported("pod", report)
    if running:
        return passed("pod", f"it is being deleted, and its container {', '.join(running)} still runs")
    away = [driver for driver in drivers if facts.published is not None and driver not in facts.published]
    if away and facts.node_name:
        return stopped(
            "pod",
            StopCause.UNPREPARE_WAITS,
            f"it is being deleted, but kubelet on {facts.node_name} cannot have its claims unprepared, because "
            f"{', '.join(away)} does not run there",
            "start the driver on that node again, in any version: then the pod ends by itself",
        )
    return unseen(
        "pod",
        "it is being deleted; only kubelet's log says whether it waits for a driver to unprepare its claims",
        f"journalctl -u kubelet | grep -i unprepare, on {facts.node_name}" if facts.node_name else "",
    )


def claim_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield the step of the pod's claims, and those of them that could not be asked for."""
    needed = [claim for claim in facts.claims if claim.needed]
    for claim in needed:
        step = _claim(facts, claim)
        if step is not None:
            yield step
    known = [f"{claim.name}{f' ({claim.entry})' if claim.entry else ' (for extended resources)'}" for claim in needed]
    yield passed("claims", ", ".join(known) if known else _none(facts))


def _none(facts: PodFacts) -> str:
    """Return what is to be said of a pod without claims."""
    extended = facts.scheduler.extended if facts.scheduler is not None else ()
    if extended:
        asked = ", ".join(f"{resource} (DeviceClass {device_class})" for resource, device_class in extended)
        return f"none yet: kube-scheduler creates one for the extended resources that the pod requests, {asked}"
    return "it has none"


def _claim(facts: PodFacts, claim: PodClaim) -> Step | None:
    if not claim.name:
        return _unmade(facts, claim)
    if claim.lookup is Lookup.MISSING:
        group = facts.pod.spec.pod_group if facts.pod is not None else ""
        whose = f"the pod, or for its PodGroup {group}," if group else "the pod"
        anew = f"it was created for {whose} and then deleted: delete the pod, so that it is created again"
        return stopped(
            "claims",
            StopCause.CLAIM_MISSING,
            f"there is no claim {facts.namespace}/{claim.name}, which the pod names as {claim.entry}",
            anew if claim.template else "create it in that namespace, or correct resourceClaimName",
        )
    if claim.claim is None:
        return unseen("claims", f"the claim {claim.name} could not be read")
    metadata, pod = claim.claim.metadata, facts.pod
    if claim.template and pod is not None and not _made_for(claim.claim, pod):
        group = f", nor for its PodGroup {pod.spec.pod_group}" if pod.spec.pod_group else ""
        return stopped(
            "claims",
            StopCause.CLAIM_OF_ANOTHER_POD,
            f"the claim {claim.name} was not created for this pod{group}",
            "delete the claim of that name, or rename the pod, and recreate it",
        )
    if metadata.deletion_timestamp is not None and not facts.started:
        return stopped(
            "claims",
            StopCause.CLAIM_BEING_DELETED,
            f"the claim {claim.name} is being deleted, and disappears when no pod uses it any more",
            "wait until it is gone, and create it again; the pod then continues by itself",
        )
    return None


def _made_for(claim: ResourceClaim, pod: LivePod) -> bool:
    if pod.metadata.uid in {owner.uid for owner in claim.metadata.owner_references}:
        return True
    return bool(pod.spec.pod_group) and owning_group(claim) == pod.spec.pod_group


def _unmade(facts: PodFacts, claim: PodClaim) -> Step:
    report = creation_report(facts.events or (), facts.namespace, claim.entry)
    if claim.template_lookup is Lookup.MISSING:
        return stopped(
            "claims",
            StopCause.TEMPLATE_MISSING,
            f'there is no ResourceClaimTemplate "{claim.template}" in namespace {facts.namespace}, from which the '
            f'claim "{claim.entry}" would be created',
            "create the template in that namespace, or correct resourceClaimTemplateName; the pod continues by itself",
        )
    # A template that is there now was created after the Event that misses it.
    if report is not None and report.cause is not StopCause.TEMPLATE_MISSING:
        return reported("claims", report)
    return stopped(
        "claims",
        StopCause.CLAIM_NOT_CREATED,
        f'the claim "{claim.entry}" has not been created from the template {claim.template} yet',
        "wait a moment; if nothing changes, check that kube-controller-manager runs, which creates it",
    )


def _if_bound(check: Callable[[PodFacts], Iterator[Step]]) -> Callable[[PodFacts], Iterator[Step]]:
    return lambda facts: check(facts) if facts.node_name else iter(())


_STEPS: Final[tuple[Callable[[PodFacts], Iterator[Step]], ...]] = (
    _itself,
    claim_steps,
    scheduling_steps,
    _if_bound(node_steps),
    _if_bound(prepare_steps),
    _if_bound(container_steps),
    _if_bound(device_steps),
)
