"""Kueue's feature gates, from `featureGates` of its Configuration: those that change an admission here.

Source: pkg/features/kube_features.go of Kueue 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Self

from dranode.api.errors import DocumentError


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
