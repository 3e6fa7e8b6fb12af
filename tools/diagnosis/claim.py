"""Follows one claim on one node from its allocation to the cgroups of its containers, and reports where it stopped.

The steps: allocation (scheduler), driver, record (ledger), CDI spec, container runtime, container (kubelet's
pod-resources), CPUs and memory (cgroup). Each step depends on its own facts only, and the first step that stopped is
the last one reported.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import AllocationResult, ResourceClaim
from dranode.driver.claims.grant import results_of
from dranode.driver.claims.record import ClaimState, Record
from dranode.driver.pinning.given_cpus import cpus_of_requests
from dranode.tools.diagnosis.facts import REWRITE_SPEC, Fault
from dranode.tools.diagnosis.placement import PlacedContainer
from dranode.tools.diagnosis.steps import Outcome, Step, StopCause, as_root, passed, stopped, unseen


class ContainerMemory(msgspec.Struct, frozen=True):
    """The memory of a container with the claim, according to the kernel.

    Attributes:
        container: the container's name, or its cgroup's folder.
        ok: whether its memory is that of its claims; None if it could not be read.
        what: its memory, or how it differs, as the rest of a sentence that begins with the container's name.
    """

    container: str
    ok: bool | None
    what: str

    def __str__(self) -> str:
        return f"{self.container} {self.what}"


class ClaimFacts(msgspec.Struct, frozen=True):
    """The facts about one claim and one driver. A fact that could not be read is None.

    Attributes:
        name: `<namespace>/<name>`.
        node: this node.
        driver: the driver's name.
        claim: the claim as it is now; None if it does not exist or could not be read.
        gone: whether it is known that the claim does not exist.
        serving: whether the driver serves on this node.
        record: the claim's record; None if there is none.
        other_uid: the UID of another claim of the same name that is on record; empty if there is none.
        damaged: why the claim's row is quarantined; empty if it is not.
        ledger: the path of the driver's ledger if it is not visible from here; empty if it was read.
        same: whether the record is for the claim's current allocation.
        refusal: why the driver would refuse a Prepare now; empty if it would not.
        refusal_unseen: why that could not be decided; empty if it could.
        spec: the CDI spec's file; empty if the claim needs none.
        spec_problem: why a runtime would not load it; empty if it would.
        spec_unseen: why it could not be read; empty if it could.
        runtime: what is wrong with the container runtime's CDI and NRI, with the cause.
        users: the containers to which kubelet has given the claim, `<pod>/<container>`.
        containers: the running containers.
        containers_unseen: why these are unknown; empty if they are known.
        memory: the memory of running containers; None if the claim does not determine it.
        memory_unseen: why that is unknown; empty if it is known.
        root: whether the command runs as root.
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
    refusal: str = ""
    refusal_unseen: str = ""
    spec: str = ""
    spec_problem: str = ""
    spec_unseen: str = ""
    runtime: tuple[tuple[StopCause, Fault], ...] = ()
    users: tuple[str, ...] | None = None
    containers: tuple[PlacedContainer, ...] | None = None
    containers_unseen: str = ""
    memory: tuple[ContainerMemory, ...] | None = None
    memory_unseen: str = ""
    root: bool = False


def follow(facts: ClaimFacts) -> Iterator[Step]:
    """Yield the steps of the claim up to the one where it stopped."""
    for check in _STEPS:
        step = check(facts)
        if step is not None:
            yield step
            if step.outcome is Outcome.STOPPED:
                return


def _allocation(facts: ClaimFacts) -> Step:
    claim = facts.claim
    if claim is None and not facts.gone:
        return unseen(
            "allocation",
            "the API server was not asked, so only this node is checked",
            f"kubectl dranode explain {facts.name}, or dranode explain with --kubeconfig",
        )
    if claim is None:
        remains = facts.record is not None or facts.other_uid
        return stopped(
            "allocation",
            StopCause.CLAIM_MISSING,
            f"there is no claim {facts.name}" + (f", but {facts.driver} still has it on record" if remains else ""),
            "dranode drain shows what is left, and cleans it up" if remains else "check the namespace and the name",
        )
    if claim.status.allocation is None:
        return stopped(
            "allocation",
            StopCause.CLAIM_NOT_ALLOCATED,
            "the scheduler has not allocated it",
            "run dranode explain with the name of its pod to see what is missing on each node",
        )
    return _place(facts, claim, claim.status.allocation)


def _place(facts: ClaimFacts, claim: ResourceClaim, allocation: AllocationResult) -> Step:
    try:
        results = results_of(allocation, facts.driver)
    except DocumentError as error:
        return stopped(
            "allocation",
            StopCause.PREPARE_REFUSED,
            f"its allocation cannot be read: {error}",
            "delete the claim, so that it is allocated again",
        )
    devices = ", ".join(result.device for result in results)
    if not claim.status.reserved_for:
        return stopped(
            "allocation",
            StopCause.CLAIM_UNUSED,
            f"it has been allocated {devices}, but is not reserved for any pod",
            "start a pod that uses it",
        )
    users = ", ".join(map(str, claim.status.reserved_for))
    return passed("allocation", f"{devices} of node {facts.node}, reserved for {users}")


def _driver(facts: ClaimFacts) -> Step:
    if facts.serving is None:
        return unseen("driver", f"it cannot be seen from here whether {facts.driver} runs", "dranode doctor, as root")
    if facts.serving:
        return passed("driver", f"{facts.driver} runs on this node")
    if facts.record is not None:
        return unseen("driver", f"{facts.driver} does not run now, but the claim is on record")
    return stopped(
        "driver",
        StopCause.DRIVER_NOT_REGISTERED,
        f"{facts.driver} does not run on this node, so kubelet cannot have the claim prepared",
        "start the driver; dranode doctor says what prevents it",
    )


def _record(facts: ClaimFacts) -> Step:
    recreate = "delete the pods that use the claim, so that it is unprepared and allocated again"
    if facts.damaged:
        return stopped("record", StopCause.RECORD_UNUSABLE, f"its record is quarantined: {facts.damaged}", recreate)
    record = facts.record
    if record is None:
        return _unrecorded(facts)
    if record.state is ClaimState.STARTED:
        return stopped(
            "record",
            StopCause.RECORD_UNUSABLE,
            "its hardware is only partly configured or restored",
            "wait: kubelet tries again by itself; if that fails, the driver's log has the reason",
        )
    if facts.same is False:
        return stopped(
            "record", StopCause.RECORD_UNUSABLE, "it was prepared for a different allocation than it has now", recreate
        )
    grants = [f"{Quantity.binary(amount)} of {device}" for device, amount in record.amounts.items()]
    if record.cpus:
        requests = cpus_of_requests(record)
        by_request = ", ".join(f"{request}: {cpus}" for request, cpus in requests.items())
        grants.insert(0, f"CPUs {record.cpus}{f' ({by_request})' if len(requests) > 1 else ''}")
    return passed("record", f"prepared with {', '.join(grants)}" if grants else "prepared")


def _unrecorded(facts: ClaimFacts) -> Step:
    if facts.other_uid:
        return stopped(
            "record",
            StopCause.CLAIM_REPLACED,
            f"an older claim of the same name (UID {facts.other_uid}) is still prepared",
            "wait for its pod to end; dranode claims shows who uses it",
        )
    if facts.ledger:
        return unseen("record", f"the ledger {facts.ledger} cannot be seen from here", "run this on the node as root")
    if facts.refusal:
        return stopped("record", StopCause.PREPARE_REFUSED, facts.refusal, "fix this; kubelet tries again by itself")
    for cause, fault in facts.runtime:
        # The driver refuses a Prepare if it could not pin the claim's containers.
        if cause is StopCause.NRI_OFF:
            return stopped("record", cause, f"it is not prepared: {fault.what}", fault.fix)
    if facts.refusal_unseen:
        return unseen("record", f"it is not prepared, and it is unknown whether it would be: {facts.refusal_unseen}")
    return stopped(
        "record",
        StopCause.NOT_PREPARED,
        "it is not prepared, although nothing on this node prevents it",
        "kubectl describe its pods: the event FailedPrepareDynamicResources has kubelet's reason; without that event, "
        "kubelet has not tried yet",
    )


def _spec(facts: ClaimFacts) -> Step | None:
    if not facts.spec:
        return None
    if facts.spec_unseen:
        command = f"ls -lZ {facts.spec}" if facts.root else "run this as root"
        return unseen("CDI spec", f"{facts.spec} cannot be read: {facts.spec_unseen}", command)
    if facts.spec_problem:
        return stopped(
            "CDI spec",
            StopCause.CDI_SPEC_UNUSABLE,
            f"{facts.spec}: {facts.spec_problem}",
            REWRITE_SPEC,
        )
    return passed("CDI spec", facts.spec)


def _runtime(facts: ClaimFacts) -> Step | None:
    # A container on the right CPUs proves that NRI works, whatever the runtime's configuration file says.
    if any(container.inside for container in facts.containers or ()):
        return None
    for cause, fault in facts.runtime:
        return stopped("runtime", cause, fault.what, fault.fix)
    return None


def _container(facts: ClaimFacts) -> Step:
    if facts.users is None:
        command = (
            "check that kubelet runs, and that its socket can be seen from here" if facts.root else "run this as root"
        )
        return unseen("container", "kubelet's pod-resources API did not say which container has the claim", command)
    if not facts.users and facts.record is None:
        return unseen("container", "kubelet has not given it to any container yet")
    if not facts.users:
        return stopped(
            "container",
            StopCause.CLAIM_UNNAMED,
            "kubelet has not given it to any container yet",
            "run kubectl dranode explain with its pod to see what the pod waits for; if the pod runs, no container "
            "names the claim under resources.claims",
        )
    return passed("container", ", ".join(facts.users))


def _cpus(facts: ClaimFacts) -> Step | None:
    record = facts.record
    if record is None or not record.cpus:
        return None
    if facts.containers_unseen:
        return _unverified(facts, "CPUs", facts.containers_unseen)
    if not facts.containers:
        return _unverified(facts, "CPUs", "no cgroup of a running container can be seen")
    # The kernel leaves out offline CPUs. If the containers' names are unknown, one of them on the right CPUs is enough,
    # because the others of the pod may not have the claim.
    right = [container for container in facts.containers if container.inside]
    named = [container for container in facts.containers if container.name]
    wrong = [container for container in named or (() if right else facts.containers) if container not in right]
    if wrong:
        seen = ", ".join(f"{_running_on(container)} rather than {container.expected}" for container in wrong)
        return stopped(
            "CPUs",
            StopCause.WRONG_CPUS,
            f"the kernel runs {seen}",
            "dranode doctor says whether NRI, kubelet's CPU manager or another plug-in is the reason",
        )
    narrow = [container for container in right if container.unused]
    if narrow:
        seen = ", ".join(
            f"{_running_on(container)} according to its cgroup, but no process on {container.unused}"
            for container in narrow
        )
        return stopped(
            "CPUs",
            StopCause.WRONG_CPUS,
            f"the kernel runs {seen}: its processes have their own CPU affinity, set by themselves or inherited",
            "dranode doctor says whether the container runtime has a CPU affinity (CPUAffinity= of systemd), which all "
            "containers inherit",
        )
    return passed("CPUs", ", ".join(map(_running_on, right)))


def _memory(facts: ClaimFacts) -> Step | None:
    if facts.record is None or facts.memory is None:
        return None
    wrong = [container for container in facts.memory if container.ok is False]
    if wrong:
        return stopped(
            "container memory",
            StopCause.WRONG_MEMORY,
            ", ".join(map(str, wrong)),
            "dranode doctor says whether NRI, containerd's hugetlb controller or kubelet's memory manager is the "
            "reason; with cgroup v1 a container that was created without the driver keeps its limits, so recreate it",
        )
    if facts.memory_unseen:
        return _unverified(facts, "container memory", facts.memory_unseen)
    if not facts.memory:
        return _unverified(facts, "container memory", "no cgroup of a running container can be seen")
    if any(container.ok is None for container in facts.memory):
        return _unverified(
            facts, "container memory", "a container's cgroup, or the record of one of its claims, cannot be seen"
        )
    return passed("container memory", ", ".join(map(str, facts.memory)))


def _unverified(facts: ClaimFacts, name: str, what: str) -> Step:
    return unseen(name, what, as_root("dranode claims --verify", root=facts.root))


def _running_on(container: PlacedContainer) -> str:
    return f"{container.name or container.seen.path} on {container.seen.actual}"


_STEPS: Final[tuple[Callable[[ClaimFacts], Step | None], ...]] = (
    _allocation,
    _driver,
    _record,
    _spec,
    _runtime,
    _container,
    _cpus,
    _memory,
)
