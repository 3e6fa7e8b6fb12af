"""Filters nodes for one pod with kube-scheduler's plug-ins, in its order, including DynamicResources."""

from collections.abc import Iterable, Mapping
from typing import Final

from dranode.api.resource import AllocationResult
from dranode.sim.allocator.pools import selects
from dranode.sim.allocator.requests import AllocationError, DeviceDemand, Outcome
from dranode.sim.allocator.result import Solution
from dranode.sim.cluster.devices import DeviceAnswers, score_before
from dranode.sim.cluster.extended import backed_here, special_claim
from dranode.sim.cluster.holdings import ClaimKey
from dranode.sim.fit.demand import PodDemand
from dranode.sim.fit.node_allocatable import SHARED_MAPPING, claim_statuses, has_mappings, refusal_for
from dranode.sim.fit.node_table import device_refusal
from dranode.sim.fit.state import ClusterState
from dranode.sim.scheduler.filters import Filters, Refusal
from dranode.sim.scheduler.scores import DEVICES
from dranode.sim.scheduler.snapshot import NodeInfo

NOT_AVAILABLE: Final = "resourceclaim not available on the node"


class NodeCheck:
    """The filters of one pod for the nodes of one state.

    Attributes:
        filters: the plug-ins other than DynamicResources.
    """

    def __init__(
        self, answers: DeviceAnswers, state: ClusterState, demand: PodDemand, minor: int, *, mappings: bool
    ) -> None:
        """Read the pod; with `mappings`, its devices count against the resources of the node that they map (KEP-5517).

        Raises:
            AllocationError: a claim cannot be allocated anywhere.
            DocumentError: a selector of the pod is invalid.
        """
        unallocated = [claim for claim in demand.claims if ClaimKey.of(claim) not in state.allocations]
        keys = map(ClaimKey.of, demand.claims)
        self._unallocated = tuple(unallocated)
        # The device requests, by the extended resources that devices back on a node.
        self._asked: dict[tuple[str, ...], DeviceDemand | None] = {
            (): answers.demand(unallocated) if unallocated else None
        }
        self.filters = Filters(demand.info, state.snapshot, minor, frozenset(demand.extended))
        self._answers = answers
        self._state = state
        self._demand = demand
        self._minor = minor
        self._mappings = mappings
        self._fixed = {key: state.allocations[key] for key in keys if key in state.allocations}
        # The fixed claims that other pods use as well.
        self._used = frozenset(key for key in self._fixed if mappings and (key in state.reserved or state.users(key)))

    @property
    def wants_devices(self) -> bool:
        """Return whether the pod needs devices on any node."""
        return bool(self._unallocated or self._demand.extended)

    def at(self, nodes: Iterable[NodeInfo]) -> tuple[dict[str, Refusal], dict[str, Solution | None]]:
        """Return the nodes that refuse the pod, and the devices for it on each other node.

        Raises:
            AllocationError: the attempt ends for all nodes.
        """
        refusals: dict[str, Refusal] = {}
        solutions: dict[str, Solution | None] = {}
        for info in nodes:
            refusal = self.filters.refusal(info)
            if refusal is None:
                solution = self._solution(info)
                refusal = solution if isinstance(solution, Refusal) else self.filters.own.late_refusal(info.node)
            if refusal is not None:
                refusals[info.name] = refusal
            elif not isinstance(solution, Refusal):
                solutions[info.name] = solution
        return refusals, solutions

    def device_demand(self, info: NodeInfo) -> DeviceDemand | None:
        """Return what the pod requests from the devices of a node; None if nothing."""
        extended = backed_here(self._demand.extended, info.allocatable) if self._demand.extended else {}
        key = tuple(sorted(extended))
        if key not in self._asked:
            claims = (*self._unallocated, special_claim(self._demand.pod, extended))
            self._asked[key] = self._answers.demand(claims)
        return self._asked[key]

    def outcomes(self, solution: Solution | None, node: str) -> tuple[Outcome, ...]:
        """Return the devices on the node for each claim that was not allocated before."""
        info = self._state.nodes[node]
        devices = self.device_demand(info)
        if devices is None or solution is None:
            return ()
        return self._answers.outcomes(info.node, devices, solution)

    def raw_scores(self, solutions: Mapping[str, Solution | None]) -> dict[str, int]:
        """Return the raw KEP-4816 score of each node; empty if the pod requests no devices."""
        raws: dict[str, int] = {}
        if self.wants_devices:
            keys = [(claim, ClaimKey.of(claim)) for claim in self._demand.claims]
            before = sum(score_before(claim, self._fixed[key]) for claim, key in keys if key in self._fixed)
            for name, solution in solutions.items():
                devices = self.device_demand(self._state.nodes[name])
                raws[name] = before
                if devices is not None and solution is not None:
                    raws[name] += self._answers.raw_score(devices, solution)
        return raws

    def _solution(self, info: NodeInfo) -> Solution | Refusal | None:
        """Return the devices for the pod's unallocated claims, or why the node is refused."""
        available = {
            key: allocation
            for key, allocation in self._fixed.items()
            if allocation.node_selector is None or selects(allocation.node_selector, info.node)
        }
        refusal = self._shared(available, info)
        if refusal is not None:
            return refusal
        chosen: Solution | None = None
        devices = self.device_demand(info)
        if devices is not None:
            solution = self._answers.solution(info.node, devices, self._state.holdings)
            refusal = device_refusal(solution)
            if refusal is not None:
                return refusal
            if isinstance(solution, AllocationError):
                raise solution
            chosen = solution
        refusal = self._overbooked(chosen, info)
        if refusal is not None:
            return refusal
        # kube-scheduler allocates first and only then checks whether the allocated claims are available here, so a
        # node that fails both reports the allocation.
        if len(available) < len(self._fixed):
            return Refusal(DEVICES, (NOT_AVAILABLE,), hopeless=False)
        return chosen

    def _shared(self, allocations: Mapping[ClaimKey, AllocationResult], info: NodeInfo) -> Refusal | None:
        """Refuse a node where the pod would share a claim whose devices map resources of the node."""
        for key in allocations.keys() & self._used:
            statuses = claim_statuses(self._demand, {key: allocations[key]}, self._answers.view(info.node).pools)
            if any(status.mapping for status in statuses):
                return Refusal(DEVICES, (SHARED_MAPPING.format(key.name),))
        return None

    def _overbooked(self, solution: Solution | None, info: NodeInfo) -> Refusal | None:
        """Refuse a node that has too little for the pod and the resources that its devices map (KEP-5517)."""
        if not self._mappings or not (self._demand.claims or self._demand.extended):
            return None
        pools = self._answers.view(info.node).pools
        if not has_mappings(pools):
            return None
        allocations = dict(self._fixed)
        devices = self.device_demand(info)
        if devices is not None and solution is not None:
            for outcome in self._answers.outcomes(info.node, devices, solution):
                if outcome.allocation is not None:
                    allocations[ClaimKey.of(outcome.claim)] = outcome.allocation
        statuses = claim_statuses(self._demand, allocations, pools)
        return refusal_for(self._demand, info, statuses, self._minor) if statuses else None
