"""The devices that are allocated already: whole, as shares, and the capacity that the shares consume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple, Self, TypeAlias

from dranode.api.names import qualified
from dranode.api.resource import AllocationResult, Device, DeviceRequestAllocationResult, ResourceClaim
from dranode.driver.claims.grant import readable_results

Amount: TypeAlias = int | Fraction


class PoolID(NamedTuple):
    """The name of a pool: pools of two drivers may have the same one."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class Consumption(NamedTuple):
    """An amount of one capacity of one device; `capacity` is its name with the domain."""

    device: str
    capacity: str
    amount: Amount


@dataclass(frozen=True, slots=True)
class PoolState:
    """The allocated part of one pool; with equal values the same devices are free.

    Attributes:
        devices: the names of devices that are allocated whole.
        shared: the names of devices of which a share is allocated.
        consumed: one entry for each capacity of a device of which something is consumed.
    """

    devices: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    consumed: frozenset[Consumption] = frozenset()

    def with_result(self, result: DeviceRequestAllocationResult) -> PoolState:
        """The state after one more result."""
        if result.share_id is None:
            return replace(self, devices=self.devices | {result.device})
        before = {item.capacity: item for item in self.consumed if item.device == result.device}
        taken = {qualified(name, result.driver): amount.value for name, amount in result.consumed_capacity.items()}
        more = {
            Consumption(result.device, name, amount + (before[name].amount if name in before else 0))
            for name, amount in taken.items()
        }
        replaced = {before[item.capacity] for item in more if item.capacity in before}
        return PoolState(self.devices, self.shared | {result.device}, (self.consumed - replaced) | more)

    def without_shares(self) -> PoolState:
        """The state where a device of which a share is allocated counts as allocated whole."""
        return PoolState(self.devices | self.shared) if self.shared else self

    def consumed_of(self, device: Device, driver: str) -> dict[str, Amount]:
        """Return what is consumed of the device's capacities, by the names under which it is published."""
        names = {qualified(name, driver): name for name in device.capacity}
        return {names.get(one.capacity, one.capacity): one.amount for one in self.consumed if one.device == device.name}


_UNTOUCHED = PoolState()


@dataclass(frozen=True, slots=True)
class Allocated:
    """The state of all pools; a pool that is not named is untouched.

    Attributes:
        pools: what is allocated of each.
        shares: whether devices can be shared. Where not, kube-scheduler takes a share for its whole device
            (`GatherAllocatedState`, the same from 1.34 to 1.37).
    """

    pools: Mapping[PoolID, PoolState] = field(default_factory=lambda: MappingProxyType({}))
    shares: bool = True

    @classmethod
    def of(cls, claims: Iterable[ResourceClaim]) -> Self:
        """Return what these claims hold.

        Those that are not allocated hold nothing; one that comes twice counts once.
        """
        pools: dict[PoolID, PoolState] = {}
        once = {(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid): claim for claim in claims}
        for claim in once.values():
            if claim.status.allocation is not None:
                _enter(pools, claim.status.allocation)
        return cls(pools)

    def pool(self, pool: PoolID) -> PoolState:
        """The state of one pool."""
        state = self.pools.get(pool, _UNTOUCHED)
        return state if self.shares else state.without_shares()

    def without_shares(self) -> Allocated:
        """The same where devices cannot be shared."""
        return replace(self, shares=False)

    def with_allocations(self, allocations: Iterable[AllocationResult]) -> Allocated:
        """The state when these are allocated as well."""
        pools = dict(self.pools)
        for allocation in allocations:
            _enter(pools, allocation)
        return replace(self, pools=pools)


def _enter(pools: dict[PoolID, PoolState], allocation: AllocationResult) -> None:
    for result in readable_results(allocation):
        if not result.admin_access:  # admin access holds nothing
            pool = PoolID(result.driver, result.pool)
            pools[pool] = pools.get(pool, _UNTOUCHED).with_result(result)
