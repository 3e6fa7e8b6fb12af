"""Finds the workloads to preempt for another one: Kueue's classical preemption (its KEP-83 and KEP-1337).

Candidates use resources that are short, and the policies allow their preemption: `withinClusterQueue` in the same
queue, `reclaimWithinCohort` in queues of the cohort that exceed their quota. If a subtree of the cohort tree holds the
request within its own quota, the workload has precedence over candidates outside of it, even while borrowing. While it
borrows, it may preempt the others only if `borrowWithinCohort` allows that. Candidates are removed one by one until the
request fits; then those that are not needed are put back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from dranode.sim.queues.assign import FlavorMode, Simulation
from dranode.sim.queues.quota import QuotaNode, Usage
from dranode.sim.queues.values import Admitted, FlavorResource, Policy, Queues, Workload


class _Claim(IntEnum):
    """The reason why a candidate may be preempted, in the order of preemption."""

    PRECEDENCE = 0
    RECLAIM = 1
    OWN_QUEUE = 2


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A workload that may be preempted.

    Attributes:
        below: the cohorts between its queue and the nearest cohort that it shares with the preempting workload.
        while_borrowing: whether it may be preempted even if the preempting queue borrows.
    """

    admitted: Admitted
    claim: _Claim
    below: tuple[QuotaNode, ...] = ()
    while_borrowing: bool = True

    @property
    def order(self) -> tuple[object, ...]:
        """Return a sort key: workloads under eviction first, then by claim, then low priority and late admission."""
        admitted = self.admitted
        return (
            not admitted.evicted,
            self.claim,
            admitted.workload.priority,
            -admitted.reserved,
            admitted.workload.key,
        )


@dataclass(frozen=True, slots=True)
class Preemptor:
    """Chooses the workloads to preempt among those that hold quota."""

    queues: Queues
    usage: Usage
    admitted: tuple[Admitted, ...]

    def simulate(self, workload: Workload, of: FlavorResource, amount: int) -> Simulation:
        """Return the result of preemption for one flavor and resource; for `amount`, see `values.amount`."""
        targets = self.targets(workload, frozenset({of}), {of: amount})
        borrow, _ = self.usage.without(*targets).borrow_level(workload.queue, of, amount)
        if not targets:
            return Simulation(FlavorMode.NO_CANDIDATES, borrow)
        in_own_queue = any(target.workload.queue == workload.queue for target in targets)
        return Simulation(
            FlavorMode.PREEMPT if in_own_queue else FlavorMode.RECLAIM,
            borrow,
            tuple(target.workload.key for target in targets),
        )

    def targets(
        self, workload: Workload, contested: frozenset[FlavorResource], requests: Mapping[FlavorResource, int]
    ) -> tuple[Admitted, ...]:
        """Return the workloads to preempt so that the requests fit; empty if that is not possible.

        Args:
            workload: the workload to admit.
            contested: the flavors and resources that are short.
            requests: everything that it requests, see `values.amount`.
        """
        # As in Kueue, a request of 0 fits even if its quota is exceeded (kubernetes-sigs/kueue#2520).
        requests = {of: number for of, number in requests.items() if number}
        candidates = sorted(self._candidates(workload, contested, requests), key=lambda item: item.order)
        for borrowing in self._tries(workload, contested, candidates):
            usage, gone = self.usage, list[Admitted]()
            for candidate in candidates:
                if not _still_valid(candidate, usage, contested, borrowing=borrowing):
                    continue
                usage = usage.without(candidate.admitted)
                gone.append(candidate.admitted)
                if _fits(usage, workload.queue, requests, borrowing=borrowing):
                    return _needed(usage, gone, workload.queue, requests, borrowing=borrowing)
        return ()

    def _tries(
        self, workload: Workload, contested: frozenset[FlavorResource], candidates: list[_Candidate]
    ) -> tuple[bool, ...]:
        """Return the values to try for whether the queue may borrow after the preemption, in order."""
        node = self.usage.nodes[workload.queue]
        forbidden = self.queues.cluster_queues[workload.queue].preemption.borrow_within_cohort.policy == "Never"
        below = all(self.usage.at(node, of) < node.quota(of).nominal for of in contested)
        claims = {candidate.claim for candidate in candidates}
        if claims <= {_Claim.OWN_QUEUE} or (forbidden and not below):
            return (True,)
        return (False, True) if forbidden and _Claim.PRECEDENCE not in claims else (True, False)

    def _candidates(
        self, workload: Workload, contested: frozenset[FlavorResource], requests: Mapping[FlavorResource, int]
    ) -> Iterator[_Candidate]:
        policies = self.queues.cluster_queues[workload.queue].preemption
        if {policies.within_cluster_queue, policies.reclaim_within_cohort} == {"Never"}:
            return
        users = [item for item in self.admitted if any(of in contested for of in item.usage)]
        for item in users:
            if item.workload.queue == workload.queue and _may(policies.within_cluster_queue, workload, item):
                yield _Candidate(item, _Claim.OWN_QUEUE)
        allowed = [item for item in users if _may(policies.reclaim_within_cohort, workload, item)]
        queues: set[str] = {workload.queue}
        node, remaining = self.usage.nodes[workload.queue], dict(requests)
        precedence, remaining = self._held_by(node, remaining)
        for cohort in self.usage.cohorts(workload.queue):
            for queue, below in self._over_quota(cohort, contested):
                if queue in queues:
                    continue
                queues.add(queue)
                for item in allowed:
                    if item.workload.queue == queue:
                        claim = _Claim.PRECEDENCE if precedence else _Claim.RECLAIM
                        yield _Candidate(item, claim, below, precedence or self._while_borrowing(workload, item))
            holds, remaining = self._held_by(cohort, remaining)
            precedence = precedence or holds

    def _held_by(
        self, node: QuotaNode, requests: Mapping[FlavorResource, int]
    ) -> tuple[bool, dict[FlavorResource, int]]:
        """Return whether a subtree holds the requests within its own quota, and what remains for its parent."""
        holds = not any(self.usage.borrows_with(node, of, number) for of, number in requests.items())
        remaining = {of: max(0, number - self.usage.unused_guaranteed(node, of)) for of, number in requests.items()}
        return holds, remaining

    def _over_quota(
        self, cohort: QuotaNode, contested: frozenset[FlavorResource], below: tuple[QuotaNode, ...] = ()
    ) -> Iterator[tuple[str, tuple[QuotaNode, ...]]]:
        """Yield the queues below a cohort that use more than their quota, with the cohorts in between."""
        for child in cohort.children:
            if any(self.usage.borrows_with(child, of) for of in contested):
                if child.cluster_queue is not None:
                    yield child.name, below
                else:
                    yield from self._over_quota(child, contested, (*below, child))

    def _while_borrowing(self, workload: Workload, item: Admitted) -> bool:
        borrowing = self.queues.cluster_queues[workload.queue].preemption.borrow_within_cohort
        priority, threshold = item.workload.priority, borrowing.max_priority_threshold
        if borrowing.policy == "Never" or priority >= workload.priority:
            return False
        return threshold is None or priority <= threshold


def _may(policy: Policy, workload: Workload, item: Admitted) -> bool:
    lower = item.workload.priority < workload.priority
    match policy:
        case "Never":
            return False
        case "LowerPriority":
            return lower
        case "LowerOrNewerEqualPriority":
            same = item.workload.priority == workload.priority
            return lower or (same and item.workload.created > workload.created)
        case "Any":
            return True


def _still_valid(candidate: _Candidate, usage: Usage, contested: frozenset[FlavorResource], *, borrowing: bool) -> bool:
    """Return whether a candidate's queue and the cohorts in between still exceed their quotas."""
    if candidate.claim is _Claim.OWN_QUEUE:
        return True
    if borrowing and not candidate.while_borrowing:
        return False
    nodes = (usage.nodes[candidate.admitted.workload.queue], *candidate.below)
    return all(any(usage.borrows_with(node, of) for of in contested) for node in nodes)


def _fits(usage: Usage, queue: str, requests: Mapping[FlavorResource, int], *, borrowing: bool) -> bool:
    if not borrowing and any(usage.borrows_with(usage.nodes[queue], of, number) for of, number in requests.items()):
        return False
    return usage.holds(queue, requests)


def _needed(
    usage: Usage, gone: list[Admitted], queue: str, requests: Mapping[FlavorResource, int], *, borrowing: bool
) -> tuple[Admitted, ...]:
    """Return the workloads that have to go: the last one, and those that do not fit when put back, last to first."""
    needed = [gone[-1]]
    for item in reversed(gone[:-1]):
        back = usage.charge(item.workload.queue, item.usage)
        if _fits(back, queue, requests, borrowing=borrowing):
            usage = back
        else:
            needed.insert(0, item)
    return tuple(needed)
