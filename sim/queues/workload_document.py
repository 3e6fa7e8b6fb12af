"""Kueue's Workload as it is written, with what of its pods decides over flavor and quota.

Source: `kueue.x-k8s.io/v1beta2`; v1beta1 differs in fields that are read under both names.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from dranode.api.quantity import Quantity
from dranode.api.resource import (
    APIDocument,
    DeviceToleration,
    NodeSelector,
    ObjectMeta,
    PodContainer,
    PodSpec,
)


class QueuedContainer(PodContainer, frozen=True, kw_only=True):
    """A container; an init container that restarts always runs beside the others."""

    name: str = ""
    restart_policy: str = ""


class NodeAffinity(APIDocument, frozen=True, kw_only=True):
    """`affinity.nodeAffinity`, what is required of it."""

    required: NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(APIDocument, frozen=True, kw_only=True):
    """`affinity`."""

    node_affinity: NodeAffinity = NodeAffinity()


class QueuedPodSpec(PodSpec, frozen=True, kw_only=True):
    """A pod's spec, with what decides over its flavor and its quota."""

    init_containers: tuple[QueuedContainer, ...] = ()
    containers: tuple[QueuedContainer, ...] = ()
    affinity: Affinity = Affinity()
    tolerations: tuple[DeviceToleration, ...] = ()
    overhead: Mapping[str, Quantity] = {}


class PodTemplate(APIDocument, frozen=True, kw_only=True):
    """`podSets[].template`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: QueuedPodSpec = QueuedPodSpec()


class TopologyRequest(APIDocument, frozen=True, kw_only=True):
    """`podSets[].topologyRequest`; pod sets of one group get one flavor."""

    pod_set_group_name: str | None = None


class PodSetSpec(APIDocument, frozen=True, kw_only=True):
    """`podSets[]`."""

    name: str = "main"
    count: int = 1
    min_count: int | None = None
    template: PodTemplate = PodTemplate()
    topology_request: TopologyRequest = TopologyRequest()


class WorkloadSpec(APIDocument, frozen=True, kw_only=True):
    """`Workload.spec`; the class reference goes by one name in each version."""

    pod_sets: tuple[PodSetSpec, ...] = ()
    queue_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    priority_class_ref: Mapping[str, str] = {}
    active: bool = True


class PodSetAdmission(APIDocument, frozen=True, kw_only=True):
    """`status.admission.podSetAssignments[]`."""

    name: str = "main"
    flavors: Mapping[str, str] = {}
    resource_usage: Mapping[str, Quantity] = {}
    count: int | None = None


class Admission(APIDocument, frozen=True, kw_only=True):
    """`status.admission`."""

    cluster_queue: str
    pod_set_assignments: tuple[PodSetAdmission, ...] = ()


class WorkloadCondition(APIDocument, frozen=True, kw_only=True):
    """`status.conditions[]`."""

    type: str
    status: str
    last_transition_time: str = ""


class ReclaimablePod(APIDocument, frozen=True, kw_only=True):
    """`status.reclaimablePods[]`: so many pods of a set have ended, and their quota may go to others."""

    name: str
    count: int


class WorkloadStatus(APIDocument, frozen=True, kw_only=True):
    """`Workload.status`."""

    admission: Admission | None = None
    conditions: tuple[WorkloadCondition, ...] = ()
    reclaimable_pods: tuple[ReclaimablePod, ...] = ()

    def since(self, kind: str) -> str | None:
        """Return when a condition became true; None if it is not."""
        return next((c.last_transition_time for c in self.conditions if c.type == kind and c.status == "True"), None)


class WorkloadDocument(APIDocument, frozen=True, kw_only=True):
    """Pod sets that are admitted together."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()
