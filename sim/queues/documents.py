"""Kueue's documents. v1beta1 is converted to v1beta2, so that other modules only see v1beta2.

Source: `kueue.x-k8s.io/v1beta1`, `kueue.x-k8s.io/v1beta2`, `config.kueue.x-k8s.io` (Configuration). Unknown fields are
found by `setup.not_simulated`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta

from dranode.api.documents import decode, without_nulls
from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import APIDocument, DeviceTaint, DeviceToleration, ObjectMeta
from dranode.sim.queues.values import FlavorFungibility, Fungible, Preemption
from dranode.sim.scheduler.documents import LabelSelector, SchedulingPodSpec

T = TypeVar("T")
Some = Annotated[tuple[T, ...], Meta(min_length=1, max_length=64)]
StopPolicy = Literal["None", "Hold", "HoldAndDrain"]


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
    """`Workload.spec`."""

    pod_sets: Annotated[tuple[PodSetSpec, ...], Meta(min_length=1, max_length=18)]
    queue_name: str = ""
    priority: int | None = None
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
    reason: str = ""
    last_transition_time: str = ""


class ReclaimablePod(APIDocument, frozen=True, kw_only=True):
    """`status.reclaimablePods[]`: how many pods of a pod set have ended, so that their quota is free."""

    name: str
    count: int


class RequeueState(APIDocument, frozen=True, kw_only=True):
    """`status.requeueState`."""

    requeue_at: str = ""


class WorkloadStatus(APIDocument, frozen=True, kw_only=True):
    """`Workload.status`."""

    admission: Admission | None = None
    conditions: tuple[WorkloadCondition, ...] = ()
    reclaimable_pods: tuple[ReclaimablePod, ...] = ()
    requeue_state: RequeueState = RequeueState()

    def since(self, kind: str, reasons: tuple[str, ...] = ()) -> str | None:
        """Return when a condition became true (for one of the reasons, if there are any); None if it is not true."""
        met = (c for c in self.conditions if c.type == kind and c.status == "True")
        return next((c.last_transition_time for c in met if not reasons or c.reason in reasons), None)

    @property
    def quota(self) -> Admission | None:
        """Return the quota that the workload holds; none if the condition QuotaReserved says that it was taken back."""
        lost = any(c.type == "QuotaReserved" and c.status != "True" for c in self.conditions)
        return None if lost else self.admission

    @property
    def holds_back(self) -> str:
        """Return why a workload without quota is not in its queue; empty if it is."""
        if any(c.type == "QuotaReserved" and c.status == "False" and c.reason == "OnHold" for c in self.conditions):
            return "it is on hold (condition QuotaReserved)"
        if self.since("WaitingForReplacementPods") is not None:
            return "it waits for replacement pods (condition WaitingForReplacementPods)"
        again = self.requeue_state.requeue_at
        return f"it was evicted and is not queued again before {again} (status.requeueState)" if again else ""


class WorkloadDocument(APIDocument, frozen=True, kw_only=True):
    """`Workload`: pod sets that are admitted together."""

    metadata: ObjectMeta
    spec: WorkloadSpec
    status: WorkloadStatus = WorkloadStatus()


API_GROUP: Final = "kueue.x-k8s.io"
CONFIG_GROUP: Final = "config.kueue.x-k8s.io"
_VERSIONS: Final = ("v1beta1", "v1beta2")
_STOP_IN_V1BETA1: Final = ("Borrow", "Preempt")
_PRIORITY_KINDS: Final = {
    "kueue.x-k8s.io/workloadpriorityclass": {"kind": "WorkloadPriorityClass"},
    "scheduling.k8s.io/priorityclass": {"kind": "PriorityClass"},
}


class ResourceQuotaSpec(APIDocument, frozen=True, kw_only=True):
    """`resourceGroups[].flavors[].resources[]`."""

    name: str
    nominal_quota: Quantity
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotasSpec(APIDocument, frozen=True, kw_only=True):
    """`resourceGroups[].flavors[]`."""

    name: str
    resources: Some[ResourceQuotaSpec]


class ResourceGroupSpec(APIDocument, frozen=True, kw_only=True):
    """`resourceGroups[]`."""

    covered_resources: Some[str]
    flavors: Some[FlavorQuotasSpec]


class ClusterQueueSpec(APIDocument, frozen=True, kw_only=True):
    """`ClusterQueue.spec`."""

    cohort_name: str = ""
    namespace_selector: LabelSelector | None = None
    resource_groups: tuple[ResourceGroupSpec, ...] = ()
    queueing_strategy: Literal["BestEffortFIFO", "StrictFIFO"] = "BestEffortFIFO"
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    preemption: Preemption = Preemption()
    stop_policy: StopPolicy = "None"


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


class FlavorTaint(DeviceTaint, frozen=True, kw_only=True):
    """`ResourceFlavor.spec.nodeTaints[]`; taints of nodes and devices have the same fields."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class FlavorToleration(DeviceToleration, frozen=True, kw_only=True):
    """`ResourceFlavor.spec.tolerations[]`."""

    operator: Literal["", "Equal", "Exists"] = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class ResourceFlavorSpec(APIDocument, frozen=True, kw_only=True):
    """`ResourceFlavor.spec`."""

    node_labels: Mapping[str, str] = {}
    node_taints: tuple[FlavorTaint, ...] = ()
    tolerations: tuple[FlavorToleration, ...] = ()


class ResourceFlavorDocument(APIDocument, frozen=True, kw_only=True):
    """`ResourceFlavor`: a kind of node."""

    metadata: ObjectMeta
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class LocalQueueSpec(APIDocument, frozen=True, kw_only=True):
    """`LocalQueue.spec`."""

    cluster_queue: str
    stop_policy: StopPolicy = "None"


class LocalQueueDocument(APIDocument, frozen=True, kw_only=True):
    """`LocalQueue`: a queue of a namespace, which feeds a ClusterQueue."""

    metadata: ObjectMeta
    spec: LocalQueueSpec


class DeviceClassMapping(APIDocument, frozen=True, kw_only=True):
    """`resources.deviceClassMappings[]`: the resource name under which quota counts the devices of some classes."""

    name: str
    device_class_names: Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
    sources: tuple[Any, ...] = ()


class ConfigurationResources(APIDocument, frozen=True, kw_only=True):
    """`resources`."""

    device_class_mappings: Annotated[tuple[DeviceClassMapping, ...], Meta(max_length=16)] = ()
    quota_check_strategy: Literal["BlockUndeclared", "IgnoreUndeclared"] = "BlockUndeclared"


class PriorityClassDocument(APIDocument, frozen=True, kw_only=True):
    """A WorkloadPriorityClass of Kueue, or a PriorityClass of Kubernetes."""

    kind: str
    metadata: ObjectMeta
    value: int


class ConfigurationDocument(APIDocument, frozen=True, kw_only=True):
    """Kueue's `Configuration`."""

    resources: ConfigurationResources = ConfigurationResources()
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
    known = kueue_document(document)
    return None if known is None else decode(*known)


def kueue_document(document: Mapping[str, Any]) -> tuple[type[APIDocument], Mapping[str, Any]] | None:
    """Return the type and the v1beta2 form of one of Kueue's documents; None for another document.

    Raises:
        DocumentError: its version is neither v1beta1 nor v1beta2, or it is v1beta1 with a field of v1beta2.
    """
    group, _, version = str(document.get("apiVersion", "")).rpartition("/")
    kind = DOCUMENTS.get(str(document.get("kind")))
    if group not in (API_GROUP, CONFIG_GROUP) or kind is None:
        return None
    if version not in _VERSIONS:
        raise DocumentError(f'{group} is supported as v1beta1 and v1beta2, not as "{version}"', "apiVersion")
    return kind, _to_v1beta2(without_nulls(document), version)


def _to_v1beta2(document: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    spec, kind = document.get("spec"), document.get("kind")
    if kind == "Configuration" and version == "v1beta1" and isinstance(shares := document.get("fairSharing"), Mapping):
        # In v1beta2, fair sharing is on if the field exists.
        return {**document, "fairSharing": shares if shares.get("enable") else None}
    if not isinstance(spec, Mapping):
        return document
    if kind == "Workload" and version == "v1beta1" and "priorityClassName" in spec:
        rest = {key: value for key, value in spec.items() if key not in ("priorityClassName", "priorityClassSource")}
        origin = _PRIORITY_KINDS.get(spec.get("priorityClassSource") or "", {})
        return {**document, "spec": {**rest, "priorityClassRef": {**origin, "name": spec["priorityClassName"]}}}
    if kind != "ClusterQueue" or version == "v1beta2":
        return document
    if "cohortName" in spec:
        raise DocumentError("v1beta1 calls this field cohort", "spec.cohortName")
    converted = {"cohortName" if key == "cohort" else key: value for key, value in spec.items()}
    fungibility = spec.get("flavorFungibility")
    if isinstance(fungibility, Mapping):
        converted["flavorFungibility"] = {
            key: Fungible.MAY_STOP_SEARCH.value if value in _STOP_IN_V1BETA1 else value
            for key, value in fungibility.items()
        }
    return {**document, "spec": converted}
