"""The steps of a pod on its node, as the cluster knows them: the node, Prepare, the containers, their devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.driver.claims.answers import NOT_ENFORCED
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.status import PREPARE_FAILED, READY
from dranode.driver.claims.uses import groups_among, is_reserved_for
from dranode.tools.diagnosis.live_objects import LiveContainerStatus, Lookup, PodClaim, PodFacts
from dranode.tools.diagnosis.reports import (
    Report,
    container_report,
    node_report,
    prepare_report,
    readiness_report,
    reported,
)
from dranode.tools.diagnosis.steps import Outcome, Step, StopCause, passed, stopped, unseen


def node_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield how the node is."""
    if facts.node_lookup is Lookup.MISSING:
        yield stopped(
            "node",
            StopCause.NODE_MISSING,
            f"there is no node {facts.node_name}, to which the pod is bound",
            "correct spec.nodeName, or delete the pod, so that its controller creates another one",
        )
    if facts.node is not None and facts.node.not_ready:
        yield stopped(
            "node",
            StopCause.NODE_NOT_READY,
            f"node {facts.node_name} is not ready: {facts.node.not_ready.rstrip('.')}",
            "fix the node or its kubelet first; the pod's status may be out of date",
        )
    if facts.node is None:
        yield unseen("node", f"node {facts.node_name} could not be read", f"kubectl get node {facts.node_name}")
    elif facts.node.not_ready is None:
        command = f"kubectl describe node {facts.node_name}"
        yield unseen("node", f"node {facts.node_name} has not reported yet whether it is ready", command)
    else:
        yield passed("node", f"{facts.node_name} is ready")


def prepare_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield whether the pod's claims were prepared, or what kubelet and drivers say that keeps them from it."""
    pod, known = facts.pod, [claim.claim for claim in facts.claims if claim.claim is not None]
    if pod is None or not known:
        return
    if facts.started:
        yield passed("prepare", "its claims are prepared")
        return
    for claim in known:
        if claim.status.allocation is None:
            yield stopped(
                "prepare",
                StopCause.CLAIM_NOT_ALLOCATED,
                f"the pod is bound to {facts.node_name}, but its claim {claim.metadata.name} is not allocated: "
                "spec.nodeName bypasses kube-scheduler, which allocates claims",
                "leave spec.nodeName out and select the node with nodeSelector: kubernetes.io/hostname",
            )
        nodes = set() if claim.status.allocation is None else _selected_nodes(claim.status.allocation)
        if nodes and facts.node_name not in nodes:
            yield stopped(
                "prepare",
                StopCause.CLAIM_ON_ANOTHER_NODE,
                f"the pod is bound to {facts.node_name}, but its claim {claim.metadata.name} has devices of "
                f"{', '.join(sorted(nodes))}: spec.nodeName bypasses kube-scheduler, which prevents that",
                "leave spec.nodeName out, so that kube-scheduler puts the pod where its claim is",
            )
        if not is_reserved_for(claim, pod.metadata.uid, pod.spec.pod_group):
            yield stopped(
                "prepare",
                StopCause.CLAIM_NOT_RESERVED,
                f"the claim {claim.metadata.name} is allocated, but not reserved for the pod",
                "leave spec.nodeName out, so that kube-scheduler reserves the pod's claims",
            )
    yield _preparing(facts)


def _preparing(facts: PodFacts) -> Step:
    report = prepare_report(facts.events or (), facts.node_name)
    if report is not None:
        return _group_refused(facts, report) or reported("prepare", report)
    for sentence in _refusals(facts.claims):
        return stopped(
            "prepare", StopCause.PREPARE_REFUSED, sentence, "fix what the driver says; kubelet tries again by itself"
        )
    if facts.events is None:
        command = f"kubectl describe pod {facts.name.rpartition('/')[2]} -n {facts.namespace}"
        return unseen(
            "prepare", "its Events, which say whether a driver refuses its claims, could not be read", command
        )
    return passed("prepare", "no problem with preparing its claims has been reported")


def _group_refused(facts: PodFacts, report: Report) -> Step | None:
    """Return the step of a claim that the pod has by its PodGroup, where kubelet does not know of that."""
    group = facts.pod.spec.pod_group if facts.pod is not None else ""
    if not group or report.cause not in (StopCause.CLAIM_NOT_RESERVED, StopCause.CLAIM_OF_ANOTHER_POD):
        return None
    for claim in facts.claims:
        reserved = groups_among(claim.claim.status.reserved_for) if claim.claim is not None else ()
        if group in reserved and claim.name in re.split("[ /]", report.what):
            return stopped(
                "prepare",
                report.cause,
                f"the claim {claim.name} is reserved for the pod's PodGroup {group}, but kubelet on {facts.node_name} "
                "does not let the pod use it",
                "enable DRAWorkloadResourceClaims in kubelet too, as in the API server and kube-scheduler",
            )
    return None


def _refusals(claims: Iterable[PodClaim]) -> Iterator[str]:
    """Yield what drivers say in `status.devices` of claims that they could not prepare."""
    for claim in claims:
        for condition in ready_conditions(claim.claim) if claim.claim is not None else ():
            if condition.get("status") == "False" and condition.get("reason") == PREPARE_FAILED:
                yield str(condition.get("message") or "the driver could not prepare the claim").rstrip(".")


def container_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield whether the containers run, or what the first one waits for."""
    pod = facts.pod
    if pod is None:
        return
    statuses = facts.containers
    for status in statuses:
        report = container_report(status, facts.node_name)
        if report is not None:
            yield reported("containers", report)
    waiting = [one.name for one in statuses if one.state.running is None and one.state.terminated is None]
    if not waiting and statuses:
        yield _running(facts, pod.status.container_statuses)
        return
    report = node_report(facts.events or (), facts.node_name)
    if report is not None:
        yield reported("containers", report)
    which = f"{', '.join(waiting)} is still being created" if waiting else "kubelet has not reported any container"
    said = "no Event says what it waits for" if facts.events is not None else "the Events could not be read"
    yield unseen("containers", f"{which}, and {said}", f"journalctl -u kubelet, on {facts.node_name}")


def _running(facts: PodFacts, statuses: Iterable[LiveContainerStatus]) -> Step:
    """Return the step of containers that have all been started."""
    unready = [one.name for one in statuses if one.state.running is not None and one.ready is False]
    report = readiness_report(facts.events or (), unready)
    return (
        reported("containers", report) if report is not None else passed("containers", ", ".join(map(_state, statuses)))
    )


def _state(status: LiveContainerStatus) -> str:
    if status.state.terminated is not None:
        return f"{status.name} has ended"
    return f"{status.name} runs{', and is not ready' if status.ready is False else ''}"


def device_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield devices that are unhealthy, and claims that no container names."""
    pod = facts.pod
    if pod is None:
        return
    for status in facts.containers:
        for resource in status.allocated_resources_status:
            for one in resource.resources:
                if one.health == "Unhealthy":
                    yield stopped(
                        "devices",
                        StopCause.DEVICE_UNHEALTHY,
                        f"{one.resource_id or resource.name} of container {status.name} is unhealthy"
                        f"{f': {one.message}' if one.message else ''}",
                        "recreate the pod on other devices, and check the hardware: the driver's log and "
                        "kubectl dranode devices",
                    )
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    named = {entry.name for container in containers for entry in container.resources.claims}
    for claim in facts.claims:
        if claim.entry and claim.needed and claim.entry not in named:
            yield Step(
                "devices",
                Outcome.UNSEEN,
                f'no container names the claim "{claim.entry}", so none gets its CDI devices; drivers that serve a '
                "whole pod, such as network drivers",
                f"add resources: {{claims: [{{name: {claim.entry}}}]}} to the container that should have it",
                StopCause.CLAIM_UNNAMED,
            )


_UNREADY: Final = {
    PREPARE_FAILED: (StopCause.PREPARE_REFUSED, "fix what the driver says; kubelet tries again by itself"),
    NOT_ENFORCED: (
        StopCause.NRI_OFF,
        "fix what the driver says; containers are held to the claim once the runtime is connected",
    ),
}
_LESS: Final = (StopCause.DEVICE_UNHEALTHY, "recreate the pod on other devices, and check the hardware")


def node_of(claim: ResourceClaim, driver: str) -> str:
    """Return the node on which a claim's devices of a driver are; empty if its allocation does not say.

    That is the one of its node selector, else the name of the pool, where a driver's pools are called like nodes.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return ""
    if allocation.node_selector is not None and allocation.node_selector.node_selector_terms:
        names = _selected_nodes(allocation)
        return names.pop() if len(names) == 1 else ""
    pools = {result.pool for result in readable_results(allocation) if result.driver == driver}
    return pools.pop() if len(pools) == 1 else ""


def _selected_nodes(allocation: AllocationResult) -> set[str]:
    """Return the nodes that the node selector of an allocation names; none if it names none, or chooses by labels."""
    terms = allocation.node_selector.node_selector_terms if allocation.node_selector is not None else ()
    return {
        value for term in terms for field in term.match_fields if field.key == "metadata.name" for value in field.values
    }


def follow_allocated(claim: ResourceClaim, driver: str) -> Iterator[Step]:
    """Yield what is known of a claim's devices of one driver: which, who may use them, what it says of them."""
    results = [result for result in readable_results(claim.status.allocation) if result.driver == driver]
    devices = ", ".join(f"{result.device}{' (admin access)' if result.admin_access else ''}" for result in results)
    pools = ", ".join(sorted({result.pool for result in results}))
    users = ", ".join(map(str, claim.status.reserved_for))
    if not users:
        yield unseen("allocation", f"{devices} of pool {pools}, not reserved for any pod at the moment")
    else:
        yield passed("allocation", f"{devices} of pool {pools}, reserved for {users}")
    yield _said(claim, driver)


def _said(claim: ResourceClaim, driver: str) -> Step:
    conditions = list(ready_conditions(claim, driver))
    for condition in conditions:
        if condition.get("status") == "False":
            what = str(condition.get("message") or condition.get("reason")).rstrip(".")
            cause, fix = _UNREADY.get(str(condition.get("reason")), _LESS)
            return stopped("driver", cause, what, fix)
    for condition in conditions:
        if condition.get("reason") == NOT_ENFORCED:
            return passed("driver", f"{driver} has prepared it, and says: {condition.get('message')}")
    if conditions:
        return passed("driver", f"{driver} reports that its devices are ready")
    return unseen("driver", f"{driver} reports nothing about it in status.devices, which is optional")


def ready_conditions(claim: ResourceClaim, driver: str = "") -> Iterator[Mapping[str, Any]]:
    """Yield the conditions `Ready` in `status.devices`, of one driver or of all."""
    for entry in claim.status.devices:
        if isinstance(entry, Mapping) and driver in ("", entry.get("driver")):
            for condition in entry.get("conditions") or ():
                if isinstance(condition, Mapping) and condition.get("type") == READY:
                    yield condition
