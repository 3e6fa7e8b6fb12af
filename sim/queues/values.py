"""Kueue's objects, as far as admission depends on them, as frozen values.

Source: `kueue.x-k8s.io/v1beta2` (ClusterQueue, Cohort, ResourceFlavor, Workload). Amounts are those of
`dranode.sim.queues.amounts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from dranode.api.resource import DeviceTaint, DeviceToleration, NodeSelectorTerm
from dranode.sim.queues.gates import QueueGates


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


@dataclass(frozen=True, slots=True)
class FlavorFungibility:
    """KEP-582: when the search stops before the last flavor, and what is best if it does not."""

    when_can_borrow: Fungible = Fungible.MAY_STOP_SEARCH
    when_can_preempt: Fungible = Fungible.TRY_NEXT_FLAVOR
    preference: Preference = Preference.BORROWING_OVER_PREEMPTION


@dataclass(frozen=True, slots=True)
class Preemption:
    """`spec.preemption`; `max_priority_threshold` is that of `borrowWithinCohort`."""

    within_cluster_queue: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    max_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """A queue with quota; `cohort` is empty where it belongs to none."""

    name: str
    cohort: str
    groups: tuple[ResourceGroup, ...]
    quotas: Mapping[FlavorResource, Quota]
    fungibility: FlavorFungibility = FlavorFungibility()
    preemption: Preemption = Preemption()
    strict_fifo: bool = False

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
