"""Kueue's documents. v1beta1 is converted to v1beta2, so that other modules only see v1beta2.

Source: `kueue.x-k8s.io/v1beta1`, `kueue.x-k8s.io/v1beta2`, `config.kueue.x-k8s.io` (Configuration). Unknown fields are
ignored, as in Kubernetes, but a field with the name from the other version is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dranode.api.documents import decode, without_nulls
from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import (
    APIDocument,
    DeviceTaint,
    DeviceToleration,
    ObjectMeta,
)
from dranode.sim.queues.values import FlavorFungibility, Fungible, Preemption
from dranode.sim.scheduler.documents import LabelSelector, SchedulingPodSpec


class PodTemplate(APIDocument, frozen=True, kw_only=True):
    """`podSets[].template`."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SchedulingPodSpec = SchedulingPodSpec()


class TopologyRequest(APIDocument, frozen=True, kw_only=True):
    """`podSets[].topologyRequest`; all pod sets of a group get the same flavor."""

    pod_set_group_name: str | None = None


class PodSetSpec(APIDocument, frozen=True, kw_only=True):
    """`podSets[]`."""

    name: str = "main"
    count: int = 1
    min_count: int | None = None
    template: PodTemplate = PodTemplate()
    topology_request: TopologyRequest = TopologyRequest()


class WorkloadSpec(APIDocument, frozen=True, kw_only=True):
    """`Workload.spec`; the priority class is `priorityClassName` in v1beta1 and `priorityClassRef` in v1beta2."""

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
    """`status.reclaimablePods[]`: how many pods of a pod set have ended, so that their quota is free."""

    name: str
    count: int


class WorkloadStatus(APIDocument, frozen=True, kw_only=True):
    """`Workload.status`."""

    admission: Admission | None = None
    conditions: tuple[WorkloadCondition, ...] = ()
    reclaimable_pods: tuple[ReclaimablePod, ...] = ()

    def since(self, kind: str) -> str | None:
        """Return when a condition became true; None if it is not true."""
        return next((c.last_transition_time for c in self.conditions if c.type == kind and c.status == "True"), None)


class WorkloadDocument(APIDocument, frozen=True, kw_only=True):
    """`Workload`: pod sets that are admitted together."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


API_GROUP: Final = "kueue.x-k8s.io"
CONFIG_GROUP: Final = "config.kueue.x-k8s.io"
_VERSIONS: Final = ("v1beta1", "v1beta2")
_RENAMED: Final = {"v1beta1": ("cohort", "cohortName"), "v1beta2": ("cohortName", "cohort")}
_STOP_IN_V1BETA1: Final = ("Borrow", "Preempt")


class ResourceQuotaSpec(APIDocument, frozen=True, kw_only=True):
    """`resourceGroups[].flavors[].resources[]`."""

    name: str
    nominal_quota: Quantity
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotasSpec(APIDocument, frozen=True, kw_only=True):
    """`resourceGroups[].flavors[]`."""

    name: str
    resources: tuple[ResourceQuotaSpec, ...] = ()


class ResourceGroupSpec(APIDocument, frozen=True, kw_only=True):
    """`resourceGroups[]`."""

    covered_resources: tuple[str, ...]
    flavors: tuple[FlavorQuotasSpec, ...] = ()


class ClusterQueueSpec(APIDocument, frozen=True, kw_only=True):
    """`ClusterQueue.spec`."""

    cohort_name: str = ""
    namespace_selector: LabelSelector | None = None
    resource_groups: tuple[ResourceGroupSpec, ...] = ()
    queueing_strategy: str = ""
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    preemption: Preemption = Preemption()
    stop_policy: str = "None"


class ClusterQueueDocument(APIDocument, frozen=True, kw_only=True):
    """`ClusterQueue`: a queue with quota."""

    metadata: ObjectMeta
    spec: ClusterQueueSpec = ClusterQueueSpec()


class CohortSpec(APIDocument, frozen=True, kw_only=True):
    """`Cohort.spec`."""

    parent_name: str = ""
    resource_groups: tuple[ResourceGroupSpec, ...] = ()


class CohortDocument(APIDocument, frozen=True, kw_only=True):
    """`Cohort`: queues that lend quota to each other."""

    metadata: ObjectMeta
    spec: CohortSpec = CohortSpec()


class ResourceFlavorSpec(APIDocument, frozen=True, kw_only=True):
    """`ResourceFlavor.spec`; taints and tolerations of nodes and devices have the same fields."""

    node_labels: Mapping[str, str] = {}
    node_taints: tuple[DeviceTaint, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()


class ResourceFlavorDocument(APIDocument, frozen=True, kw_only=True):
    """`ResourceFlavor`: a kind of node."""

    metadata: ObjectMeta
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class LocalQueueSpec(APIDocument, frozen=True, kw_only=True):
    """`LocalQueue.spec`."""

    cluster_queue: str
    stop_policy: str = "None"


class LocalQueueDocument(APIDocument, frozen=True, kw_only=True):
    """`LocalQueue`: a queue of a namespace, which feeds a ClusterQueue."""

    metadata: ObjectMeta
    spec: LocalQueueSpec


class DeviceClassMapping(APIDocument, frozen=True, kw_only=True):
    """`resources.deviceClassMappings[]`: the resource name under which quota counts the devices of some classes."""

    name: str
    device_class_names: tuple[str, ...]
    sources: tuple[Any, ...] = ()


class ConfigurationResources(APIDocument, frozen=True, kw_only=True):
    """`resources`."""

    device_class_mappings: tuple[DeviceClassMapping, ...] = ()
    quota_check_strategy: str = "BlockUndeclared"


class PriorityClassDocument(APIDocument, frozen=True, kw_only=True):
    """A WorkloadPriorityClass of Kueue, or a PriorityClass of Kubernetes."""

    kind: str
    metadata: ObjectMeta
    value: int


class ConfigurationDocument(APIDocument, frozen=True, kw_only=True):
    """Kueue's `Configuration`; `deviceClassMappings` may also be at its top level."""

    resources: ConfigurationResources = ConfigurationResources()
    device_class_mappings: tuple[DeviceClassMapping, ...] = ()
    fair_sharing: Any = None
    feature_gates: Mapping[str, Any] = {}


DOCUMENTS: Final[dict[str, type[APIDocument]]] = {
    "ClusterQueue": ClusterQueueDocument,
    "Cohort": CohortDocument,
    "ResourceFlavor": ResourceFlavorDocument,
    "LocalQueue": LocalQueueDocument,
    "Workload": WorkloadDocument,
    "WorkloadPriorityClass": PriorityClassDocument,
    "Configuration": ConfigurationDocument,
}


def read_document(document: Mapping[str, Any]) -> APIDocument | None:
    """Decode one of Kueue's documents; return None for another document.

    Raises:
        DocumentError: the document does not decode, or its version is neither v1beta1 nor v1beta2.
    """
    group, _, version = str(document.get("apiVersion", "")).rpartition("/")
    kind = DOCUMENTS.get(str(document.get("kind")))
    if group not in (API_GROUP, CONFIG_GROUP) or kind is None:
        return None
    if version not in _VERSIONS:
        raise DocumentError(f'{group} is supported as v1beta1 and v1beta2, not as "{version}"', "apiVersion")
    return decode(kind, _to_v1beta2(without_nulls(document), version))


def _to_v1beta2(document: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    spec = document.get("spec")
    if document.get("kind") != "ClusterQueue" or not isinstance(spec, Mapping):
        return document
    name, foreign_name = _RENAMED[version]
    if foreign_name in spec:
        raise DocumentError(f"{version} calls this field {name}", f"spec.{foreign_name}")
    if version == "v1beta2":
        return document
    converted = {**spec, "cohortName": spec.get("cohort", "")}
    fungibility = spec.get("flavorFungibility")
    if isinstance(fungibility, Mapping):
        converted["flavorFungibility"] = {
            key: Fungible.MAY_STOP_SEARCH.value if value in _STOP_IN_V1BETA1 else value
            for key, value in fungibility.items()
        }
    return {**document, "spec": converted}
