"""How far one claim has come on its way from allocation to cgroup, and where it stopped.

The way of a claim: allocation (scheduler), driver, record (ledger), CDI spec, container (kubelet's pod-resources), CPUs
(cgroup). Each station is judged on its own facts, and the stations after the first stop are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.resource import AllocationResult, ResourceClaim
from dranode.driver.core.claims.allocation import drivers_of, results_of
from dranode.driver.core.claims.record import ClaimState, Record


class Passed(StrEnum):
    """How a station was passed; `unseen` means that it could not be checked, which does not stop the claim."""

    YES = "passed"
    STOPPED = "stopped"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Station:
    """One station of the way.

    Attributes:
        name: which.
        passed: how.
        what: the facts, in one sentence without a full stop.
        fix: what to do if it stopped; else empty.
    """

    name: str
    passed: Passed
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A container of one of the claim's pods, as the kernel reports it.

    Attributes:
        name: the container's name; empty if it is unknown.
        cgroup: its folder.
        cpus: the CPUs on which it may run.
        expected: the CPUs on which it should run: the online CPUs of its claims, or of its requests of them.
    """

    name: str
    cgroup: str
    cpus: CPUSet
    expected: CPUSet


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """The facts about one claim and one driver. None is a fact that could not be read.

    Attributes:
        name: `<namespace>/<name>`.
        node: this node.
        driver: the driver's name.
        claim: as it is now; None if it does not exist or cannot be had.
        gone: whether it is known not to exist.
        serving: whether a driver serves on this node.
        record: the claim's record; None if there is none.
        other_uid: of a record of another claim of the same name; empty for none.
        damaged: why the claim's row is quarantined; empty if it is not.
        ledger: the driver's ledger if it is not to be seen; empty if it was read.
        same: whether the record is of the allocation that the claim has now.
        spec: the CDI spec's file; empty if the claim needs none.
        spec_problem: why a runtime would not take it; empty if it would.
        spec_unseen: why it could not be looked at; empty if it could.
        users: containers that kubelet gives the claim to, `<pod>/<container>`.
        containers: those that run.
    """

    name: str
    node: str
    driver: str
    claim: ResourceClaim | None = None
    gone: bool = False
    serving: bool | None = None
    record: Record | None = None
    other_uid: str = ""
    damaged: str = ""
    ledger: str = ""
    same: bool | None = None
    spec: str = ""
    spec_problem: str = ""
    spec_unseen: str = ""
    users: tuple[str, ...] | None = None
    containers: tuple[RunningContainer, ...] | None = None


def follow(facts: ClaimFacts) -> Iterator[Station]:
    """Yield the stations of the claim up to the one where it stopped."""
    for look in _WAY:
        station = look(facts)
        if station is not None:
            yield station
            if station.passed is Passed.STOPPED:
                return


def _allocation(facts: ClaimFacts) -> Station:
    def stopped(what: str, fix: str) -> Station:
        return Station("allocation", Passed.STOPPED, what, fix)

    claim = facts.claim
    if claim is None and not facts.gone:
        return Station("allocation", Passed.UNSEEN, "the API server was not asked, so only this node is looked at")
    if claim is None:
        remains = facts.record is not None or facts.other_uid
        return stopped(
            f"there is no claim {facts.name}" + (f", but {facts.driver} still has it on record" if remains else ""),
            "dranode drain shows what is left, and undoes it" if remains else "see that namespace and name are right",
        )
    if claim.status.allocation is None:
        return stopped(
            "the scheduler has not allocated it",
            "kubectl describe its pods for the scheduler's reason; dranode allocate says what is missing on each node",
        )
    return _place(facts, claim, claim.status.allocation)


def _place(facts: ClaimFacts, claim: ResourceClaim, allocation: AllocationResult) -> Station:
    def stopped(what: str, fix: str) -> Station:
        return Station("allocation", Passed.STOPPED, what, fix)

    try:
        results = results_of(allocation, facts.driver)
    except DocumentError as error:
        return stopped(f"its allocation cannot be read: {error}", "delete the claim so that it is allocated anew")
    if not results:
        others = sorted(drivers_of(allocation))
        return stopped(f"it holds no device of {facts.driver}, but of {', '.join(others)}", "ask that driver")
    pools = sorted({result.pool for result in results})
    devices = ", ".join(result.device for result in results)
    if pools != [facts.node]:
        return stopped(
            f"it was allocated {devices} of node {', '.join(pools)}, and this is {facts.node}",
            f"run dranode explain on {', '.join(pools)}, or name it with --node-name",
        )
    if not claim.status.reserved_for:
        return stopped(f"it was allocated {devices}, but is reserved for no pod", "start a pod that uses it")
    pods = ", ".join(pod.name for pod in claim.status.reserved_for)
    return Station("allocation", Passed.YES, f"{devices} of node {facts.node}, reserved for {pods}")


def _driver(facts: ClaimFacts) -> Station:
    if facts.serving is None:
        return Station("driver", Passed.UNSEEN, f"whether {facts.driver} is served here cannot be seen")
    if facts.serving:
        return Station("driver", Passed.YES, f"{facts.driver} is served here")
    if facts.record is not None:
        return Station("driver", Passed.UNSEEN, f"nobody serves {facts.driver} now, but the claim is on record")
    return Station(
        "driver",
        Passed.STOPPED,
        f"nobody serves {facts.driver} on this node, so kubelet cannot have the claim prepared",
        "start the driver; dranode doctor says what keeps it",
    )


def _record(facts: ClaimFacts) -> Station:
    def stopped(what: str, fix: str) -> Station:
        return Station("record", Passed.STOPPED, what, fix)

    anew = "delete the pods that use the claim, so that it is unprepared and allocated anew"
    if facts.damaged:
        return stopped(f"its record is quarantined: {facts.damaged}", anew)
    record = facts.record
    if record is None:
        return _unrecorded(facts)
    if record.state is ClaimState.STARTED:
        return stopped(
            "its hardware is half configured or half restored",
            "kubelet asks again by itself; the driver's log has the reason if it fails",
        )
    if facts.same is False:
        return stopped("it is prepared for another allocation than it has now", anew)
    return Station("record", Passed.YES, f"prepared{f' with CPUs {record.cpus}' if record.cpus else ''}")


def _unrecorded(facts: ClaimFacts) -> Station:
    if facts.other_uid:
        return Station(
            "record",
            Passed.STOPPED,
            f"an older claim of the same name (UID {facts.other_uid}) is still prepared",
            "wait for its pod to end, or see with dranode claims who uses it",
        )
    if facts.ledger:
        return Station("record", Passed.UNSEEN, f"there is no ledger {facts.ledger} to be seen from here")
    return Station(
        "record",
        Passed.STOPPED,
        "it is not prepared",
        "kubectl describe its pods: FailedPrepareDynamicResources has the driver's reason, and no such event means "
        "that kubelet has not come to it yet",
    )


def _spec(facts: ClaimFacts) -> Station | None:
    if not facts.spec:
        return None
    if facts.spec_unseen:
        return Station("CDI spec", Passed.UNSEEN, f"{facts.spec} cannot be read: {facts.spec_unseen}")
    if facts.spec_problem:
        return Station(
            "CDI spec",
            Passed.STOPPED,
            f"{facts.spec}: {facts.spec_problem}",
            "restart the driver, which writes it again from its record",
        )
    return Station("CDI spec", Passed.YES, facts.spec)


def _container(facts: ClaimFacts) -> Station:
    if facts.users is None:
        return Station("container", Passed.UNSEEN, "kubelet's pod-resources did not say who has the claim")
    if not facts.users:
        return Station(
            "container",
            Passed.STOPPED,
            "kubelet has given it to no container yet",
            "kubectl describe its pods: an image may be on its way, an init container still run, or no container name "
            "the claim under resources.claims",
        )
    return Station("container", Passed.YES, ", ".join(facts.users))


def _cpus(facts: ClaimFacts) -> Station | None:
    record = facts.record
    if record is None or not record.cpus:
        return None
    if not facts.containers:
        return Station("CPUs", Passed.UNSEEN, "no cgroup of a container that runs is to be seen")
    # Offline CPUs are left out by the kernel. Without names, one container on the right CPUs is all that can be asked
    # for, since the pod's others may have no claim.
    right = [container for container in facts.containers if container.cpus <= container.expected]
    named = [container for container in facts.containers if container.name]
    wrong = [container for container in named or (() if right else facts.containers) if container not in right]
    if wrong:
        seen = ", ".join(f"{_running_on(container)} rather than {container.expected}" for container in wrong)
        return Station(
            "CPUs",
            Passed.STOPPED,
            f"the kernel has {seen}",
            "dranode doctor says whether NRI, kubelet's CPU manager or another plug-in is the reason",
        )
    return Station("CPUs", Passed.YES, ", ".join(map(_running_on, right)))


def _running_on(container: RunningContainer) -> str:
    return f"{container.name or container.cgroup} on {container.cpus}"


_WAY: Final[tuple[Callable[[ClaimFacts], Station | None], ...]] = (
    _allocation,
    _driver,
    _record,
    _spec,
    _container,
    _cpus,
)
