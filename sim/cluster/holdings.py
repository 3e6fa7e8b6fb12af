"""Records which claim holds which devices of every pool, so that they can be released."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dranode.api.resource import AllocationResult, DeviceRequestAllocationResult, PoolID, ResourceClaim
from dranode.driver.claims.grant import readable_results
from dranode.sim.allocator.state import Allocated, PoolState
from dranode.sim.scheduler.versions import VersionedMap

_UNTOUCHED: Final = PoolState()


class ClaimKey(NamedTuple):
    """The namespace and the name of a claim."""

    namespace: str
    name: str

    @classmethod
    def of(cls, claim: ResourceClaim) -> ClaimKey:
        """Return the key of a claim."""
        return cls(claim.metadata.namespace, claim.metadata.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimHolding(NamedTuple):
    """One result of a claim's allocation."""

    claim: ClaimKey
    result: DeviceRequestAllocationResult


@dataclass(frozen=True, slots=True)
class Holdings:
    """The allocated devices of all pools; nothing is allocated from pools that are not listed.

    Attributes:
        pools: the allocation results of each pool with their claims.
        states: the sum of these results, as the allocator counts them.
    """

    pools: VersionedMap[PoolID, tuple[ClaimHolding, ...]] = field(default_factory=VersionedMap)
    states: VersionedMap[PoolID, PoolState] = field(default_factory=VersionedMap)

    def with_claims(self, allocations: Iterable[tuple[ClaimKey, AllocationResult]]) -> Holdings:
        """Return the holdings with these allocations added."""
        more: dict[PoolID, list[ClaimHolding]] = {}
        for claim, allocation in allocations:
            for result in readable_results(allocation):
                if not result.admin_access:  # admin access does not hold the device
                    more.setdefault(PoolID(result.driver, result.pool), []).append(ClaimHolding(claim, result))
        pools = {pool: (*self.pools.get(pool, ()), *holdings) for pool, holdings in more.items()}
        states = {pool: _with(self.state(pool), holdings) for pool, holdings in more.items()}
        return Holdings(self.pools.replaced(pools), self.states.replaced(states))

    def without(self, claims: Mapping[ClaimKey, AllocationResult]) -> Holdings:
        """Return the holdings without these claims."""
        touched = {
            PoolID(result.driver, result.pool)
            for allocation in claims.values()
            for result in readable_results(allocation)
        }
        pools = {
            pool: tuple(holding for holding in self.pools[pool] if holding.claim not in claims)
            for pool in touched
            if pool in self.pools
        }
        states = {pool: _with(_UNTOUCHED, holdings) for pool, holdings in pools.items()}
        return Holdings(self.pools.replaced(pools), self.states.replaced(states))

    def only(self, pools: Iterable[PoolID]) -> Holdings:
        """Return the holdings of some pools."""
        listed = [pool for pool in pools if pool in self.pools]
        return Holdings(
            VersionedMap({pool: self.pools[pool] for pool in listed}),
            VersionedMap({pool: self.states[pool] for pool in listed}),
        )

    def state(self, pool: PoolID) -> PoolState:
        """Return the allocated part of a pool."""
        return self.states.get(pool, _UNTOUCHED)

    def states_of(self, pools: Iterable[PoolID]) -> tuple[PoolState, ...]:
        """Return the allocated part of each of these pools."""
        state = self.states.get
        return tuple([state(pool, _UNTOUCHED) for pool in pools])

    def allocated(self) -> Allocated:
        """Return the holdings for the allocator."""
        return Allocated(self.states)


def _with(state: PoolState, holdings: Iterable[ClaimHolding]) -> PoolState:
    for holding in holdings:
        state = state.with_result(holding.result)
    return state
