"""Records which claim holds what of every pool, so that it can be given back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from dranode.driver.core.api.resource import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from dranode.driver.core.claims.allocation import readable_results
from dranode.sim.allocator.state import Allocated, PoolID, PoolState


class ClaimKey(NamedTuple):
    """The name of a claim."""

    namespace: str
    name: str

    @classmethod
    def of(cls, claim: ResourceClaim) -> ClaimKey:
        """Return the claim's."""
        return cls(claim.metadata.namespace, claim.metadata.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimHolding(NamedTuple):
    """One result of a claim's allocation."""

    claim: ClaimKey
    result: DeviceRequestAllocationResult


@dataclass(frozen=True, slots=True)
class Holdings:
    """The parts of all pools that claims hold; a pool that is not named is untouched."""

    pools: Mapping[PoolID, tuple[ClaimHolding, ...]] = field(default_factory=lambda: MappingProxyType({}))
    _states: Mapping[PoolID, PoolState] = field(default_factory=lambda: MappingProxyType({}))

    def with_claims(self, allocations: Iterable[tuple[ClaimKey, AllocationResult]]) -> Holdings:
        """The holdings when these claims hold their allocations as well."""
        pools, states = dict(self.pools), dict(self._states)
        for claim, allocation in allocations:
            for result in readable_results(allocation):
                if not result.admin_access:  # admin access holds nothing
                    pool = PoolID(result.driver, result.pool)
                    pools[pool] = (*pools.get(pool, ()), ClaimHolding(claim, result))
                    states[pool] = states.get(pool, PoolState()).with_result(result)
        return Holdings(pools, states)

    def without(self, claims: Mapping[ClaimKey, AllocationResult]) -> Holdings:
        """The holdings when these claims hold nothing."""
        pools, states = dict(self.pools), dict(self._states)
        touched = {
            PoolID(result.driver, result.pool)
            for allocation in claims.values()
            for result in readable_results(allocation)
        }
        for pool in touched & pools.keys():
            pools[pool] = tuple(holding for holding in pools[pool] if holding.claim not in claims)
            state = PoolState()
            for holding in pools[pool]:
                state = state.with_result(holding.result)
            states[pool] = state
        return Holdings(pools, states)

    def only(self, pools: Iterable[PoolID]) -> Holdings:
        """The holdings of some pools."""
        known = [pool for pool in pools if pool in self.pools]
        return Holdings({pool: self.pools[pool] for pool in known}, {pool: self._states[pool] for pool in known})

    def state(self, pool: PoolID) -> PoolState:
        """Return what is allocated of a pool."""
        return self._states.get(pool, PoolState())

    def allocated(self) -> Allocated:
        """Return the same as the allocator reads it."""
        return Allocated(self._states)
