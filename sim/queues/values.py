"""Kueue's objects, as far as admission depends on them, as frozen values, with its feature gates.

Source: `kueue.x-k8s.io/v1beta2` (ClusterQueue, Cohort, ResourceFlavor, Workload), pkg/features/kube_features.go of
Kueue 0.20. Kueue counts `cpu` in thousandths and everything else in whole units, both rounded up, so that the sum of
what fits is what fits. These numbers are internal: people read and write quantities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Any, Final, NamedTuple, Self

from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import APIDocument, DeviceTaint, DeviceToleration, NodeSelectorTerm

CPU: Final = "cpu"
_BINARY: Final = tuple((suffix, 1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1))
_IN_BYTES: Final = frozenset({"memory", "ephemeral-storage"})


def amount(resource: str, quantity: Quantity) -> int:
    """The number that stands for a quantity of a resource, rounded up: thousandths of a CPU, else bytes or pieces."""
    value = Fraction(quantity.value)
    return ceil(value * 1000 if resource == CPU else value)


def amount_text(resource: str, number: int) -> str:
    """The quantity that a number stands for, as people write it: `2500m`, `16Gi`, `3`."""
    if resource == CPU:
        return str(number // 1000) if number % 1000 == 0 else f"{number}m"
    if number and resource in _IN_BYTES:
        for suffix, factor in reversed(_BINARY):
            if number % factor == 0:
                return f"{number // factor}{suffix}"
    return str(number)


@dataclass(frozen=True, slots=True)
class QueueGates:
    """The gates by Kueue's names in snake case, with its defaults.

    Attributes:
        admission_gated_by: a workload with the annotation `kueue.x-k8s.io/admission-gated-by` waits.
        partial_admission: `minCount` counts.
        priority_boost: the annotation `kueue.x-k8s.io/priority-boost` adds to the priority.
        priority_sorting_within_cohort: of those that borrow alike, the greater priority goes first in a cycle.
        quota_check_strategy: `resources.quotaCheckStrategy` counts.
        reclaimable_pods: `status.reclaimablePods` gives quota back.
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
        """Take over what a Configuration sets.

        Raises:
            DocumentError: Kueue has no such gate, or its value is not a boolean; the error says where.
        """
        for name, value in settings.items():
            if name not in _SIMULATED and name not in _OTHERS:
                near = get_close_matches(name, (*_SIMULATED, *_OTHERS), 1)
                hint = f'; did you mean "{near[0]}"' if near else ""
                raise DocumentError(f'Kueue has no feature gate "{name}"{hint}', f"featureGates.{name}")
            if not isinstance(value, bool):
                raise DocumentError(f"{value!r} is neither true nor false", f"featureGates.{name}")
        return cls(**{field: settings[name] for name, field in _SIMULATED.items() if name in settings})


_SIMULATED: Final[Mapping[str, str]] = {
    "AdmissionGatedBy": "admission_gated_by",
    "PartialAdmission": "partial_admission",
    "PriorityBoost": "priority_boost",
    "PrioritySortingWithinCohort": "priority_sorting_within_cohort",
    "QuotaCheckStrategy": "quota_check_strategy",
    "ReclaimablePods": "reclaimable_pods",
    "WorkloadPriorityClassDefaulting": "workload_priority_class_defaulting",
}
# Those that decide over admission and are not simulated, with what they are when nothing is said.
_NOT_SIMULATED: Final[Mapping[str, bool]] = {
    "AdmissionFairSharing": True,
    "ConcurrentAdmission": False,
    "ElasticJobsViaWorkloadSlices": True,
    "FlavorFungibility": True,
    "FlavorFungibilityPreserveScanProgress": True,
    "KueueDRAIntegration": True,
    "KueueDRAIntegrationConsumableCapacity": False,
    "KueueDRAIntegrationExtendedResource": True,
    "KueueDRAIntegrationPartitionableDevices": True,
    "KueueDRARejectWorkloadsWhenDRADisabled": True,
    "ManagedJobsNamespaceSelectorAlwaysRespected": True,
    "MultiKueue": True,
    "PrioritizePreemptorWorkloads": False,
    "RecomputeAssignmentUponPreemptionTargetsOverlap": True,
    "TopologyAwareScheduling": True,
}
_ABOUT_OTHER_THINGS: Final = """
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
_OTHERS: Final = frozenset({*_NOT_SIMULATED, *_ABOUT_OTHER_THINGS.split()})


def not_simulated_gates(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The gates of a Configuration that would change admissions in a cluster, and change nothing here."""
    return tuple(name for name, default in _NOT_SIMULATED.items() if settings.get(name, default) is not default)


class FlavorResource(NamedTuple):
    """The unit of quota: a resource in a flavor."""

    flavor: str
    resource: str

    def __str__(self) -> str:
        return f'{self.resource} in flavor "{self.flavor}"'


class Fungible(StrEnum):
    """The setting whether a search over flavors may stop; v1beta1 spells the first `Borrow` and `Preempt`."""

    MAY_STOP_SEARCH = "MayStopSearch"
    TRY_NEXT_FLAVOR = "TryNextFlavor"


class Preference(StrEnum):
    """The preference between two flavors where one borrows and the other preempts."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


class PreemptionPolicy(StrEnum):
    """The workloads that may be preempted, seen from the one that comes in."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    ANY = "Any"


@dataclass(frozen=True, slots=True)
class Quota:
    """The amount of a resource in a flavor that a queue or cohort owns, and how much of it is lent and borrowed.

    A limit of None is no limit.
    """

    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that a pod set gets in one and the same flavor; the flavors stand in order of preference."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


class FlavorFungibility(APIDocument, frozen=True, kw_only=True):
    """`spec.flavorFungibility` of a ClusterQueue (KEP-582): when the search stops before the last flavor.

    Attributes:
        preference: which flavor is best if the search does not stop; None is BORROWING_OVER_PREEMPTION.
    """

    when_can_borrow: Fungible = Fungible.MAY_STOP_SEARCH
    when_can_preempt: Fungible = Fungible.TRY_NEXT_FLAVOR
    preference: Preference | None = None


class BorrowWithinCohort(APIDocument, frozen=True, kw_only=True):
    """`spec.preemption.borrowWithinCohort` of a ClusterQueue."""

    policy: PreemptionPolicy = PreemptionPolicy.NEVER
    max_priority_threshold: int | None = None


class Preemption(APIDocument, frozen=True, kw_only=True):
    """`spec.preemption` of a ClusterQueue."""

    within_cluster_queue: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_within_cohort: BorrowWithinCohort = BorrowWithinCohort()


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """A queue with quota; `cohort` is empty where it belongs to none."""

    name: str
    cohort: str
    groups: tuple[ResourceGroup, ...]
    quotas: Mapping[FlavorResource, Quota]
    fungibility: FlavorFungibility
    preemption: Preemption
    strict_fifo: bool

    def group_of(self, resource: str) -> ResourceGroup | None:
        """The group that covers a resource, if any."""
        return next((group for group in self.groups if resource in group.resources), None)


@dataclass(frozen=True, slots=True)
class Cohort:
    """Queues and cohorts that lend to each other; `parent` is empty at the root."""

    name: str
    parent: str = ""
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceFlavor:
    """A kind of nodes. Taints and tolerations of nodes have the form of those of devices."""

    name: str
    node_labels: Mapping[str, str]
    node_taints: tuple[DeviceTaint, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one shape.

    Attributes:
        count: its pods that have not ended.
        requests: what one pod asks for, by resource name.
        min_count: the least number of pods that the workload can start with.
        affinity: required node affinity; one of the terms must hold, none is no requirement.
        ended: its pods that have ended, whose quota may go to others.
        group: the pod sets of one group get one flavor; empty: it gets its own.
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
        queue: the ClusterQueue behind its LocalQueue.
        created: when it was made, in seconds; earlier ones go first among those of equal priority.
        inadmissible: why no quota can be counted for it; empty if it can.
    """

    key: str
    queue: str
    priority: int
    created: float
    pod_sets: tuple[PodSet, ...]
    inadmissible: str = ""

    @property
    def label(self) -> str:
        """Return what people call it: the name alone in the namespace `default`."""
        return self.key.removeprefix("default/")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A workload that holds quota.

    Attributes:
        flavors: by pod set and resource, the flavor that it was given.
        counts: by pod set, the pods that it was admitted with.
        usage: what it counts against the quota of its queue.
        reserved: when it got its quota, in seconds; later ones are preempted first.
        evicted: it is on its way out.
    """

    workload: Workload
    flavors: Mapping[str, Mapping[str, str]]
    counts: Mapping[str, int]
    usage: Mapping[FlavorResource, int]
    reserved: float = 0.0
    evicted: bool = False


@dataclass(frozen=True, slots=True)
class Queues:
    """The configuration that admission works with.

    Attributes:
        fair_sharing: preemption while borrowing needs no `borrowWithinCohort`.
        ignore_undeclared: `quotaCheckStrategy: IgnoreUndeclared`; a resource that the queue does not cover is free.
        gates: Kueue's feature gates.
    """

    cluster_queues: Mapping[str, ClusterQueue]
    cohorts: Mapping[str, Cohort]
    flavors: Mapping[str, ResourceFlavor]
    fair_sharing: bool = False
    ignore_undeclared: bool = False
    gates: QueueGates = field(default_factory=QueueGates)
