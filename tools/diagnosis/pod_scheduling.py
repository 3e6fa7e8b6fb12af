"""The step of kube-scheduler: why a pod is on no node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dranode.api.errors import capitalized
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.uses import MOST_CONSUMERS, is_reserved_for
from dranode.sim.cluster.pod_claims import binding_failure
from dranode.tools.diagnosis.live_objects import FitAnswer, LivePod, NodeGroup, PodFacts
from dranode.tools.diagnosis.reports import scheduling_report
from dranode.tools.diagnosis.steps import Outcome, Step, StopCause, passed, stopped, unseen

_NAMED: Final = 4
_FIXES: Final = {
    StopCause.DEVICES_IN_USE: "end a pod that holds them, or add nodes; the pod continues by itself once they are free",
    StopCause.DEVICES_TAINTED: "check why the device is tainted (kubectl dranode devices) and fix it, or let the "
    "request tolerate it",
    StopCause.DEVICES_DO_NOT_FIT: "request less, or what the devices have: kubectl dranode devices shows it",
    StopCause.CONSTRAINT_UNMET: "remove the constraint, or request what one value of the attribute can provide",
    StopCause.NOTHING_PUBLISHED: "install the driver of that class, or start it: kubectl dranode devices lists what is "
    "published; one that runs but is not Ready has withdrawn its devices, and Events of its node (NotEnforced) or its "
    "log say why",
    StopCause.POOL_INCOMPLETE: "wait for the driver to publish the rest of the pool, or restart it if it does not",
    StopCause.SELECTOR_FAILS: "correct the expression: check with has() or .orValue() for what a device may lack",
    StopCause.CLASS_MISSING: "create the DeviceClass, or name one that kubectl get deviceclasses lists",
    StopCause.CLAIM_ON_ANOTHER_NODE: "let the pod run on the node of its claim, or delete the claim's other pods",
    StopCause.NODES_EXCLUDED: "correct the pod's nodeSelector, affinity or tolerations; its claims are not the reason",
    StopCause.RESOURCE_MISSING: "correct the resource's name, start the device plugin or driver that provides it, or "
    "give a DeviceClass that name as extendedResourceName",
    StopCause.UNSCHEDULABLE: "fix what it says; dranode fit with --pod, --evict, --move, --add shows what makes room",
    StopCause.CLAIM_REFUSED: "correct the claim: dranode check says what is wrong with it",
}


def scheduling_steps(facts: PodFacts) -> Iterator[Step]:
    """Yield where kube-scheduler has put the pod, or what keeps it from every node."""
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
            "whoever set them has to remove them; Kueue, for example, does so when it admits the workload",
        )
    yield from _full(facts, pod)
    yield _binding(facts) or _answered(facts, pod)


def _full(facts: PodFacts, pod: LivePod) -> Iterator[Step]:
    for claim in facts.claims:
        if claim.claim is None or is_reserved_for(claim.claim, pod.metadata.uid, pod.spec.pod_group):
            continue
        reserved = claim.claim.status.reserved_for
        if len(reserved) >= MOST_CONSUMERS:
            users = "pods" if all(each.is_pod for each in reserved) else "pods and PodGroups"
            yield stopped(
                "scheduler",
                StopCause.CLAIM_FULL,
                f"the claim {claim.name} is reserved for {len(reserved)} {users}, but {MOST_CONSUMERS} may share one",
                "end one of its pods, or use another claim",
            )


def _binding(facts: PodFacts) -> Step | None:
    """Return the step of a pod that waits for its devices to be bound (KEP-5007)."""
    for claim in facts.claims:
        # Of devices that failed to bind nobody waits for more; what follows is kube-scheduler's answer.
        if claim.claim is None or (facts.pod is not None and _fails_to_bind(claim.claim, facts.pod)):
            continue
        done = {
            (entry.get("driver"), entry.get("pool"), entry.get("device"), condition.get("type"))
            for entry in claim.claim.status.devices
            if isinstance(entry, dict)
            for condition in entry.get("conditions") or ()
            if condition.get("status") == "True"
        }
        for result in readable_results(claim.claim.status.allocation):
            for condition in result.binding_conditions:
                if (result.driver, result.pool, result.device, condition) not in done:
                    return stopped(
                        "scheduler",
                        StopCause.BINDING_WAITS,
                        f"kube-scheduler waits for the condition {condition} of device {result.device} of "
                        f"{result.driver}, up to 10 minutes",
                        f"check why the controller of {result.driver} does not set it",
                    )
    return None


def _fails_to_bind(claim: ResourceClaim, pod: LivePod) -> bool:
    return bool(binding_failure(claim, pod.metadata.uid, pod.spec.pod_group))


def _answered(facts: PodFacts, pod: LivePod) -> Step:
    answer = facts.scheduler
    if answer is not None and answer.cause is not None:
        return stopped("scheduler", answer.cause, answer.error, _fix(answer.cause))
    groups = answer.groups if answer is not None else ()
    nearest = groups[0] if groups else None
    if nearest is not None and nearest.cause is not None:
        holders = answer.holders if answer is not None else ()
        what = f"no node fits. Closest: {_closest(nearest.nodes)}. {capitalized(nearest.why)}"
        details = (*map(_grouped, groups[1:]), *holders)
        return Step("scheduler", Outcome.STOPPED, what, _fix(nearest.cause), nearest.cause, details)
    return _unplaced(facts, pod, nearest)


def _unplaced(facts: PodFacts, pod: LivePod, fitting: NodeGroup | None) -> Step:
    """Return the step of a pod whose claims keep it from no node, as far as that was asked."""
    scheduled = pod.status.condition("PodScheduled")
    devices = "its claims fit on" if facts.claims else "its extended resources fit on"
    asked = facts.claims or (facts.scheduler is not None and facts.scheduler.extended)
    fits = f"{devices} {_names(fitting.nodes)}, but " if fitting is not None and asked else ""
    said = scheduled.message if scheduled is not None else ""
    said = said or scheduling_report(facts.events or ())
    now = f"; by now it would fit on {facts.fit.node}" if facts.fit is not None and facts.fit.node else ""
    if said:
        return Step(
            "scheduler",
            Outcome.STOPPED,
            f"{fits}{pod.spec.scheduler_name} says: {said.rstrip('.')}{now}",
            "fix what it says; besides claims, CPU, memory, ports, volumes and other plug-ins count",
            StopCause.UNSCHEDULABLE,
            _behind(facts.fit),
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
        return Step("scheduler", Outcome.STOPPED, what, fix, StopCause.UNSCHEDULABLE, _behind(facts.fit))
    silent = (
        "has not said anything about it yet"
        if facts.events is not None
        else "has set no condition; its Events could not be read"
    )
    return unseen(
        "scheduler",
        f"{fits or 'it is on no node, and '}kube-scheduler {silent}{now}",
        "kubectl get pods -n kube-system -l component=kube-scheduler",
    )


def _behind(fit: FitAnswer | None) -> tuple[str, ...]:
    """Return what the model of kube-scheduler says of the nodes that refuse a pod, a line each."""
    if fit is None or fit.node:
        return ()
    return (*fit.groups, *(f"note: {note}" for note in fit.notes))


def _fix(cause: StopCause) -> str:
    return _FIXES.get(cause, "correct the claim, or its class: dranode check says what is wrong with it")


def _grouped(group: NodeGroup) -> str:
    return f"{_names(group.nodes)}: {group.why}"


def _closest(nodes: tuple[str, ...]) -> str:
    return f"{nodes[0]} ({len(nodes) - 1} more like it)" if len(nodes) > 1 else nodes[0]


def _names(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more
