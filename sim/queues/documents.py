"""Kueue's objects as they are written: v1beta1 becomes v1beta2, and only v1beta2 exists further in.

Source: `kueue.x-k8s.io/v1beta1`, `kueue.x-k8s.io/v1beta2`, `config.kueue.x-k8s.io` (Configuration). Unknown fields are
dropped, as Kubernetes does, except a field that the other version has in place of one that decides something. Of a
Workload's pods what decides over flavor and quota is read.
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
    """A queue with quota."""

    metadata: ObjectMeta
    spec: ClusterQueueSpec = ClusterQueueSpec()


class CohortSpec(APIDocument, frozen=True, kw_only=True):
    """`Cohort.spec`."""

    parent_name: str = ""
    resource_groups: tuple[ResourceGroupSpec, ...] = ()


class CohortDocument(APIDocument, frozen=True, kw_only=True):
    """Queues that lend to each other."""

    metadata: ObjectMeta
    spec: CohortSpec = CohortSpec()


class ResourceFlavorSpec(APIDocument, frozen=True, kw_only=True):
    """`ResourceFlavor.spec`; taints and tolerations of nodes have the form of those of devices."""

    node_labels: Mapping[str, str] = {}
    node_taints: tuple[DeviceTaint, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()


class ResourceFlavorDocument(APIDocument, frozen=True, kw_only=True):
    """A kind of nodes."""

    metadata: ObjectMeta
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class LocalQueueSpec(APIDocument, frozen=True, kw_only=True):
    """`LocalQueue.spec`."""

    cluster_queue: str
    stop_policy: str = "None"


class LocalQueueDocument(APIDocument, frozen=True, kw_only=True):
    """A namespace's door to a ClusterQueue."""

    metadata: ObjectMeta
    spec: LocalQueueSpec


class DeviceClassMapping(APIDocument, frozen=True, kw_only=True):
    """`resources.deviceClassMappings[]`: the name under which quota counts the devices of some classes."""

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
    """Kueue's Configuration; the mappings may also stand at its top."""

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
    """The value of one of Kueue's documents; None if it is something else.

    Raises:
        DocumentError: the document does not fit, or its version is not v1beta1 or v1beta2.
    """
    group, _, version = str(document.get("apiVersion", "")).rpartition("/")
    kind = DOCUMENTS.get(str(document.get("kind")))
    if group not in (API_GROUP, CONFIG_GROUP) or kind is None:
        return None
    if version not in _VERSIONS:
        raise DocumentError(f'{group} is read as v1beta1 and v1beta2, not as "{version}"', "apiVersion")
    return decode(kind, _to_v1beta2(without_nulls(document), version))


def _to_v1beta2(document: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    spec = document.get("spec")
    if document.get("kind") != "ClusterQueue" or not isinstance(spec, Mapping):
        return document
    own, other = _RENAMED[version]
    if other in spec:
        raise DocumentError(f"{version} calls this field {own}", f"spec.{other}")
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
