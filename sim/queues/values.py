"""The parts of Kueue's objects that decide admission, and Kueue's feature gates.

Source: `kueue.x-k8s.io/v1beta2` (ClusterQueue, Cohort, ResourceFlavor, Workload), pkg/features/kube_features.go of
Kueue 0.20. Kueue counts `cpu` in thousandths and everything else in whole units, both rounded up. These numbers are
internal; documents and messages have quantities.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Any, Final, Literal, NamedTuple, Self

from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import APIDocument, DeviceTaint, DeviceToleration, NodeSelectorTerm

CPU: Final = "cpu"
_BINARY: Final = tuple(
    (suffix, 1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)
)
_IN_BYTES: Final = frozenset({"memory", "ephemeral-storage"})


def amount(resource: str, quantity: Quantity) -> int:
    """Return a quantity as Kueue counts it, rounded up: thousandths of a CPU, else bytes or pieces."""
    value = Fraction(quantity.value)
    return ceil(value * 1000 if resource == CPU else value)


def amount_text(resource: str, number: int) -> str:
    """Format a counted amount as a quantity: `2500m`, `16Gi`, `3`."""
    if resource == CPU:
        return str(number // 1000) if number % 1000 == 0 else f"{number}m"
    if number and resource in _IN_BYTES:
        for suffix, factor in reversed(_BINARY):
            if number % factor == 0:
                return f"{number // factor}{suffix}"
    return str(number)


@dataclass(frozen=True, slots=True)
class QueueGates:
    """Kueue's gates in snake case, with its defaults.

    Attributes:
        admission_gated_by: a workload with the annotation `kueue.x-k8s.io/admission-gated-by` waits.
        partial_admission: `minCount` is honored.
        priority_boost: the annotation `kueue.x-k8s.io/priority-boost` adds to the priority.
        priority_sorting_within_cohort: among workloads that borrow equally, a cycle sorts by priority before age.
        quota_check_strategy: `resources.quotaCheckStrategy` is honored.
        reclaimable_pods: `status.reclaimablePods` returns quota.
        workload_priority_class_defaulting: a Job without a class has the WorkloadPriorityClass `default`, if any.
    """

    admission_gated_by: bool = True
    partial_admission: bool = True
    priority_boost: bool = False
    priority_sorting_within_cohort: bool = True
    quota_check_strategy: bool = True
    reclaimable_pods: bool = True
    workload_priority_class_defaulting: bool = True

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read `featureGates` of a Configuration.

        Raises:
            DocumentError: Kueue has no such gate, or its value is not a boolean.
        """
        for name, value in settings.items():
            if name not in _SIMULATED and name not in _OTHERS:
                near = get_close_matches(name, (*_SIMULATED, *_OTHERS), 1)
                hint = f'; did you mean "{near[0]}"' if near else ""
                raise DocumentError(f'Kueue 0.20 has no feature gate "{name}"{hint}', f"featureGates.{name}")
            if not isinstance(value, bool):
                raise DocumentError(f"{value!r} is neither true nor false", f"featureGates.{name}")
        return cls(**{field: settings[name] for name, field in _SIMULATED.items() if name in settings})


_SIMULATED: Final = {"".join(map(str.title, gate.name.split("_"))): gate.name for gate in fields(QueueGates)}
# Gates that decide about admission but are not simulated, with their defaults.
_ON: Final = """
    AdmissionFairSharing ElasticJobsViaWorkloadSlices FlavorFungibility FlavorFungibilityPreserveScanProgress
    KueueDRAIntegration KueueDRAIntegrationExtendedResource KueueDRAIntegrationPartitionableDevices
    KueueDRARejectWorkloadsWhenDRADisabled ManagedJobsNamespaceSelectorAlwaysRespected MultiKueue
    RecomputeAssignmentUponPreemptionTargetsOverlap TopologyAwareScheduling
"""
_OFF: Final = "AllAlpha AllBeta ConcurrentAdmission KueueDRAIntegrationConsumableCapacity PrioritizePreemptorWorkloads"
_NOT_SIMULATED: Final = {**dict.fromkeys(_ON.split(), True), **dict.fromkeys(_OFF.split(), False)}
_WITHOUT_EFFECT_ON_ADMISSION: Final = """
    AssignQueueLabelsForPods CleanupProvisioningRequestsOnEviction CustomMetricLabels
    DeferRayServiceFinalizationForRedisCleanup DisableWaitForPodsReady ElasticJobsViaWorkloadSlicesWithTAS
    FailureRecoveryPolicy FairSharingPreemptWithinNominal FairSharingPrioritizeNonBorrowing
    FastQuotaReleaseInPodIntegration FinishOrphanedWorkloads LWSImmutableGroupSize LocalQueueMetrics
    MetricForWorkloadCreationLatency MetricsForCohorts MultiKueueAdaptersForCustomJobs MultiKueueClusterProfile
    MultiKueueIncrementalDispatcherConfig MultiKueueIncrementalDispatcherRespectConfigOrder
    MultiKueueKubeConfigPathValidation MultiKueueManagerQuotaAutomation MultiKueueOrchestratedPreemption
    MultiKueueRemoteSpecSync PodIntegrationValidateGroupOwner RejectUpdatesToCQWithInvalidOnFlavors
    RemoveFinalizersWithStrictPatch SchedulerLibraryIntegration SchedulingEquivalenceHashing ShortWorkloadNames
    SkipAncestorCheckForDeletedWorkloads SkipReassignmentForPodOwnedWorkloads SparkApplicationIntegration
    TASAssignmentsEncodingByHostnamePrefix TASBalancedPlacement TASCacheNodeMatchResults TASCacheTopologyTree
    TASCachingRemainingResources TASFailedNodeReplacement TASFailedNodeReplacementFailFast TASHandleOverlappingFlavors
    TASMultiLayerTopology TASProfileMixed TASRecomputeAssignmentWithinSchedulingCycle
    TASReplaceNodeDueToNotReadyOverFixedTime TASReplaceNodeOnNodeTaints TASReplaceNodeOnPodTermination
    TASRespectNodeAffinityPreferred TASValidateWorkloadSliceSize TLSOptions UnadmittedWorkloadsExplicitStatus
    UnadmittedWorkloadsObservability ValidateRayAndSparkJobUpdates VectorizedResourceRequests VisibilityOnDemand
    WorkloadIdentifierAnnotations WorkloadRequestUseMergePatch WorkloadValidateResourcesAreNonNegative
    WorkloadValidationForPodSetMetadata
"""
_OTHERS: Final = frozenset({*_NOT_SIMULATED, *_WITHOUT_EFFECT_ON_ADMISSION.split()})


def not_simulated_gates(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the gates of a Configuration that would change admission in a cluster, but are not simulated."""
    return tuple(name for name, default in _NOT_SIMULATED.items() if settings.get(name, default) is not default)


class FlavorResource(NamedTuple):
    """The unit of quota: a resource in a flavor."""

    flavor: str
    resource: str

    def __str__(self) -> str:
        return f'{self.resource} in flavor "{self.flavor}"'


class Fungible(StrEnum):
    """Whether a search over flavors may stop; v1beta1 writes MayStopSearch as `Borrow` and `Preempt`."""

    MAY_STOP_SEARCH = "MayStopSearch"
    TRY_NEXT_FLAVOR = "TryNextFlavor"


class Preference(StrEnum):
    """The preference between a flavor that borrows and one that preempts."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


# The workloads that a new workload may preempt, or take quota back from.
Policy = Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority", "Any"]


@dataclass(frozen=True, slots=True)
class Quota:
    """The amount of a resource in a flavor that a queue or cohort owns, with its limits; None means no limit."""

    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that a pod set gets from the same flavor; the flavors are in order of preference."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


class FlavorFungibility(APIDocument, frozen=True, kw_only=True):
    """`spec.flavorFungibility` of a ClusterQueue (KEP-582): when the search stops before the last flavor.

    Attributes:
        preference: which flavor is best if the search does not stop; None means BORROWING_OVER_PREEMPTION.
    """

    when_can_borrow: Fungible = Fungible.MAY_STOP_SEARCH
    when_can_preempt: Fungible = Fungible.TRY_NEXT_FLAVOR
    preference: Preference | None = None


class BorrowWithinCohort(APIDocument, frozen=True, kw_only=True):
    """`spec.preemption.borrowWithinCohort` of a ClusterQueue."""

    policy: Literal["Never", "LowerPriority"] = "Never"
    max_priority_threshold: int | None = None


class Preemption(APIDocument, frozen=True, kw_only=True):
    """`spec.preemption` of a ClusterQueue."""

    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = "Never"
    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] = "Never"
    borrow_within_cohort: BorrowWithinCohort = BorrowWithinCohort()


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """A queue with quota; `cohort` is empty if it has none."""

    name: str
    cohort: str
    groups: tuple[ResourceGroup, ...]
    quotas: Mapping[FlavorResource, Quota]
    fungibility: FlavorFungibility
    preemption: Preemption
    strict_fifo: bool

    def group_of(self, resource: str) -> ResourceGroup | None:
        """Return the group that covers a resource, if any."""
        return next((group for group in self.groups if resource in group.resources), None)


@dataclass(frozen=True, slots=True)
class Cohort:
    """Queues and cohorts that lend quota to each other; `parent` is empty at the root."""

    name: str
    parent: str = ""
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceFlavor:
    """A kind of node."""

    name: str
    node_labels: Mapping[str, str]
    node_taints: tuple[DeviceTaint, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSet:
    """Identical pods of a workload.

    Attributes:
        count: the number of pods that have not ended.
        requests: what one pod requests, by resource name.
        min_count: the smallest number of pods that the workload can start with.
        affinity: the terms of required node affinity, of which one has to match; empty without a requirement.
        ended: the number of pods that have ended, whose quota is free.
        group: all pod sets of a group get the same flavor; empty without a group.
    """

    name: str
    count: int
    requests: Mapping[str, int]
    min_count: int | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[NodeSelectorTerm, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()
    ended: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Pod sets that are admitted together or not at all.

    Attributes:
        key: `<namespace>/<name>`.
        queue: the ClusterQueue of its LocalQueue.
        created: its creation time in seconds; with equal priority, earlier workloads go first.
        inadmissible: why it cannot be admitted at all; empty if it can.
    """

    key: str
    queue: str
    priority: int
    created: float
    pod_sets: tuple[PodSet, ...]
    inadmissible: str = ""

    @property
    def label(self) -> str:
        """Return the key, without the namespace if that is `default`."""
        return self.key.removeprefix("default/")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A workload that holds quota.

    Attributes:
        flavors: the assigned flavor, by pod set and resource.
        counts: the number of admitted pods, by pod set.
        usage: what it counts against the quota of its queue.
        reserved: when it got its quota, in seconds; later workloads are preempted first.
        evicted: whether it is being evicted.
    """

    workload: Workload
    flavors: Mapping[str, Mapping[str, str]]
    counts: Mapping[str, int]
    usage: Mapping[FlavorResource, int]
    reserved: float = 0.0
    evicted: bool = False


@dataclass(frozen=True, slots=True)
class Queues:
    """The configuration of admission.

    Attributes:
        ignore_undeclared: `quotaCheckStrategy: IgnoreUndeclared`: resources that a queue does not cover are not
            limited.
        gates: Kueue's feature gates.
    """

    cluster_queues: Mapping[str, ClusterQueue]
    cohorts: Mapping[str, Cohort]
    flavors: Mapping[str, ResourceFlavor]
    ignore_undeclared: bool = False
    gates: QueueGates = field(default_factory=QueueGates)
