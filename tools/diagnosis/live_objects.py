"""Pods, Nodes and Events as a cluster has them, as far as a diagnosis reads them (core/v1, in camel case).

`core.api.resource` has what an allocator and a driver read of pods and nodes; these have their status too. A field that
the API leaves out or sets to null has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dranode.api.resource import (
    APIDocument,
    DeviceToleration,
    NodeSelector,
    NodeStatus,
    ObjectMeta,
    PodSpec,
)


class LiveSchedulingGate(APIDocument, frozen=True, kw_only=True):
    """`pod.spec.schedulingGates[]`."""

    name: str


class LiveNodeAffinity(APIDocument, frozen=True, kw_only=True):
    """`pod.spec.affinity.nodeAffinity`, as far as it excludes nodes."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class LiveAffinity(APIDocument, frozen=True, kw_only=True):
    """`pod.spec.affinity`, as far as it excludes nodes by their labels."""

    node_affinity: LiveNodeAffinity | None = None


class LivePodSpec(PodSpec, frozen=True, kw_only=True):
    """`pod.spec` with what decides to which nodes the pod may go; tolerations have the form of those of devices."""

    scheduler_name: str = "default-scheduler"
    scheduling_gates: tuple[LiveSchedulingGate, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()
    affinity: LiveAffinity | None = None


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
    """`state` of a container: at most one is set; none means that it waits."""

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
    """`containerStatuses[]` of a pod; `ready` is None where kubelet does not say."""

    name: str
    ready: bool | None = None
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0
    allocated_resources_status: tuple[ResourceStatus, ...] = ()


class Condition(APIDocument, frozen=True, kw_only=True):
    """A condition of a pod or a node."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodResourceClaimStatus(APIDocument, frozen=True, kw_only=True):
    """`pod.status.resourceClaimStatuses[]`: without a claim's name, the pod needs none for that entry."""

    name: str
    resource_claim_name: str | None = None


class ExtendedResourceClaimStatus(APIDocument, frozen=True, kw_only=True):
    """`pod.status.extendedResourceClaimStatus` (KEP-5004)."""

    resource_claim_name: str = ""


class LivePodStatus(APIDocument, frozen=True, kw_only=True):
    """`pod.status`."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[LiveContainerStatus, ...] = ()
    container_statuses: tuple[LiveContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of a type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


class LivePod(APIDocument, frozen=True, kw_only=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LivePodSpec = LivePodSpec()
    status: LivePodStatus = LivePodStatus()


class LabelSelector(APIDocument, frozen=True, kw_only=True):
    """A `LabelSelector`, as far as it names labels."""

    match_labels: Mapping[str, str] = {}


class ImageContainer(APIDocument, frozen=True, kw_only=True):
    """A container of a template, by its image."""

    image: str = ""


class DaemonPodSpec(APIDocument, frozen=True, kw_only=True):
    """`spec.template.spec` of a DaemonSet: what decides to which nodes its pods go, and their images."""

    node_selector: Mapping[str, str] = {}
    tolerations: tuple[DeviceToleration, ...] = ()
    affinity: LiveAffinity | None = None
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


class LiveDaemonSet(APIDocument, frozen=True, kw_only=True):
    """A DaemonSet (apps/v1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()

    @property
    def name(self) -> str:
        """Return `<namespace>/<name>`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class LiveNodeTaint(APIDocument, frozen=True, kw_only=True):
    """`node.spec.taints[]`."""

    key: str
    value: str = ""
    effect: str = ""


class LiveNodeSpec(APIDocument, frozen=True, kw_only=True):
    """`node.spec`, as far as it excludes pods."""

    taints: tuple[LiveNodeTaint, ...] = ()
    unschedulable: bool = False


class LiveNodeInfo(APIDocument, frozen=True, kw_only=True):
    """`node.status.nodeInfo`: versions as kubelet reports them (`v1.37.1`, `containerd://2.1.4`)."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class LiveNodeStatus(NodeStatus, frozen=True, kw_only=True):
    """`node.status`; quantities of `allocatable` stay text."""

    conditions: tuple[Condition, ...] = ()
    node_info: LiveNodeInfo = LiveNodeInfo()
    allocatable: Mapping[str, str] = {}


class LiveNode(APIDocument, frozen=True, kw_only=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LiveNodeSpec = LiveNodeSpec()
    status: LiveNodeStatus = LiveNodeStatus()

    @property
    def not_ready(self) -> str | None:
        """Return why the node is not ready; empty if it is, None if nobody has said."""
        ready = next((condition for condition in self.status.conditions if condition.type == "Ready"), None)
        if ready is None:
            return None
        return (
            "" if ready.status == "True" else ready.message or ready.reason or f"its condition Ready is {ready.status}"
        )


class ObjectReference(APIDocument, frozen=True, kw_only=True):
    """`involvedObject` of an Event."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventSeries(APIDocument, frozen=True, kw_only=True):
    """`series` of an Event."""

    count: int = 0
    last_observed_time: str | None = None


class EventSource(APIDocument, frozen=True, kw_only=True):
    """`source` of an Event."""

    component: str = ""
    host: str = ""


class LiveEvent(APIDocument, frozen=True, kw_only=True):
    """An Event (core/v1), as kubelet, scheduler, controllers and drivers write it."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None
    source: EventSource = EventSource()
    reporting_component: str = ""

    @property
    def last_seen(self) -> str:
        """Return when it happened last, in RFC 3339, which sorts; empty if it does not say."""
        observed = self.series.last_observed_time if self.series is not None else None
        return observed or self.last_timestamp or self.event_time or self.first_timestamp or ""
