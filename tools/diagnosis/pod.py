"""Follows one pod from `kubectl apply` to running containers, and reports where it stopped.

The steps: the pod itself, its claims, kube-scheduler, its node, Prepare, its containers, the health of its devices.
Each step depends on its own facts only, and the first step that stopped is the last one reported. An Event counts only
while the pod is still at the step that the Event is about.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dranode.api.errors import capitalized
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.grant import drivers_of, readable_results
from dranode.driver.claims.status import PREPARE_FAILED
from dranode.driver.claims.users import MOST_CONSUMERS, groups_among, is_reserved_for, owning_group
from dranode.sim.cluster.pod_claims import binding_failure, unbound
from dranode.tools.diagnosis.allocated import ready_conditions, selected_nodes
from dranode.tools.diagnosis.live_objects import (
    FitAnswer,
    LiveContainerStatus,
    LivePod,
    Lookup,
    NodeGroup,
    PodClaim,
    PodFacts,
)
from dranode.tools.diagnosis.reports import (
    Report,
    container_report,
    creation_report,
    ending_report,
    node_report,
    prepare_report,
    readiness_report,
    reported,
    scheduling_report,
)
from dranode.tools.diagnosis.steps import Outcome, Step, StopCause, Trace, passed, stopped, unseen

_EVICTIONS: Final = {
    "DeletionByDeviceTaintManager": StopCause.DEVICE_TAINT_EVICTION,
    "DeletionByTaintManager": StopCause.POD_EVICTED,
    "EvictionByEvictionAPI": StopCause.POD_EVICTED,
    "PreemptionByScheduler": StopCause.POD_EVICTED,
    "TerminationByKubelet": StopCause.POD_EVICTED,
}


def follow_pod(facts: PodFacts) -> Trace:
    """Return the pod's steps up to the one that stopped."""
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
            "check the namespace and the name; if a Deployment or a Job should have created it, check with kubectl "
            "describe whether a quota or an admission policy rejects its pods",
        )
        return
    ended = _ended(facts, facts.pod)
    if ended is not None:
        yield ended
        return
    where = f" on node {facts.node_name}" if facts.node_name else ", on no node"
    yield passed("pod", f"{facts.pod.status.phase or 'Pending'}{where}")


def _ended(facts: PodFacts, pod: LivePod) -> Step | None:
    """Return the step of a pod that has ended or is being deleted."""
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
    message = status.message.rstrip(".") or "no reason is given"
    if status.reason == "Evicted":
        fix = "free the resource that its node ran short of"
        return stopped("pod", StopCause.POD_EVICTED, f"kubelet evicted it: {message}", fix)
    containers = [
        report for container in facts.containers if (report := container_report(container, pod.spec.node_name))
    ]
    if status.reason and not containers:
        return stopped(
            "pod",
            StopCause.POD_REJECTED,
            f"kubelet on {pod.spec.node_name} has rejected it ({status.reason}): {message}",
            "leave spec.nodeName out, or free what the node lacks, and recreate the pod, which is not tried again",
        )
    what = containers[0].what if containers else f"it has failed: {message}"
    return stopped("pod", StopCause.POD_ENDED, what, "read its logs (kubectl logs); its claims were prepared")


def _terminating(facts: PodFacts) -> Step:
    running = [container.name for container in facts.containers if container.state.running is not None]
    drivers = sorted(
        {driver for claim in facts.claims if claim.claim for driver in drivers_of(claim.claim.status.allocation)}
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
            "start the driver on that node again, in any version; the pod then ends by itself",
        )
    return unseen(
        "pod",
        "it is being deleted; only kubelet's log says whether it waits for a driver to unprepare its claims",
        f"journalctl -u kubelet | grep -i unprepare, on {facts.node_name}" if facts.node_name else "",
    )


def claim_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield the step of the pod's claims, after a step for each claim that is wrong or could not be read."""
    needed = [claim for claim in facts.claims if claim.needed]
    for claim in needed:
        step = _claim(facts, claim)
        if step is not None:
            yield step
    known = [f"{claim.name}{f' ({claim.entry})' if claim.entry else ' (for extended resources)'}" for claim in needed]
    yield passed("claims", ", ".join(known) if known else _no_claims(facts))


def _no_claims(facts: PodFacts) -> str:
    """Return the sentence about a pod without claims."""
    extended = facts.scheduler.extended if facts.scheduler is not None else ()
    if extended:
        resources = ", ".join(f"{resource} (DeviceClass {device_class})" for resource, device_class in extended)
        return f"none yet: kube-scheduler creates one for the extended resources that the pod requests, {resources}"
    return "it has none"


def _claim(facts: PodFacts, claim: PodClaim) -> Step | None:
    if not claim.name:
        return _not_created(facts, claim)
    if claim.lookup is Lookup.MISSING:
        group = facts.pod.spec.pod_group if facts.pod is not None else ""
        owner = f"the pod, or for its PodGroup {group}," if group else "the pod"
        recreate = f"it was created for {owner} and then deleted; delete the pod, so that both are created again"
        return stopped(
            "claims",
            StopCause.CLAIM_MISSING,
            f"there is no claim {facts.namespace}/{claim.name}, which the pod names as {claim.entry}",
            recreate if claim.template else "create it in that namespace, or correct resourceClaimName",
        )
    if claim.claim is None:
        return unseen("claims", f"the claim {claim.name} could not be read")
    metadata, pod = claim.claim.metadata, facts.pod
    if claim.template and pod is not None and not _created_for(claim.claim, pod):
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


def _created_for(claim: ResourceClaim, pod: LivePod) -> bool:
    if pod.metadata.uid in {owner.uid for owner in claim.metadata.owner_references}:
        return True
    return bool(pod.spec.pod_group) and owning_group(claim) == pod.spec.pod_group


def _not_created(facts: PodFacts, claim: PodClaim) -> Step:
    report = creation_report(facts.events or (), facts.namespace, claim.entry)
    if claim.template_lookup is Lookup.MISSING:
        return stopped(
            "claims",
            StopCause.TEMPLATE_MISSING,
            f'there is no ResourceClaimTemplate "{claim.template}" in namespace {facts.namespace}, from which the '
            f'claim "{claim.entry}" would be created',
            "create the template in that namespace, or correct resourceClaimTemplateName; the pod continues by itself",
        )
    # The template exists now, so it was created after the Event that says it is missing.
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


# The step of kube-scheduler: why a pod has no node.


_MOST_NODES: Final = 4
_FIXES: Final = {
    StopCause.DEVICES_IN_USE: "end a pod that holds them, or add nodes; the pod continues by itself once they are free",
    StopCause.DEVICES_TAINTED: "check why the device is tainted (kubectl dranode devices) and fix it, or let the "
    "request tolerate it",
    StopCause.DEVICES_DO_NOT_FIT: "request less, or what the devices have: kubectl dranode devices shows it",
    StopCause.CONSTRAINT_UNMET: "remove the constraint, or request what one value of the attribute can provide",
    StopCause.NOTHING_PUBLISHED: "install or start the driver of that class; kubectl dranode devices lists what is "
    "published; a driver that runs but is not Ready has withdrawn its devices, and its node's Events (NotEnforced) or "
    "its log say why",
    StopCause.POOL_INCOMPLETE: "wait for the driver to publish the rest of the pool, or restart it if it does not",
    StopCause.SELECTOR_FAILS: "correct the expression: use has() or .orValue() for attributes that a device may lack",
    StopCause.CLASS_MISSING: "create the DeviceClass, or name one that kubectl get deviceclasses lists",
    StopCause.CLAIM_ON_ANOTHER_NODE: "let the pod run on the node of its claim, or delete the claim's other pods",
    StopCause.NODES_EXCLUDED: "correct the pod's nodeSelector, affinity or tolerations; its claims are not the reason",
    StopCause.RESOURCE_MISSING: "correct the resource's name, start the device plugin or driver that provides it, or "
    "give a DeviceClass that name as extendedResourceName",
    StopCause.UNSCHEDULABLE: "fix this; dranode fit with --pod, --evict, --move, --add shows what makes room",
    StopCause.CLAIM_REFUSED: "correct the claim: dranode check says what is wrong with it",
}


def scheduling_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield the pod's node, or why it fits on no node."""
    pod = facts.pod
    if pod is None:
        return
    if facts.node_name:
        yield passed("scheduler", f"bound to node {facts.node_name}")
        return
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        yield stopped(
            "scheduler",
            StopCause.SCHEDULING_GATED,
            f"it is held back by the scheduling gates {gates}",
            "the controller that set them has to remove them; Kueue, for example, does so when it admits the workload",
        )
    yield from _full(facts, pod)
    yield _binding(facts) or _answered(facts, pod)


def _full(facts: PodFacts, pod: LivePod) -> Iterator[Step]:
    for claim in facts.claims:
        if claim.claim is None or is_reserved_for(claim.claim, pod.metadata.uid, pod.spec.pod_group):
            continue
        reserved = claim.claim.status.reserved_for
        if len(reserved) >= MOST_CONSUMERS:
            users = "pods" if all(consumer.is_pod for consumer in reserved) else "pods and PodGroups"
            yield stopped(
                "scheduler",
                StopCause.CLAIM_FULL,
                f"the claim {claim.name} is reserved for {len(reserved)} {users}, but {MOST_CONSUMERS} may share one",
                "end one of its pods, or use another claim",
            )


def _binding(facts: PodFacts) -> Step | None:
    """Return the step of a pod that waits for its devices to be bound (KEP-5007)."""
    for claim in facts.claims:
        # After a binding failure kube-scheduler does not wait any more, but schedules the pod again.
        pod = facts.pod
        if claim.claim is None or (
            pod is not None and binding_failure(claim.claim, pod.metadata.uid, pod.spec.pod_group)
        ):
            continue
        for result in readable_results(claim.claim.status.allocation):
            for condition in unbound(claim.claim, result):
                return stopped(
                    "scheduler",
                    StopCause.BINDING_WAITS,
                    f"kube-scheduler waits for the condition {condition} of device {result.device} of "
                    f"{result.driver}, up to 10 minutes",
                    f"check why the controller of {result.driver} does not set it",
                )
    return None


def _answered(facts: PodFacts, pod: LivePod) -> Step:
    answer = facts.scheduler
    if answer is not None and answer.cause is not None:
        return stopped("scheduler", answer.cause, answer.error, _fix(answer.cause))
    groups = answer.groups if answer is not None else ()
    closest = groups[0] if groups else None
    if closest is not None and closest.cause is not None:
        holders = answer.holders if answer is not None else ()
        more = f" ({len(closest.nodes) - 1} more like it)" if len(closest.nodes) > 1 else ""
        what = f"no node fits. Closest: {closest.nodes[0]}{more}. {capitalized(closest.why)}"
        details = (*(f"{_names(group.nodes)}: {group.why}" for group in groups[1:]), *holders)
        return Step("scheduler", Outcome.STOPPED, what, _fix(closest.cause), closest.cause, details)
    return _unplaced(facts, pod, closest)


def _unplaced(facts: PodFacts, pod: LivePod, fitting: NodeGroup | None) -> Step:
    """Return the step of a pod without a node whose claims would fit on a node, as far as known."""
    scheduled = pod.status.condition("PodScheduled")
    devices = "its claims fit on" if facts.claims else "its extended resources fit on"
    wanted = facts.claims or (facts.scheduler is not None and facts.scheduler.extended)
    fits = f"{devices} {_names(fitting.nodes)}, but " if fitting is not None and wanted else ""
    message = scheduled.message if scheduled is not None else ""
    message = message or scheduling_report(facts.events or ())
    now = f"; by now it would fit on {facts.fit.node}" if facts.fit is not None and facts.fit.node else ""
    if message:
        return Step(
            "scheduler",
            Outcome.STOPPED,
            f"{fits}{pod.spec.scheduler_name} says: {message.rstrip('.')}{now}",
            "fix this; besides claims, CPU, memory, ports, volumes and other plug-ins count",
            StopCause.UNSCHEDULABLE,
            _fit_details(facts.fit),
        )
    if scheduled is None and pod.spec.scheduler_name != "default-scheduler":
        return stopped(
            "scheduler",
            StopCause.NO_SCHEDULER,
            f"no scheduler has handled it: spec.schedulerName is {pod.spec.scheduler_name}",
            "check that a scheduler of that name runs, or leave schedulerName out",
        )
    if facts.fit is not None and not facts.fit.node:
        what = f"{fits}no node fits: {facts.fit.message}"
        fix = _fix(StopCause.UNSCHEDULABLE)
        return Step("scheduler", Outcome.STOPPED, what, fix, StopCause.UNSCHEDULABLE, _fit_details(facts.fit))
    silent = (
        "has not reported anything about it yet"
        if facts.events is not None
        else "has set no condition; its Events could not be read"
    )
    return unseen(
        "scheduler",
        f"{fits or 'it is on no node, and '}kube-scheduler {silent}{now}",
        "kubectl get pods -n kube-system -l component=kube-scheduler",
    )


def _fit_details(fit: FitAnswer | None) -> tuple[str, ...]:
    """Return the simulator's reasons for each group of nodes, and its notes, if the pod fits nowhere."""
    if fit is None or fit.node:
        return ()
    return (*fit.groups, *(f"note: {note}" for note in fit.notes))


def _fix(cause: StopCause) -> str:
    return _FIXES.get(cause, "correct the claim, or its class: dranode check says what is wrong with it")


def _names(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
    return ", ".join(nodes[:_MOST_NODES]) + more


# The steps on the pod's node, as far as the API server shows them: the node, Prepare, the containers, their devices.


def node_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield whether the node exists and is ready."""
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
    """Yield whether the pod's claims were prepared, or why not, according to kubelet and the drivers."""
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
        nodes = set() if claim.status.allocation is None else selected_nodes(claim.status.allocation)
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
        return stopped("prepare", StopCause.PREPARE_REFUSED, sentence, "fix this; kubelet tries again by itself")
    if facts.events is None:
        command = f"kubectl describe pod {facts.name.rpartition('/')[2]} -n {facts.namespace}"
        return unseen(
            "prepare", "its Events, which say whether a driver refuses its claims, could not be read", command
        )
    return passed("prepare", "no problem with preparing its claims has been reported")


def _group_refused(facts: PodFacts, report: Report) -> Step | None:
    """Return the step of a claim that is reserved for the pod's PodGroup, if kubelet does not support that."""
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
    """Yield the messages of drivers in `status.devices` of claims that they could not prepare."""
    for claim in claims:
        for condition in ready_conditions(claim.claim) if claim.claim is not None else ():
            if condition.get("status") == "False" and condition.get("reason") == PREPARE_FAILED:
                yield str(condition.get("message") or "the driver could not prepare the claim").rstrip(".")


def container_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield whether the containers run, or why one does not."""
    pod = facts.pod
    if pod is None:
        return
    statuses = facts.containers
    for status in statuses:
        report = container_report(status, facts.node_name)
        if report is not None:
            yield reported("containers", report)
    waiting = [status.name for status in statuses if status.state.running is None and status.state.terminated is None]
    if not waiting and statuses:
        yield _running(facts, pod.status.container_statuses)
        return
    report = node_report(facts.events or (), facts.node_name)
    if report is not None:
        yield reported("containers", report)
    state = f"{', '.join(waiting)} is still being created" if waiting else "kubelet has not reported any container"
    events = "no Event says why" if facts.events is not None else "the Events could not be read"
    yield unseen("containers", f"{state}, and {events}", f"journalctl -u kubelet, on {facts.node_name}")


def _running(facts: PodFacts, statuses: Iterable[LiveContainerStatus]) -> Step:
    """Return the step of containers that have all been started."""
    unready = [status.name for status in statuses if status.state.running is not None and status.ready is False]
    report = readiness_report(facts.events or (), unready)
    return (
        reported("containers", report) if report is not None else passed("containers", ", ".join(map(_state, statuses)))
    )


def _state(status: LiveContainerStatus) -> str:
    if status.state.terminated is not None:
        return f"{status.name} has ended"
    return f"{status.name} runs{', and is not ready' if status.ready is False else ''}"


def device_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield unhealthy devices, and claims that no container names."""
    pod = facts.pod
    if pod is None:
        return
    for status in facts.containers:
        for resource in status.allocated_resources_status:
            for device in resource.resources:
                if device.health == "Unhealthy":
                    yield stopped(
                        "devices",
                        StopCause.DEVICE_UNHEALTHY,
                        f"{device.resource_id or resource.name} of container {status.name} is unhealthy"
                        f"{f': {device.message}' if device.message else ''}",
                        "recreate the pod on other devices, and check the hardware with the driver's log and kubectl "
                        "dranode devices",
                    )
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    named = {entry.name for container in containers for entry in container.resources.claims}
    for claim in facts.claims:
        if claim.entry and claim.needed and claim.entry not in named:
            yield Step(
                "devices",
                Outcome.UNSEEN,
                f'no container names the claim "{claim.entry}", so none gets its CDI devices; this is correct for '
                "drivers that serve a whole pod, such as network drivers",
                f"add resources: {{claims: [{{name: {claim.entry}}}]}} to the container that should have it",
                StopCause.CLAIM_UNNAMED,
            )


_STEPS: Final[tuple[Callable[[PodFacts], Iterator[Step]], ...]] = (
    _itself,
    claim_steps,
    scheduling_steps,
    _if_bound(node_steps),
    _if_bound(prepare_steps),
    _if_bound(container_steps),
    _if_bound(device_steps),
)
