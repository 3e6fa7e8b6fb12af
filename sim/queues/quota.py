"""Quotas in a tree of cohorts (Kueue's KEP-79), and their usage. Amounts are counted as in `values.amount`.

A ClusterQueue lends its unused quota to its cohort, up to `lendingLimit`, and borrows up to `borrowingLimit`; a cohort
does the same with its parent. The part that a lending limit withholds is *guaranteed*: it is invisible to the parent,
and usage fills it first. Only usage beyond it counts at the parent as well.

    subtree quota of a node = its own nominal quota + over its children (subtree quota - guaranteed)
    guaranteed of a node    = max(0, subtree quota - lending limit), or 0 without a limit
    usage of a cohort       = over its children max(0, usage - guaranteed)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dranode.sim.queues.values import Admitted, ClusterQueue, Cohort, FlavorResource, Queues, Quota

_NO_QUOTA = Quota(0)


@dataclass(frozen=True, slots=True, eq=False)
class QuotaNode:
    """A ClusterQueue (without children) or a cohort.

    Attributes:
        quotas: its own quotas.
        subtree: its own nominal quotas and what the nodes below it lend.
        height: the number of steps to the furthest ClusterQueue below; 0 for a ClusterQueue.
    """

    name: str
    quotas: Mapping[FlavorResource, Quota]
    subtree: Mapping[FlavorResource, int]
    children: tuple[QuotaNode, ...] = ()
    cluster_queue: ClusterQueue | None = None
    height: int = 0

    def quota(self, of: FlavorResource) -> Quota:
        """Return the node's own quota."""
        return self.quotas.get(of, _NO_QUOTA)

    def guaranteed(self, of: FlavorResource) -> int:
        """Return the amount that the node never lends to its parent."""
        limit = self.quota(of).lending_limit
        return 0 if limit is None else max(0, self.subtree.get(of, 0) - limit)


@dataclass(frozen=True, slots=True)
class Usage:
    """The used amounts at every node of the tree, as a frozen value.

    Attributes:
        nodes: the leaf of every ClusterQueue.
        parents: the cohort above each node that is not a root.
        used: the amount that counts at each node, by flavor and resource.
    """

    nodes: Mapping[str, QuotaNode]
    parents: Mapping[QuotaNode, QuotaNode]
    used: Mapping[FlavorResource, Mapping[QuotaNode, int]]

    def at(self, node: QuotaNode, of: FlavorResource) -> int:
        """Return the amount that counts at a node."""
        return self.used.get(of, {}).get(node, 0)

    def cohorts(self, queue: str) -> Iterator[QuotaNode]:
        """Yield the cohorts above a queue, the nearest first."""
        node = self.parents.get(self.nodes[queue])
        while node is not None:
            yield node
            node = self.parents.get(node)

    def root(self, queue: str) -> QuotaNode:
        """Return the root of a queue's tree; the queue's own node if it has no cohort."""
        return [self.nodes[queue], *self.cohorts(queue)][-1]

    def available(self, queue: str, of: FlavorResource) -> int:
        """Return the amount that the queue can get without preemption, never below 0."""
        return max(0, self.balance(queue, of))

    def balance(self, queue: str, of: FlavorResource) -> int:
        """Return the amount that the queue can get without preemption; below 0 if more is used than exists."""
        return self._balance(self.nodes[queue], of)

    def _balance(self, node: QuotaNode, of: FlavorResource) -> int:
        parent = self.parents.get(node)
        subtree, used, guaranteed = node.subtree.get(of, 0), self.at(node, of), node.guaranteed(of)
        if parent is None:
            return subtree - used
        from_parent = self._balance(parent, of)
        limit = node.quota(of).borrowing_limit
        if limit is not None:
            from_parent = min(from_parent, subtree - guaranteed - max(0, used - guaranteed) + limit)
        return max(0, guaranteed - used) + from_parent

    def capacity(self, queue: str, of: FlavorResource) -> int:
        """Return the amount that the queue could get if nothing were used."""
        return replace(self, used={}).balance(queue, of)

    def borrows_with(self, node: QuotaNode, of: FlavorResource, extra: int = 0) -> bool:
        """Return whether a node would use more than its subtree's quota with `extra` added."""
        return self.at(node, of) + extra > node.subtree.get(of, 0)

    def unused_guaranteed(self, node: QuotaNode, of: FlavorResource) -> int:
        """Return the unused part of the node's guaranteed amount."""
        return max(0, node.guaranteed(of) - self.at(node, of))

    def borrow_level(self, queue: str, of: FlavorResource, extra: int) -> tuple[int, bool]:
        """Return from how far up the tree `extra` has to be borrowed, and whether that is below the root.

        Returns:
            The height of the smallest subtree around the queue that holds `extra` within its own quota (0 is the queue
            itself, without borrowing; the height of the tree if none does), and whether that subtree has a parent.
        """
        node = self.nodes[queue]
        if not self.borrows_with(node, of, extra) or node not in self.parents:
            return 0, node in self.parents
        extra -= self.unused_guaranteed(node, of)
        for cohort in self.cohorts(queue):
            if not self.borrows_with(cohort, of, extra):
                return cohort.height, cohort in self.parents
            extra -= self.unused_guaranteed(cohort, of)
        return self.root(queue).height, False

    def charge(self, queue: str, amounts: Mapping[FlavorResource, int]) -> Usage:
        """Return the usage with amounts added to a queue; negative amounts are subtracted."""
        used = dict(self.used)
        for of, amount in amounts.items():
            counts = dict(used.get(of, {}))
            passed_on = amount
            for node in (self.nodes[queue], *self.cohorts(queue)):
                before, guaranteed = counts.get(node, 0), node.guaranteed(of)
                counts[node] = before + passed_on
                passed_on = max(0, counts[node] - guaranteed) - max(0, before - guaranteed)
            used[of] = counts
        return replace(self, used=used)

    def without(self, *workloads: Admitted) -> Usage:
        """Return the usage after workloads have left."""
        usage = self
        for admitted in workloads:
            usage = usage.charge(admitted.workload.queue, {of: -number for of, number in admitted.usage.items()})
        return usage

    def holds(self, queue: str, amounts: Mapping[FlavorResource, int]) -> bool:
        """Return whether the queue can get all of the amounts without preemption."""
        return all(amount <= self.available(queue, of) for of, amount in amounts.items())


def unused_quota(queues: Queues) -> Usage:
    """Return the tree of quotas without any usage; cohorts without a document exist if a member names them.

    The cohorts must not have a cycle.
    """
    names = {
        *queues.cohorts,
        *(cohort.parent for cohort in queues.cohorts.values()),
        *(queue.cohort for queue in queues.cluster_queues.values()),
    } - {""}
    cohorts = {name: queues.cohorts.get(name, Cohort(name)) for name in names}
    leaves = {
        name: QuotaNode(
            name, queue.quotas, {of: quota.nominal for of, quota in queue.quotas.items()}, cluster_queue=queue
        )
        for name, queue in queues.cluster_queues.items()
    }
    parents: dict[QuotaNode, QuotaNode] = {}

    def grow(cohort: Cohort) -> QuotaNode:
        children = (
            *(grow(child) for child in cohorts.values() if child.parent == cohort.name),
            *(leaf for leaf in leaves.values() if leaf.cluster_queue and leaf.cluster_queue.cohort == cohort.name),
        )
        subtree = {of: quota.nominal for of, quota in cohort.quotas.items()}
        for child in children:
            for of, lent in child.subtree.items():
                subtree[of] = subtree.get(of, 0) + lent - child.guaranteed(of)
        height = max((child.height + 1 for child in children), default=0)
        node = QuotaNode(cohort.name, cohort.quotas, subtree, children, height=height)
        parents.update(dict.fromkeys(children, node))
        return node

    for cohort in sorted(cohorts.values(), key=lambda cohort: cohort.name):
        if not cohort.parent:
            grow(cohort)
    return Usage(leaves, parents, {})
