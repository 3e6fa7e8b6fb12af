"""Assigns flavors to a workload: the decision of KEP-582, a function of its arguments alone.

For each pod set (or those of one `podSetGroupName` together) and resource group the flavors are looked at in order,
from the one after the last that was tried. In each the resources fit, fit by borrowing, fit once others are preempted,
or do not fit; the worst resource stands for the flavor. `flavorFungibility` says whether that is enough to stop; where
nothing stops the search, the best flavor is taken, the first of equals. What Kueue 0.20 does beyond the KEP's text: no
flavor without preemption candidates ends a search; one that preempts while it borrows ends it only if both policies
allow it; the order is fit, reclaim, preempt, no candidates, and then how far quota is borrowed from.
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
    PreemptionPolicy,
    Preference,
    Queues,
    ResourceFlavor,
    ResourceGroup,
    Workload,
    amount_text,
)

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


# As kube-scheduler's taint and node affinity filters decide for a node that has the flavor's labels and taints, but
# requirements about labels that the flavor does not state are left out: its nodes may meet them. An affinity term that
# loses all its requirements that way holds for every node.
_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")


def why_not(flavor: ResourceFlavor, pod_set: PodSet) -> str:
    """Return what keeps the pod set off the flavor's nodes, as the beginning of a sentence; empty if nothing does."""
    tolerations = (*pod_set.tolerations, *flavor.tolerations)
    for taint in flavor.node_taints:
        if taint.effect in _KEEPS_AWAY and not any(tolerates(toleration, taint) for toleration in tolerations):
            return f'the taint {taint.key}={taint.value}:{taint.effect} of flavor "{flavor.name}" is not tolerated'
    for key, value in pod_set.node_selector.items():
        if flavor.node_labels.get(key, value) != value:
            return f'nodeSelector wants {key}={value}, flavor "{flavor.name}" has {key}={flavor.node_labels[key]}'
    if not _affine(pod_set, flavor.node_labels):
        return f'no term of the required node affinity holds for the labels of flavor "{flavor.name}"'
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
        borrow: how far up the tree quota would then come from.
        targets: keys of the workloads that would go.
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
    now: Moment = _ALWAYS,
    counts: tuple[int, ...] = (),
) -> tuple[Assignment, SearchState]:
    """Choose flavors for a workload.

    Args:
        queues: queues, cohorts and flavors.
        usage: what is used of their quotas.
        workload: the workload to be admitted.
        last: what its last attempt left behind.
        oracle: what preemption could do.
        now: the generation of its queue and the scheduling cycle.
        counts: pods by pod set, where fewer than all are to be admitted.

    Returns:
        The assignment, and what the next attempt has to be given.
    """
    tried = last.tried if last is not None and still_valid(last, workload, now) else ()
    search = _Search(queues, usage, queues.cluster_queues[workload.queue], workload, oracle)
    done: list[PodSetAssignment] = []
    for numbers in _groups(workload.pod_sets):
        members = [
            (workload.pod_sets[number], counts[number] if counts else workload.pod_sets[number].count)
            for number in numbers
        ]
        before = Assignment(workload, tuple(done)).usage
        # Kueue keeps what was tried in the order of groups, and asks for it by the first pod set's own number.
        done += search.group(members, before, tried[numbers[0]] if numbers[0] < len(tried) else {})
        if done[-1].mode is FlavorMode.NO_FIT:
            break
    assignment = Assignment(workload, tuple(done))
    return assignment, SearchState.of(assignment, now)


def rank(verdict: FlavorVerdict, fungibility: FlavorFungibility) -> tuple[int, int, int]:
    """Return what orders verdicts from worse to better."""
    if verdict.mode is FlavorMode.NO_FIT:
        return 0, 0, 0
    viable = 1 if verdict.mode is FlavorMode.NO_CANDIDATES else 2
    if fungibility.preference is Preference.PREEMPTION_OVER_BORROWING:
        return viable, -verdict.borrow, verdict.mode
    return viable, verdict.mode, -verdict.borrow


def ends_search(verdict: FlavorVerdict, fungibility: FlavorFungibility) -> bool:
    """Return whether a flavor with this verdict is enough."""
    if verdict.mode <= FlavorMode.NO_CANDIDATES:
        return False
    if verdict.mode is not FlavorMode.FIT and fungibility.when_can_preempt is Fungible.TRY_NEXT_FLAVOR:
        return False
    return verdict.borrow == 0 or fungibility.when_can_borrow is Fungible.MAY_STOP_SEARCH


def visiting_order(resources: Iterable[str]) -> list[str]:
    """Resources in Kueue's order, that of their names' 64-bit FNV-1a hash.

    It decides which resource's index a search resumes from, and which group's failure is the one that is reported.
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

    def group(
        self, members: Sequence[tuple[PodSet, int]], assumed: Mapping[FlavorResource, int], tried: Mapping[str, int]
    ) -> list[PodSetAssignment]:
        """Search for pod sets that share a flavor; most often that is one."""
        asked: dict[str, int] = {}
        for pod_set, count in members:
            for resource, number in pod_set.requests.items():
                asked[resource] = asked.get(resource, 0) + number * count
        pod_sets = [pod_set for pod_set, _ in members]
        scans: list[Scan] = []
        for resource in visiting_order(asked):
            if any(resource in scan.resources for scan in scans):
                continue
            group = self.queue.group_of(resource)
            if group is None:
                if asked[resource] == 0 or self.queues.ignore_undeclared:
                    continue
                scans.append(Scan((resource,), why=f'ClusterQueue "{self.queue.name}" has no quota of {resource}'))
            else:
                requests = {name: asked[name] for name in visiting_order(asked) if name in group.resources}
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
        for flavor in group.flavors[start:]:
            attempt = self.attempt(flavor, pod_sets, requests, assumed)
            attempts.append(attempt)
            if ends_search(attempt.worst, fungibility):
                chosen = attempt
                break
            best = chosen.worst if chosen is not None else FlavorVerdict(FlavorMode.NO_FIT)
            if rank(attempt.worst, fungibility) > rank(best, fungibility):
                chosen = attempt
        tried = start + len(attempts) - 1
        return Scan(
            tuple(requests),
            group.flavors,
            tuple(attempts),
            chosen,
            LAST_FLAVOR if tried == len(group.flavors) - 1 else tried,
        )

    def attempt(
        self,
        flavor: str,
        pod_sets: Sequence[PodSet],
        requests: Mapping[str, int],
        assumed: Mapping[FlavorResource, int],
    ) -> FlavorAttempt:
        unsuited = next(filter(None, (why_not(self.queues.flavors[flavor], pod_set) for pod_set in pod_sets)), "")
        if unsuited:
            return FlavorAttempt(flavor, {}, FlavorVerdict(FlavorMode.NO_FIT, why=unsuited))
        verdicts = {
            resource: self.verdict(of := FlavorResource(flavor, resource), assumed.get(of, 0), number)
            for resource, number in requests.items()
        }
        return FlavorAttempt(
            flavor, verdicts, min(verdicts.values(), key=lambda item: rank(item, self.queue.fungibility))
        )

    def verdict(self, of: FlavorResource, assumed: int, amount: int) -> FlavorVerdict:
        """Return how `amount` can be had on top of what earlier pod sets were `assumed` to get."""
        name, total = self.queue.name, assumed + amount
        most = self.usage.capacity(name, of)
        if total > most:
            return FlavorVerdict(
                FlavorMode.NO_FIT, why=f"{amount_text(of.resource, total)} is more than the {self._most(of, most)}"
            )
        borrow, below_root = self.usage.borrow_level(name, of, total)
        free = self.usage.available(name, of)
        if total <= free:
            return FlavorVerdict(
                FlavorMode.FIT,
                borrow,
                f"{amount_text(of.resource, total)} of {amount_text(of.resource, free)} available",
            )
        short = f"{amount_text(of.resource, total - free)} more needed"
        nominal = self.usage.nodes[name].quota(of).nominal
        if total > nominal and not below_root and not self._preempts_while_borrowing:
            return FlavorVerdict(
                FlavorMode.NO_FIT, borrow, f"{short}, and the queue may not preempt beyond its nominalQuota"
            )
        simulated = self.oracle(self.workload, of, total)
        return FlavorVerdict(simulated.mode, simulated.borrow, short)

    @property
    def _preempts_while_borrowing(self) -> bool:
        policies = self.queue.preemption
        return policies.borrow_within_cohort.policy is not PreemptionPolicy.NEVER or (
            self.queues.fair_sharing and policies.reclaim_within_cohort is not PreemptionPolicy.NEVER
        )

    def _most(self, of: FlavorResource, most: int) -> str:
        return f'{amount_text(of.resource, most)} that "{self.queue.name}" can ever have'
