"""Assigns flavors to a workload (KEP-582), as a pure function.

For each pod set (or all pod sets with one `podSetGroupName`) and each resource group, the flavors are tried in order,
starting after the last one tried before. In each flavor, a resource fits, fits by borrowing, fits after preemption, or
does not fit; the worst resource decides for the flavor. `flavorFungibility` says which result ends the search. If none
does, the best flavor is used, or the first of several equal ones.

Kueue 0.20 does more than the KEP says: A flavor without preemption candidates never ends a search. One that preempts
while it borrows ends it only if both policies allow that. Flavors are ranked by fit, reclaim, preempt, no candidates,
and then by the distance in the cohort tree from which quota is borrowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from dranode.api.resource import Node, NodeSelector, NodeSelectorTerm, ObjectMeta
from dranode.sim.allocator.pools import selects
from dranode.sim.allocator.taint_rules import tolerates
from dranode.sim.queues.quota import Usage
from dranode.sim.queues.values import (
    ClusterQueue,
    FlavorFungibility,
    FlavorResource,
    Fungible,
    PodSet,
    Preference,
    Queues,
    ResourceFlavor,
    ResourceGroup,
    Workload,
    amount_text,
)

LAST_FLAVOR = -1


class FlavorMode(IntEnum):
    """How a flavor can serve a workload, from worst to best."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """It would fit after preemption, but the policies allow no workload to be preempted."""
    PREEMPT = 2
    RECLAIM = 3
    """Preemption only in other queues, which use quota of this queue."""
    FIT = 4


@dataclass(frozen=True, slots=True)
class FlavorVerdict:
    """The result for one resource, or for a flavor (that of its worst resource).

    Attributes:
        borrow: from how far up the tree quota is borrowed (`Usage.borrow_level`); 0 means no borrowing.
        why: the arithmetic, for people.
    """

    mode: FlavorMode
    borrow: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class FlavorAttempt:
    """A flavor that was tried, with the verdict for each resource and the worst of them."""

    flavor: str
    verdicts: Mapping[str, FlavorVerdict]
    worst: FlavorVerdict


@dataclass(frozen=True, slots=True)
class Scan:
    """The search through one resource group for one pod set.

    Attributes:
        resources: the resources of the group that the pod set requests.
        flavors: the group's flavors in order.
        attempts: the flavors that were tried, in order; empty if no group covers the resource.
        chosen: the flavor that ended the search or was the best; None if none can ever fit.
        tried: the index of the last flavor tried, or LAST_FLAVOR if it is the last of the group.
        why: why no flavor was tried; empty otherwise.
    """

    resources: tuple[str, ...]
    flavors: tuple[str, ...] = ()
    attempts: tuple[FlavorAttempt, ...] = ()
    chosen: FlavorAttempt | None = None
    tried: int = LAST_FLAVOR
    why: str = ""

    @property
    def mode(self) -> FlavorMode:
        """Return how the pod set gets these resources; FIT if there was nothing to search for."""
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
    """The searches for one pod set or its group; without a flavor in one resource group, it gets no flavor at all."""

    pod_set: PodSet
    count: int
    scans: tuple[Scan, ...]

    @property
    def mode(self) -> FlavorMode:
        """Return the worst mode of its resource groups."""
        return min((scan.mode for scan in self.scans), default=FlavorMode.FIT)

    @property
    def flavors(self) -> Mapping[str, Assigned]:
        """Return the flavor of each resource."""
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
    """The flavors of a workload; pod sets after the first that does not fit are left out."""

    workload: Workload
    pod_sets: tuple[PodSetAssignment, ...]

    @property
    def mode(self) -> FlavorMode:
        """Return the worst mode of its pod sets."""
        return min((pod_set.mode for pod_set in self.pod_sets), default=FlavorMode.NO_FIT)

    @property
    def borrowing(self) -> int:
        """Return the greatest distance from which quota is borrowed."""
        return max((flavor.verdict.borrow for item in self.pod_sets for flavor in item.flavors.values()), default=0)

    @property
    def usage(self) -> Mapping[FlavorResource, int]:
        """Return what the workload would count against quota."""
        usage: dict[FlavorResource, int] = {}
        for item in self.pod_sets:
            for resource, assigned in item.flavors.items():
                of = FlavorResource(assigned.flavor, resource)
                usage[of] = usage.get(of, 0) + item.pod_set.requests[resource] * item.count
        return usage

    @property
    def contested(self) -> frozenset[FlavorResource]:
        """Return the resources for which other workloads would have to be preempted."""
        return frozenset(
            FlavorResource(assigned.flavor, resource)
            for item in self.pod_sets
            for resource, assigned in item.flavors.items()
            if FlavorMode.NO_FIT < assigned.verdict.mode < FlavorMode.FIT
        )

    @property
    def tried(self) -> tuple[Mapping[str, int], ...]:
        """Return the index that the next attempt starts after, by pod set and resource."""
        return tuple(
            {resource: assigned.tried for resource, assigned in item.flavors.items()} for item in self.pod_sets
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment of an attempt.

    Attributes:
        generation: a counter of the ClusterQueue, which grows whenever more quota may have become available to it.
        cycle: the number of the scheduling cycle.
        preserve_progress: Kueue's gate FlavorFungibilityPreserveScanProgress.
    """

    generation: int = 0
    cycle: int = 0
    preserve_progress: bool = True


@dataclass(frozen=True, slots=True)
class SearchState:
    """Where the searches of an attempt ended.

    Attributes:
        tried: the index of the last flavor tried, by pod set and resource; LAST_FLAVOR for the last of the group.
        generation: the ClusterQueue's generation at that time.
        cycle: the scheduling cycle at that time.
        shape: the workload's `shape` at that time.
    """

    tried: tuple[Mapping[str, int], ...]
    generation: int
    cycle: int
    shape: tuple[object, ...] | None = None

    @classmethod
    def of(cls, assignment: Assignment, moment: Moment) -> SearchState:
        """Return the state after an assignment."""
        return cls(assignment.tried, moment.generation, moment.cycle, shape(assignment.workload))

    @property
    def pending_flavors(self) -> bool:
        """Return whether a search ended before the last flavor, so that another attempt makes sense at once."""
        return any(index != LAST_FLAVOR for tried in self.tried for index in tried.values())


def shape(workload: Workload) -> tuple[object, ...]:
    """Return a value that is equal as long as the indices of a state stay meaningful."""
    return (workload.priority, *workload.pod_sets)


def still_valid(last: SearchState, workload: Workload, moment: Moment) -> bool:
    """Return whether a new attempt may continue where the last one ended.

    It may not if the workload's shape changed. Otherwise it may in the next cycle, and in later cycles unless the
    queue's generation has grown.
    """
    if moment.preserve_progress:
        if last.shape is not None and last.shape != shape(workload):
            return False
        if moment.cycle - last.cycle <= 1:
            return True
    return moment.generation <= last.generation


def next_index(tried: Mapping[str, int], resource: str) -> int:
    """Return the index of the flavor to start with; 0 if none was tried yet, or if the last one was."""
    return tried.get(resource, LAST_FLAVOR) + 1


# Kueue applies kube-scheduler's filters for taints and node affinity to a node with the flavor's labels and taints. It
# ignores requirements about other labels, because nodes of the flavor may have them. An affinity term that loses all
# its requirements that way matches every node.
_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")


def why_not(flavor: ResourceFlavor, pod_set: PodSet) -> str:
    """Return why the pod set cannot run on the flavor's nodes, as a clause; empty if it can."""
    tolerations = (*pod_set.tolerations, *flavor.tolerations)
    for taint in flavor.node_taints:
        if taint.effect in _KEEPS_AWAY and not any(tolerates(toleration, taint) for toleration in tolerations):
            return f'the taint {taint.text} of flavor "{flavor.name}" is not tolerated'
    for key, value in pod_set.node_selector.items():
        if flavor.node_labels.get(key, value) != value:
            return f'nodeSelector wants {key}={value}, flavor "{flavor.name}" has {key}={flavor.node_labels[key]}'
    if not _affine(pod_set, flavor.node_labels):
        return f'no term of the required node affinity matches the labels of flavor "{flavor.name}"'
    return ""


def _affine(pod_set: PodSet, labels: Mapping[str, str]) -> bool:
    terms = [
        tuple(requirement for requirement in term.match_expressions if requirement.key in labels)
        for term in pod_set.affinity
    ]
    if not all(terms) or not terms:
        return True
    selector = NodeSelector(node_selector_terms=tuple(NodeSelectorTerm(match_expressions=term) for term in terms))
    return selects(selector, Node(metadata=ObjectMeta(labels=labels)))


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of preemption for one flavor and resource: NO_CANDIDATES, PREEMPT or RECLAIM.

    Attributes:
        borrow: from how far up the tree quota would then be borrowed.
        targets: the keys of the workloads to preempt.
    """

    mode: FlavorMode
    borrow: int = 0
    targets: tuple[str, ...] = ()


Oracle = Callable[[Workload, FlavorResource, int], Simulation]
_ALWAYS: Final = Moment()


def assign(
    queues: Queues,
    usage: Usage,
    workload: Workload,
    last: SearchState | None,
    oracle: Oracle,
    *,
    moment: Moment = _ALWAYS,
    counts: tuple[int, ...] = (),
    nominated: Assignment | None = None,
) -> tuple[Assignment, SearchState]:
    """Choose flavors for a workload.

    Args:
        queues: queues, cohorts and flavors.
        usage: the used quota.
        workload: the workload to admit.
        last: the state after its last attempt.
        oracle: simulates preemption for a flavor and resource.
        moment: the generation of its queue and the scheduling cycle.
        counts: the number of pods of each pod set, to admit fewer than all.
        nominated: an assignment to whose flavors the search is restricted.

    Returns:
        The assignment, and the state for the next attempt.
    """
    tried = last.tried if last is not None and still_valid(last, workload, moment) else ()
    search = _Search(queues, usage, queues.cluster_queues[workload.queue], workload, oracle, nominated)
    done: list[PodSetAssignment] = []
    for numbers in _groups(workload.pod_sets):
        members = [
            (workload.pod_sets[number], counts[number] if counts else workload.pod_sets[number].count)
            for number in numbers
        ]
        before = Assignment(workload, tuple(done)).usage
        # Kueue stores the tried indices in the order of groups, but looks them up by the number of the first pod set.
        done += search.group(members, before, tried[numbers[0]] if numbers[0] < len(tried) else {})
        if done[-1].mode is FlavorMode.NO_FIT:
            break
    assignment = Assignment(workload, tuple(done))
    return assignment, SearchState.of(assignment, moment)


def rank(verdict: FlavorVerdict, fungibility: FlavorFungibility) -> tuple[int, int, int]:
    """Return a sort key for verdicts, from worst to best."""
    if verdict.mode is FlavorMode.NO_FIT:
        return 0, 0, 0
    viable = 1 if verdict.mode is FlavorMode.NO_CANDIDATES else 2
    if fungibility.preference is Preference.PREEMPTION_OVER_BORROWING:
        return viable, -verdict.borrow, verdict.mode
    return viable, verdict.mode, -verdict.borrow


def ends_search(verdict: FlavorVerdict, fungibility: FlavorFungibility) -> bool:
    """Return whether a flavor with this verdict ends the search."""
    if verdict.mode <= FlavorMode.NO_CANDIDATES:
        return False
    if verdict.mode is not FlavorMode.FIT and fungibility.when_can_preempt is Fungible.TRY_NEXT_FLAVOR:
        return False
    return verdict.borrow == 0 or fungibility.when_can_borrow is Fungible.MAY_STOP_SEARCH


def visiting_order(resources: Iterable[str]) -> list[str]:
    """Sort resources like Kueue: by the 64-bit FNV-1a hash of their names.

    The order decides from which resource's index a search resumes, and which group's failure is reported.
    """
    return sorted(resources, key=lambda name: (_fnv1a(name), name))


def _fnv1a(name: str) -> int:
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def _groups(pod_sets: Sequence[PodSet]) -> list[list[int]]:
    """The numbers of pod sets that share a flavor, in the order in which each group is met first."""
    groups: dict[str | int, list[int]] = {}
    for number, pod_set in enumerate(pod_sets):
        groups.setdefault(pod_set.group or number, []).append(number)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Search:
    queues: Queues
    usage: Usage
    queue: ClusterQueue
    workload: Workload
    oracle: Oracle
    nominated: Assignment | None

    def group(
        self, members: Sequence[tuple[PodSet, int]], assumed: Mapping[FlavorResource, int], tried: Mapping[str, int]
    ) -> list[PodSetAssignment]:
        """Search for pod sets that share a flavor; usually that is only one."""
        requested: dict[str, int] = {}
        for pod_set, count in members:
            for resource, number in pod_set.requests.items():
                requested[resource] = requested.get(resource, 0) + number * count
        pod_sets = [pod_set for pod_set, _ in members]
        scans: list[Scan] = []
        for resource in visiting_order(requested):
            if any(resource in scan.resources for scan in scans):
                continue
            group = self.queue.group_of(resource)
            if group is None:
                if requested[resource] == 0 or self.queues.ignore_undeclared:
                    continue
                scans.append(Scan((resource,), why=f'ClusterQueue "{self.queue.name}" has no quota of {resource}'))
            else:
                requests = {name: requested[name] for name in visiting_order(requested) if name in group.resources}
                scans.append(self.scan(group, pod_sets, requests, assumed, next_index(tried, resource)))
            if scans[-1].mode is FlavorMode.NO_FIT:
                break
        return [PodSetAssignment(pod_set, count, tuple(scans)) for pod_set, count in members]

    def scan(
        self,
        group: ResourceGroup,
        pod_sets: Sequence[PodSet],
        requests: Mapping[str, int],
        assumed: Mapping[FlavorResource, int],
        start: int,
    ) -> Scan:
        fungibility = self.queue.fungibility
        attempts: list[FlavorAttempt] = []
        chosen: FlavorAttempt | None = None
        tried = start - 1
        for tried, flavor in enumerate(group.flavors[start:], start):  # noqa: B007 - the last one is needed
            if not self.allows(flavor, pod_sets, next(iter(requests))):
                continue
            attempt = self.attempt(flavor, pod_sets, requests, assumed)
            attempts.append(attempt)
            if ends_search(attempt.worst, fungibility):
                chosen = attempt
                break
            best = chosen.worst if chosen is not None else FlavorVerdict(FlavorMode.NO_FIT)
            if rank(attempt.worst, fungibility) > rank(best, fungibility):
                chosen = attempt
        return Scan(
            tuple(requests),
            group.flavors,
            tuple(attempts),
            chosen,
            LAST_FLAVOR if tried == len(group.flavors) - 1 else tried,
        )

    def allows(self, flavor: str, pod_sets: Sequence[PodSet], resource: str) -> bool:
        """Return whether the flavor may be tried for pod sets that share one."""
        names = {pod_set.name for pod_set in pod_sets}
        return self.nominated is None or any(
            assigned.flavor == flavor
            for item in self.nominated.pod_sets
            if item.pod_set.name in names and (assigned := item.flavors.get(resource)) is not None
        )

    def attempt(
        self,
        flavor: str,
        pod_sets: Sequence[PodSet],
        requests: Mapping[str, int],
        assumed: Mapping[FlavorResource, int],
    ) -> FlavorAttempt:
        mismatch = next(filter(None, (why_not(self.queues.flavors[flavor], pod_set) for pod_set in pod_sets)), "")
        if mismatch:
            return FlavorAttempt(flavor, {}, FlavorVerdict(FlavorMode.NO_FIT, why=mismatch))
        verdicts = {
            resource: self.verdict(of := FlavorResource(flavor, resource), assumed.get(of, 0), number)
            for resource, number in requests.items()
        }
        return FlavorAttempt(
            flavor, verdicts, min(verdicts.values(), key=lambda item: rank(item, self.queue.fungibility))
        )

    def verdict(self, of: FlavorResource, assumed: int, amount: int) -> FlavorVerdict:
        """Return how `amount` fits in addition to what earlier pod sets are `assumed` to use."""
        name, total = self.queue.name, assumed + amount
        earlier = f" ({amount_text(of.resource, assumed)} of them for earlier pod sets)" if assumed else ""
        text = f"{amount_text(of.resource, total)}{earlier}"
        most = self.usage.capacity(name, of)
        if total > most:
            limit = f'the {amount_text(of.resource, most)} that "{name}" can ever have'
            why = f"{text} is more than {limit}"
            return FlavorVerdict(FlavorMode.NO_FIT, why=why)
        borrow, below_root = self.usage.borrow_level(name, of, total)
        free = self.usage.available(name, of)
        if total <= free:
            return FlavorVerdict(
                FlavorMode.FIT,
                borrow,
                f"{text} of {amount_text(of.resource, free)} available",
            )
        short = f"{amount_text(of.resource, total - free)} more needed"
        nominal = self.usage.nodes[name].quota(of).nominal
        forbidden = self.queue.preemption.borrow_within_cohort.policy == "Never"
        if total > nominal and not below_root and forbidden:
            return FlavorVerdict(
                FlavorMode.NO_FIT, borrow, f"{short}, and the queue may not preempt beyond its nominalQuota"
            )
        simulated = self.oracle(self.workload, of, total)
        return FlavorVerdict(simulated.mode, simulated.borrow, short)
