"""The steps of a pod or a claim until its containers run, and why it may stop at one of them."""

from enum import StrEnum

import msgspec


class StopCause(StrEnum):
    """Why a pod with claims does not start, or not correctly; docs/pod-does-not-start.md has a row for each cause.

    The groups are in the order of a pod's life: the pod itself, claims, scheduler, node, containers.
    """

    POD_MISSING = "pod-missing"
    POD_ENDED = "pod-ended"
    POD_EVICTED = "pod-evicted"
    POD_REJECTED = "pod-rejected"
    DEVICE_TAINT_EVICTION = "device-taint-eviction"
    POD_NOT_ENDING = "pod-not-ending"
    UNPREPARE_WAITS = "unprepare-waits"

    TEMPLATE_MISSING = "template-missing"
    QUOTA_EXCEEDED = "quota-exceeded"
    CLAIM_REFUSED = "claim-refused"
    CLAIM_NOT_CREATED = "claim-not-created"
    CLAIM_MISSING = "claim-missing"
    CLAIM_BEING_DELETED = "claim-being-deleted"
    CLAIM_OF_ANOTHER_POD = "claim-of-another-pod"
    CLAIM_UNUSED = "claim-unused"
    CLAIM_NOT_RELEASED = "claim-not-released"

    SCHEDULING_GATED = "scheduling-gated"
    NO_SCHEDULER = "no-scheduler"
    CLASS_MISSING = "class-missing"
    NOTHING_PUBLISHED = "nothing-published"
    POOL_INCOMPLETE = "pool-incomplete"
    SELECTOR_FAILS = "selector-fails"
    RESOURCE_MISSING = "resource-missing"
    DEVICES_DO_NOT_FIT = "devices-do-not-fit"
    DEVICES_IN_USE = "devices-in-use"
    DEVICES_TAINTED = "devices-tainted"
    CONSTRAINT_UNMET = "constraint-unmet"
    CLAIM_ON_ANOTHER_NODE = "claim-on-another-node"
    CLAIM_FULL = "claim-full"
    NODES_EXCLUDED = "nodes-excluded"
    UNSCHEDULABLE = "unschedulable"
    BINDING_WAITS = "binding-waits"

    NODE_MISSING = "node-missing"
    NODE_NOT_READY = "node-not-ready"
    CLAIM_NOT_ALLOCATED = "claim-not-allocated"
    CLAIM_NOT_RESERVED = "claim-not-reserved"
    DRIVER_NOT_REGISTERED = "driver-not-registered"
    DRIVER_NOT_ANSWERING = "driver-not-answering"
    PREPARE_REFUSED = "prepare-refused"
    NOT_PREPARED = "not-prepared"
    CLAIM_REPLACED = "claim-replaced"
    KUBELET_ERROR = "kubelet-error"
    RECORD_UNUSABLE = "record-unusable"
    CDI_SPEC_UNUSABLE = "cdi-spec-unusable"

    SANDBOX_FAILED = "sandbox-failed"
    VOLUME_FAILED = "volume-failed"
    IMAGE_MISSING = "image-missing"
    CONTAINER_CONFIG = "container-config"
    CDI_OFF = "cdi-off"
    CDI_UNRESOLVABLE = "cdi-unresolvable"
    NRI_OFF = "nri-off"
    NRI_PLUGIN_MISSING = "nri-plugin-missing"
    CLAIM_IN_USE = "claim-in-use"
    NO_SHARED_CPUS = "no-shared-cpus"
    CONTAINER_REFUSED = "container-refused"
    CONTAINER_ENDS = "container-ends"
    CONTAINER_NOT_READY = "container-not-ready"
    CLAIM_UNNAMED = "claim-unnamed"
    WRONG_CPUS = "wrong-cpus"
    WRONG_MEMORY = "wrong-memory"
    DEVICE_UNHEALTHY = "device-unhealthy"


class Outcome(StrEnum):
    """The outcome of a step; `unseen` means that it could not be checked, and the next steps are still reported."""

    PASSED = "passed"
    STOPPED = "stopped"
    UNSEEN = "unseen"


class Step(msgspec.Struct, frozen=True):
    """One step.

    Attributes:
        name: the step's name.
        outcome: whether the step was passed.
        what: the facts, in one sentence without a period.
        fix: what to do if it stopped, or the command that shows it if it is unseen; else empty.
        cause: why it stopped; None if it did not.
        details: more facts, one per line: if no node accepts a pod, the other nodes and the holders of devices.
    """

    name: str
    outcome: Outcome
    what: str
    fix: str = ""
    cause: StopCause | None = None
    details: tuple[str, ...] = ()


class Trace(msgspec.Struct, frozen=True):
    """The steps of one pod or claim.

    Attributes:
        about: the pod or claim: `pod default/a`, `claim default/b`, `claim default/b on node w`.
        driver: the driver, if the steps are about one driver's devices of the claim; else empty.
        claim: `<namespace>/<name>` of the claim; empty for a pod.
        steps: the steps up to the first one that stopped.
        unknown: whether nothing is known about the pod or claim.
    """

    about: str
    steps: tuple[Step, ...]
    driver: str = ""
    claim: str = ""
    unknown: bool = False

    @property
    def stopped(self) -> Step | None:
        """Return the step where it stopped; None if it did not."""
        return next((step for step in self.steps if step.outcome is Outcome.STOPPED), None)


def as_root(command: str, *, root: bool) -> str:
    """Return how to see more with a command: as root, or, if this is root already, on the node itself."""
    return f"{command}, {'on the node itself' if root else 'as root'}"


def passed(name: str, what: str) -> Step:
    """Return a step that was passed."""
    return Step(name, Outcome.PASSED, what)


def stopped(name: str, cause: StopCause, what: str, fix: str) -> Step:
    """Return the step that stopped."""
    return Step(name, Outcome.STOPPED, what, fix, cause)


def unseen(name: str, what: str, command: str = "") -> Step:
    """Return a step that could not be checked from here; `command` shows how to check it."""
    return Step(name, Outcome.UNSEEN, what, command)
