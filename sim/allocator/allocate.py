"""Allocates claims on one node as kube-scheduler would; the entry point of the allocator.

    allocator = Allocator(slices, classes, Features(), new_share_id=lambda: str(uuid4()))
    outcomes = allocator.allocate(claims, node, allocated)
    allocated = allocated.with_allocations(outcome.allocation for outcome in outcomes if outcome.allocation)

Pass the claims of one pod together: either all of them are allocated, or none.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from dranode.api.resource import DeviceClaim, DeviceClass, Node, ResourceClaim, ResourceSlice
from dranode.sim.allocator.explain import Miss, Stage, nearest_miss, notes_on_failure, notes_on_success, usable_devices
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import AttributesRead, Pool, PoolIndex, orders
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import (
    AllocationError,
    DeviceDemand,
    Outcome,
    Reason,
    allocation_requests,
    claim_name,
)
from dranode.sim.allocator.result import Oddity, Solution, allocation, check_selectors
from dranode.sim.allocator.search import search
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated
from dranode.sim.allocator.taint_rules import DeviceTaintRule, with_rule_taints


class Allocator:
    """Allocates from the slices and classes of a cluster. It caches results, but has no other state.

    Attributes:
        inventory: the slices.
        classes: the device classes by name.
        features: the gates.
    """

    def __init__(
        self,
        slices: Iterable[ResourceSlice],
        classes: Iterable[DeviceClass],
        features: Features,
        *,
        new_share_id: Callable[[], str],
        rules: Sequence[DeviceTaintRule] = (),
        claims: Iterable[DeviceClaim] | None = None,
    ) -> None:
        """Index slices, with the taints of the rules, and classes.

        Args:
            slices: all ResourceSlices.
            classes: all DeviceClasses.
            features: the release and its gates.
            new_share_id: generates share IDs, which are UUIDs in a cluster.
            rules: the DeviceTaintRules.
            claims: all claims that will be allocated, if known; devices that do not differ for them are evaluated once.
        """
        self.classes = {device_class.metadata.name: device_class for device_class in classes}
        self._read = (
            AttributesRead.of(claims, self.classes.values(), features.stored_expressions)
            if claims is not None
            else AttributesRead(None)
        )
        self.inventory = PoolIndex(with_rule_taints(slices, rules, features), features, self._read)
        self.features = features
        self._selectors = Selectors(features)
        self._new_share_id = new_share_id

    def allocate(self, claims: Sequence[ResourceClaim], node: Node, allocated: Allocated) -> tuple[Outcome, ...]:
        """Return the devices for the claims on the node, all or none; `allocated` is what other claims hold."""
        try:
            demand, pools = self.demand(claims), self.inventory.pools(node)
            solution = self.search(demand, pools, allocated)
        except AllocationError as error:
            return failures(claims, node.metadata.name, error)
        if solution.picks is None:
            miss = self.nearest_miss(demand, pools, allocated)
            return unfit(claims, f"does not fit on node {node.metadata.name}: {miss.sentence}", solution.oddities)
        return self.outcomes(demand, solution, node.metadata.name)

    def demand(self, claims: Sequence[ResourceClaim]) -> DeviceDemand:
        """Return the claims with their requests.

        Raises:
            AllocationError: a claim cannot be allocated anywhere.
            ValueError: a claim reads attributes that the claims passed at construction do not read.
        """
        for claim in claims:
            if not self._read.covers(claim.spec.devices, self.features.stored_expressions):
                raise ValueError(f"claim {claim_name(claim)} was not passed to the allocator at construction")
        requests = tuple(allocation_requests(claim, self.classes, self.features) for claim in claims)
        return DeviceDemand(tuple(claims), requests)

    def search(self, demand: DeviceDemand, pools: Sequence[Pool], allocated: Allocated) -> Solution:
        """Find devices for the claims in these pools.

        Raises:
            AllocationError: the search ended with an error, or found nothing and a pool is invalid.
        """
        solution = self.search_in_order(demand, pools, allocated)
        if not self.features.fixed_order:
            devices = _devices(solution)
            alternatives = (self.search_in_order(demand, order, allocated) for order in orders(pools))
            if any(_devices(alternative) != devices for alternative in alternatives):
                solution = _at_random(solution)
        if isinstance(solution, AllocationError):
            raise solution
        return solution

    def search_in_order(
        self, demand: DeviceDemand, pools: Sequence[Pool], allocated: Allocated
    ) -> Solution | AllocationError:
        """Return the result of searching the pools in the given order."""
        try:
            solution = search(demand, pools, self.counted(allocated), self._selectors)
            if solution.picks is None:
                _check_valid(pools, self.features)
            else:
                for claim, picks in zip(demand.claims, solution.picks, strict=True):
                    check_selectors(claim, picks, self.features)
        except AllocationError as error:
            return error
        return solution

    def nearest_miss(self, demand: DeviceDemand, pools: Sequence[Pool], allocated: Allocated) -> Miss:
        """Return why the claims do not fit into these pools."""
        try:
            return nearest_miss(demand, pools, self.counted(allocated), self._selectors)
        except AllocationError as error:
            return Miss(0, Stage.SELECTOR, Fraction(0), str(error))

    def counted(self, allocated: Allocated) -> Allocated:
        """Return the allocated state as kube-scheduler counts it: without DRAConsumableCapacity, shares are devices."""
        return allocated if self.features.consumable_capacity else allocated.without_shares()

    def usable(self, claims: Sequence[ResourceClaim], pools: Sequence[Pool]) -> frozenset[tuple[str, str, str]]:
        """Return the devices of these pools that a request of the claims chooses, and those that share their counters.

        Raises:
            AllocationError: a class does not exist, or a selector cannot be evaluated.
        """
        return usable_devices(self.demand(claims), pools, self._selectors)

    def outcomes(self, demand: DeviceDemand, solution: Solution, node: str) -> tuple[Outcome, ...]:
        """Return the outcomes of the claims for a solution."""
        made = []
        for (claim, requests), picks in zip(demand.pairs, solution.picks or (), strict=True):
            result = allocation(claim, requests, picks, node=node, features=self.features, share_id=self._new_share_id)
            notes = notes_on_success(claim, picks, result, solution.oddities, self.features)
            made.append(Outcome(claim, node, result, notes=notes))
        return tuple(made)


def failures(claims: Sequence[ResourceClaim], node: str | None, error: AllocationError) -> tuple[Outcome, ...]:
    """Return the outcomes of an attempt that ended with an error."""
    return tuple(Outcome(claim, node, error=str(error), reason=error.reason, scope=error.scope) for claim in claims)


def unfit(claims: Sequence[ResourceClaim], error: str, oddities: Iterable[Oddity]) -> tuple[Outcome, ...]:
    """Return the outcomes of claims that do not fit."""
    notes = notes_on_failure(oddities)
    return tuple(Outcome(claim, None, error=error, reason=Reason.DOES_NOT_FIT, notes=notes) for claim in claims)


def _devices(solution: Solution | AllocationError) -> Hashable:
    """Return a value that differs between different solutions."""
    if isinstance(solution, AllocationError):
        return solution.reason
    return solution.picks and tuple(
        tuple((pick.alternative.name, pick.candidate.pool, pick.candidate.device.name) for pick in picks)
        for picks in solution.picks
    )


def _at_random(solution: Solution | AllocationError) -> Solution | AllocationError:
    """Add the remark that another search order gives another result."""
    if isinstance(solution, AllocationError):
        remark = "this release searches pools in random order, and another order ends differently"
        return AllocationError(f"{solution} ({remark})", solution.reason, solution.scope)
    return replace(solution, oddities=solution.oddities | {Oddity.NO_FIXED_ORDER})


def _check_valid(pools: Sequence[Pool], features: Features) -> None:
    if not features.has(Change.INCOMPLETE_POOLS_UNUSED):
        return
    for pool in pools:
        if pool.invalid:
            raise AllocationError(
                "invalid resource pools were encountered", Reason.POOL_INVALID, "node", f"{pool.id}: {pool.invalid}"
            )
