"""Records which claim holds what of every pool, so that it can be given back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dranode.api.resource import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from dranode.driver.claims.grant import readable_results
from dranode.sim.allocator.state import Allocated, PoolID, PoolState
from dranode.sim.scheduler.versions import VersionedMap

_UNTOUCHED: Final = PoolState()


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
    """The parts of all pools that claims hold; a pool that is not named is untouched.

    Attributes:
        pools: each part with its claim.
        states: the parts together, as the allocator counts them.
    """

    pools: VersionedMap[PoolID, tuple[ClaimHolding, ...]] = field(default_factory=VersionedMap)
    states: VersionedMap[PoolID, PoolState] = field(default_factory=VersionedMap)

    def with_claims(self, allocations: Iterable[tuple[ClaimKey, AllocationResult]]) -> Holdings:
        """The holdings when these claims hold their allocations as well."""
        more: dict[PoolID, list[ClaimHolding]] = {}
        for claim, allocation in allocations:
            for result in readable_results(allocation):
                if not result.admin_access:  # admin access holds nothing
                    more.setdefault(PoolID(result.driver, result.pool), []).append(ClaimHolding(claim, result))
        pools = {pool: (*self.pools.get(pool, ()), *holdings) for pool, holdings in more.items()}
        states = {pool: _with(self.state(pool), holdings) for pool, holdings in more.items()}
        return Holdings(self.pools.replaced(pools), self.states.replaced(states))

    def without(self, claims: Mapping[ClaimKey, AllocationResult]) -> Holdings:
        """The holdings when these claims hold nothing."""
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
        """The holdings of some pools."""
        known = [pool for pool in pools if pool in self.pools]
        return Holdings(
            VersionedMap({pool: self.pools[pool] for pool in known}),
            VersionedMap({pool: self.states[pool] for pool in known}),
        )

    def state(self, pool: PoolID) -> PoolState:
        """Return what is allocated of a pool."""
        return self.states.get(pool, _UNTOUCHED)

    def states_of(self, pools: Iterable[PoolID]) -> tuple[PoolState, ...]:
        """Return what is allocated of each of these pools."""
        state = self.states.get
        return tuple([state(pool, _UNTOUCHED) for pool in pools])

    def allocated(self) -> Allocated:
        """Return the same as the allocator reads it."""
        return Allocated(self.states)


def _with(state: PoolState, holdings: Iterable[ClaimHolding]) -> PoolState:
    for holding in holdings:
        state = state.with_result(holding.result)
    return state
