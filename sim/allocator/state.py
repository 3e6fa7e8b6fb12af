"""The devices that are already allocated: as a whole or in shares, with the capacity that the shares consume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple, Self, TypeAlias

from dranode.api.names import qualified
from dranode.api.resource import AllocationResult, Device, DeviceRequestAllocationResult, PoolID, ResourceClaim
from dranode.driver.claims.grant import readable_results

Amount: TypeAlias = int | Fraction


class Consumption(NamedTuple):
    """An amount of one capacity of one device; `capacity` is the qualified name."""

    device: str
    capacity: str
    amount: Amount


@dataclass(frozen=True, slots=True)
class PoolState:
    """The allocated part of one pool; if two states are equal, the same devices are free.

    Attributes:
        devices: the names of devices that are allocated as a whole.
        shared: the names of devices with allocated shares.
        consumed: the consumed amounts, one entry for each device and capacity.
    """

    devices: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    consumed: frozenset[Consumption] = frozenset()

    def with_result(self, result: DeviceRequestAllocationResult) -> PoolState:
        """Return the state with one more allocation result."""
        if result.share_id is None:
            return replace(self, devices=self.devices | {result.device})
        before = {item.capacity: item for item in self.consumed if item.device == result.device}
        amounts = {qualified(name, result.driver): amount.value for name, amount in result.consumed_capacity.items()}
        more = {
            Consumption(result.device, name, amount + (before[name].amount if name in before else 0))
            for name, amount in amounts.items()
        }
        replaced = {before[item.capacity] for item in more if item.capacity in before}
        return PoolState(self.devices, self.shared | {result.device}, (self.consumed - replaced) | more)

    def without_shares(self) -> PoolState:
        """Return the state in which devices with allocated shares count as allocated as a whole."""
        return PoolState(self.devices | self.shared) if self.shared else self

    def consumed_of(self, device: Device, driver: str) -> dict[str, Amount]:
        """Return the consumed amounts of the device's capacities, by the names under which they are published."""
        names = {qualified(name, driver): name for name in device.capacity}
        return {
            names.get(item.capacity, item.capacity): item.amount for item in self.consumed if item.device == device.name
        }


_UNTOUCHED = PoolState()


@dataclass(frozen=True, slots=True)
class Allocated:
    """The state of all pools; nothing is allocated from pools that are not listed.

    Attributes:
        pools: the allocated part of each pool.
        shares: whether devices can be shared. If not, kube-scheduler counts a share as the whole device
            (`GatherAllocatedState`, the same from 1.34 to 1.37).
    """

    pools: Mapping[PoolID, PoolState] = field(default_factory=lambda: MappingProxyType({}))
    shares: bool = True

    @classmethod
    def of(cls, claims: Iterable[ResourceClaim]) -> Self:
        """Return the devices of these claims; a claim that is listed twice counts once."""
        pools: dict[PoolID, PoolState] = {}
        by_uid = {(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid): claim for claim in claims}
        for claim in by_uid.values():
            if claim.status.allocation is not None:
                _enter(pools, claim.status.allocation)
        return cls(pools)

    def pool(self, pool: PoolID) -> PoolState:
        """Return the state of one pool."""
        state = self.pools.get(pool, _UNTOUCHED)
        return state if self.shares else state.without_shares()

    def without_shares(self) -> Allocated:
        """Return the state for a cluster in which devices cannot be shared."""
        return replace(self, shares=False)

    def with_allocations(self, allocations: Iterable[AllocationResult]) -> Allocated:
        """Return the state with these allocations added."""
        pools = dict(self.pools)
        for allocation in allocations:
            _enter(pools, allocation)
        return replace(self, pools=pools)


def _enter(pools: dict[PoolID, PoolState], allocation: AllocationResult) -> None:
    for result in readable_results(allocation):
        if not result.admin_access:  # admin access does not hold the device
            pool = PoolID(result.driver, result.pool)
            pools[pool] = pools.get(pool, _UNTOUCHED).with_result(result)
