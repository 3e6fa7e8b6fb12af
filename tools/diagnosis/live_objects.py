"""Pods, Nodes and Events of a cluster (core/v1), and the facts about one pod that are read from them.

`api.resource` has the parts of pods and nodes that allocators and drivers need; these types add their status. A field
that the API omits or sets to null has its default. A fact that was not read is None or `UNASKED`, and not judged.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

import msgspec

from dranode.api.resource import (
    APIDocument,
    APIObject,
    DeviceClass,
    DeviceToleration,
    NodeStatus,
    ObjectMeta,
    PodSpec,
    ResourceClaim,
    ResourceSlice,
)
from dranode.sim.scheduler.documents import (
    LabelSelector,
    NodeSpec,
    PodAffinities,
    PodClaimStatus,
    PodCondition,
    SchedulingGate,
    SpecialClaimStatus,
)
from dranode.tools.diagnosis.steps import StopCause


class LivePodSpec(PodSpec, frozen=True, kw_only=True):
    """`pod.spec` with the fields that restrict the pod's nodes; tolerations have the same fields as a device's."""

    scheduler_name: str = "default-scheduler"
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()
    affinity: PodAffinities = PodAffinities()


class ContainerStateWaiting(APIDocument, frozen=True, kw_only=True):
    """`state.waiting` of a container."""

    reason: str = ""
    message: str = ""


class ContainerStateTerminated(APIDocument, frozen=True, kw_only=True):
    """`state.terminated` of a container."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(APIDocument, frozen=True, kw_only=True):
    """`state` of a container: at most one field is set; none means that it waits."""

    waiting: ContainerStateWaiting | None = None
    running: Any = None
    terminated: ContainerStateTerminated | None = None


class ResourceHealth(APIDocument, frozen=True, kw_only=True, rename={"resource_id": "resourceID"}):
    """`allocatedResourcesStatus[].resources[]` of a container (KEP-4680)."""

    resource_id: str = ""
    health: str = ""
    message: str | None = None


class ResourceStatus(APIDocument, frozen=True, kw_only=True):
    """`allocatedResourcesStatus[]` of a container: `claim:<name>` or `claim:<name>/<request>`."""

    name: str = ""
    resources: tuple[ResourceHealth, ...] = ()


class LiveContainerStatus(APIDocument, frozen=True, kw_only=True):
    """`containerStatuses[]` of a pod; `ready` is None if kubelet does not report it."""

    name: str
    ready: bool | None = None
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0
    allocated_resources_status: tuple[ResourceStatus, ...] = ()


class LivePodStatus(APIDocument, frozen=True, kw_only=True):
    """`pod.status`."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[LiveContainerStatus, ...] = ()
    container_statuses: tuple[LiveContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()
    extended_resource_claim_status: SpecialClaimStatus | None = None

    def condition(self, kind: str) -> PodCondition | None:
        """Return the condition of a type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


class LivePod(APIObject, frozen=True, kw_only=True):
    """A pod."""

    spec: LivePodSpec = LivePodSpec()
    status: LivePodStatus = LivePodStatus()


class ImageContainer(APIDocument, frozen=True, kw_only=True):
    """A container of a template, by its image."""

    image: str = ""


class DaemonPodSpec(APIDocument, frozen=True, kw_only=True):
    """`spec.template.spec` of a DaemonSet: the fields that restrict its pods' nodes, and their images."""

    node_selector: Mapping[str, str] = {}
    tolerations: tuple[DeviceToleration, ...] = ()
    affinity: PodAffinities = PodAffinities()
    host_network: bool = False
    containers: tuple[ImageContainer, ...] = ()


class DaemonPodTemplate(APIDocument, frozen=True, kw_only=True):
    """`spec.template` of a DaemonSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonPodSpec = DaemonPodSpec()


class DaemonSetSpec(APIDocument, frozen=True, kw_only=True):
    """`spec` of a DaemonSet."""

    selector: LabelSelector = LabelSelector()
    template: DaemonPodTemplate = DaemonPodTemplate()


class LiveDaemonSet(APIObject, frozen=True, kw_only=True):
    """A DaemonSet (apps/v1)."""

    spec: DaemonSetSpec = DaemonSetSpec()

    @property
    def name(self) -> str:
        """Return `<namespace>/<name>`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class LiveNodeInfo(APIDocument, frozen=True, kw_only=True):
    """`node.status.nodeInfo`: versions as kubelet reports them (`v1.37.1`, `containerd://2.1.4`)."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class LiveNodeStatus(NodeStatus, frozen=True, kw_only=True):
    """`node.status`; quantities of `allocatable` stay text."""

    conditions: tuple[PodCondition, ...] = ()
    node_info: LiveNodeInfo = LiveNodeInfo()
    allocatable: Mapping[str, str] = {}


class LiveNode(APIObject, frozen=True, kw_only=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: LiveNodeStatus = LiveNodeStatus()

    @property
    def not_ready(self) -> str | None:
        """Return why the node is not ready; empty if it is, None if it has no Ready condition."""
        ready = next((condition for condition in self.status.conditions if condition.type == "Ready"), None)
        if ready is None:
            return None
        if ready.status == "True":
            return ""
        return ready.message or ready.reason or f"its condition Ready is {ready.status}"


class EventSeries(APIDocument, frozen=True, kw_only=True):
    """`series` of an Event."""

    count: int = 0
    last_observed_time: str | None = None


class LiveEvent(APIObject, frozen=True, kw_only=True):
    """An Event (core/v1)."""

    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None

    @property
    def last_seen(self) -> str:
        """Return when it happened last, in RFC 3339, so that Events can be sorted by it; empty if unknown."""
        observed = self.series.last_observed_time if self.series is not None else None
        return observed or self.last_timestamp or self.event_time or self.first_timestamp or ""


class Lookup(Enum):
    """Whether an object was found; `UNASKED` means that the server did not or could not say."""

    FOUND = auto()
    MISSING = auto()
    UNASKED = auto()


class PodClaim(msgspec.Struct, frozen=True):
    """An entry of `spec.resourceClaims`, or the claim that kube-scheduler created for extended resources.

    Attributes:
        entry: its name in the pod; empty for extended resources.
        name: the claim's name; empty if the claim has not been created yet.
        template: the template from which it is created; empty if there is none.
        needed: False if the pod's status says that it needs no claim for the entry.
        lookup: whether the claim exists.
        claim: the claim.
        template_lookup: whether the template exists.
    """

    entry: str
    name: str = ""
    template: str = ""
    needed: bool = True
    lookup: Lookup = Lookup.UNASKED
    claim: ResourceClaim | None = None
    template_lookup: Lookup = Lookup.UNASKED


class NodeGroup(msgspec.Struct, frozen=True):
    """Nodes with the same answer from kube-scheduler.

    Attributes:
        nodes: their names.
        cause: why the pod cannot run there; None if no reason was found.
        why: the same in a sentence.
    """

    nodes: tuple[str, ...]
    cause: StopCause | None
    why: str


class SchedulerAnswer(msgspec.Struct, frozen=True):
    """The allocator's answers about the pod's unallocated claims, node by node.

    Attributes:
        groups: the nodes, those that come closest first.
        holders: who has devices of the drivers in question on these closest nodes, one per line.
        cause: an error that ends the attempt for all nodes; None if there is none.
        error: the same in a sentence.
        extended: the pod's extended resources for which there is a DeviceClass, each with the class.
    """

    groups: tuple[NodeGroup, ...] = ()
    holders: tuple[str, ...] = ()
    cause: StopCause | None = None
    error: str = ""
    extended: tuple[tuple[str, str], ...] = ()

    @property
    def keeps(self) -> bool:
        """Return whether its claims keep the pod from every node."""
        return self.cause is not None or bool(self.groups and self.groups[0].cause is not None)


class FitAnswer(msgspec.Struct, frozen=True):
    """The simulator's complete answer about one pod, including CPU, memory and everything else that is scheduled.

    Attributes:
        node: the node that it would choose now; empty if the pod fits nowhere.
        message: kube-scheduler's message if the pod fits nowhere.
        groups: the nodes that do not fit, one line for all nodes with the same reason.
        notes: what the answer does not take into account.
    """

    node: str
    message: str = ""
    groups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class PodFacts(msgspec.Struct, frozen=True):
    """The facts about one pod. A fact that could not be read is None.

    Attributes:
        name: `<namespace>/<name>`.
        lookup: whether the pod exists.
        pod: the pod.
        claims: its claims.
        events: its Events.
        node: the node that it is bound to; None if it is not bound, or if the node could not be read.
        node_lookup: whether that node exists.
        published: the drivers that publish on that node; only read if the pod is being deleted.
        scheduler: the allocator's answer about its unallocated claims; None if it was not asked.
        fit: the simulator's complete answer; None if it was not asked, because the claims alone exclude every node.
        unasked: a sentence for everything that could not be read.
    """

    name: str
    lookup: Lookup
    pod: LivePod | None = None
    claims: tuple[PodClaim, ...] = ()
    events: tuple[LiveEvent, ...] | None = None
    node: LiveNode | None = None
    node_lookup: Lookup = Lookup.UNASKED
    published: frozenset[str] | None = None
    scheduler: SchedulerAnswer | None = None
    fit: FitAnswer | None = None
    unasked: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """Return the pod's namespace."""
        return self.name.partition("/")[0]

    @property
    def containers(self) -> tuple[LiveContainerStatus, ...]:
        """Return the status of its containers, init containers first."""
        if self.pod is None:
            return ()
        return (*self.pod.status.init_container_statuses, *self.pod.status.container_statuses)

    @property
    def started(self) -> bool:
        """Return whether Prepare is over: a container runs, has ended, or waits for something that comes later."""
        on_the_way = ("", "ContainerCreating", "PodInitializing")
        states = [status.state for status in self.containers]
        waiting = (state.waiting for state in states if state.waiting is not None)
        return any(state.running is not None or state.terminated is not None for state in states) or any(
            state.reason not in on_the_way for state in waiting
        )

    @property
    def node_name(self) -> str:
        """Return the node that the pod is bound to; empty for none."""
        return self.pod.spec.node_name if self.pod is not None else ""


class ClusterObjects(msgspec.Struct, frozen=True):
    """The objects on which the allocation of a pod's claims depends.

    Attributes:
        slices: all ResourceSlices.
        classes: all DeviceClasses.
        claims: all ResourceClaims.
        rules: all DeviceTaintRules, as plain documents.
        nodes: all nodes.
    """

    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()
    nodes: tuple[LiveNode, ...] = ()
