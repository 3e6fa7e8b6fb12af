"""The outcome of one look at the flavors of a queue, remembered for the next attempt until it no longer counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from dranode.sim.queues.values import FlavorResource, PodSet, Workload

LAST_FLAVOR = -1


class FlavorMode(IntEnum):
    """The ways in which a flavor can serve, worse to better."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """It would fit if others left, but there is no one whom the policies allow to preempt."""
    PREEMPT = 2
    RECLAIM = 3
    """Preemption of other queues alone, which use what is this queue's."""
    FIT = 4


@dataclass(frozen=True, slots=True)
class FlavorVerdict:
    """The way in which one resource, or at its worst a whole flavor, can be had.

    Attributes:
        borrow: how far up the tree quota comes from (`Usage.borrow_level`); 0 is no borrowing.
        why: the arithmetic, for people.
    """

    mode: FlavorMode
    borrow: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class FlavorAttempt:
    """One flavor that was looked at, with a verdict for each resource; `worst` stands for all of them."""

    flavor: str
    verdicts: Mapping[str, FlavorVerdict]
    worst: FlavorVerdict


@dataclass(frozen=True, slots=True)
class Scan:
    """The search through one resource group for one pod set.

    Attributes:
        resources: what the pod set asks for of the group.
        flavors: the group's flavors in order.
        attempts: those that were looked at, in order; none where no group covers the resource.
        chosen: the one that ended the search or was the best; None if none would ever fit.
        tried: index of the last flavor looked at, or LAST_FLAVOR if there is none after it.
    """

    resources: tuple[str, ...]
    flavors: tuple[str, ...] = ()
    attempts: tuple[FlavorAttempt, ...] = ()
    chosen: FlavorAttempt | None = None
    tried: int = LAST_FLAVOR
    why: str = ""

    @property
    def mode(self) -> FlavorMode:
        """Return how the pod set gets these resources. A search that looked at nothing has nothing against it."""
        if self.chosen is not None:
            return self.chosen.worst.mode
        return FlavorMode.NO_FIT if self.attempts or self.why else FlavorMode.FIT


@dataclass(frozen=True, slots=True)
class Assigned:
    """The flavor that a resource of a pod set gets."""

    flavor: str
    verdict: FlavorVerdict
    tried: int


@dataclass(frozen=True, slots=True)
class PodSetAssignment:
    """The searches for one pod set, or for its group; one resource group without a fitting flavor leaves it none."""

    pod_set: PodSet
    count: int
    scans: tuple[Scan, ...]

    @property
    def mode(self) -> FlavorMode:
        """The worst of its groups."""
        return min((scan.mode for scan in self.scans), default=FlavorMode.FIT)

    @property
    def flavors(self) -> Mapping[str, Assigned]:
        """By resource, what it gets."""
        if self.mode is FlavorMode.NO_FIT:
            return {}
        return {
            resource: Assigned(scan.chosen.flavor, verdict, scan.tried)
            for scan in self.scans
            if scan.chosen is not None
            for resource, verdict in scan.chosen.verdicts.items()
            if resource in self.pod_set.requests  # the search may have been for a whole group
        }


@dataclass(frozen=True, slots=True)
class Assignment:
    """The flavors of a workload; pod sets after one that does not fit are missing."""

    workload: Workload
    pod_sets: tuple[PodSetAssignment, ...]

    @property
    def mode(self) -> FlavorMode:
        """The worst of its pod sets."""
        return min((pod_set.mode for pod_set in self.pod_sets), default=FlavorMode.NO_FIT)

    @property
    def borrowing(self) -> int:
        """The furthest that anything is borrowed from."""
        return max((got.verdict.borrow for item in self.pod_sets for got in item.flavors.values()), default=0)

    @property
    def usage(self) -> Mapping[FlavorResource, int]:
        """Return what it would count against quota."""
        usage: dict[FlavorResource, int] = {}
        for item in self.pod_sets:
            for resource, got in item.flavors.items():
                of = FlavorResource(got.flavor, resource)
                usage[of] = usage.get(of, 0) + item.pod_set.requests[resource] * item.count
        return usage

    @property
    def contested(self) -> frozenset[FlavorResource]:
        """Return what others would have to give up."""
        return frozenset(
            FlavorResource(got.flavor, resource)
            for item in self.pod_sets
            for resource, got in item.flavors.items()
            if FlavorMode.NO_FIT < got.verdict.mode < FlavorMode.FIT
        )

    @property
    def tried(self) -> tuple[Mapping[str, int], ...]:
        """By pod set and resource, the index that the next attempt starts after."""
        return tuple({resource: got.tried for resource, got in item.flavors.items()} for item in self.pod_sets)


@dataclass(frozen=True, slots=True)
class Moment:
    """The time and the queues of an attempt.

    Attributes:
        generation: the ClusterQueue's, raised whenever more may have become available to it.
        cycle: the scheduling cycle's number.
        preserve_progress: Kueue's gate FlavorFungibilityPreserveScanProgress.
    """

    generation: int = 0
    cycle: int = 0
    preserve_progress: bool = True


@dataclass(frozen=True, slots=True)
class SearchState:
    """The places where the searches of an attempt ended.

    Attributes:
        tried: by pod set and resource, the index of the last flavor tried, LAST_FLAVOR for the last there is.
        generation: the ClusterQueue's generation then.
        cycle: the scheduling cycle's number then.
        shape: the shape of the workload then, by the function `shape`.
    """

    tried: tuple[Mapping[str, int], ...]
    generation: int
    cycle: int
    shape: tuple[object, ...] | None = None

    @classmethod
    def of(cls, assignment: Assignment, now: Moment) -> SearchState:
        """Return what an assignment leaves behind."""
        return cls(assignment.tried, now.generation, now.cycle, shape(assignment.workload))

    @property
    def pending_flavors(self) -> bool:
        """Return whether a search ended before the last flavor, so that another attempt may do better at once."""
        return any(index != LAST_FLAVOR for tried in self.tried for index in tried.values())


def shape(workload: Workload) -> tuple[object, ...]:
    """Return what the indices of a state depend on; equal values mean that they can be used again."""
    return (workload.priority, *workload.pod_sets)


def still_valid(last: SearchState, workload: Workload, now: Moment) -> bool:
    """Return whether a new attempt may go on where the last one ended.

    It may not once the workload has another shape. Otherwise it may in the cycle after the last one, whatever
    happened, and later unless the queue's generation has grown.
    """
    if now.preserve_progress:
        if last.shape is not None and last.shape != shape(workload):
            return False
        if now.cycle - last.cycle <= 1:
            return True
    return now.generation <= last.generation


def next_index(tried: Mapping[str, int], resource: str) -> int:
    """The index of the flavor that a search starts with; 0 if none was tried, or the last one."""
    return tried.get(resource, LAST_FLAVOR) + 1
