"""Builds the allocator's view of what is in use from a scenario."""

from typing import Any

from dranode.api.quantity import Quantity
from dranode.api.resource import PoolID
from dranode.sim.allocator.state import Allocated, Consumption, PoolState


def allocated_of(in_use: dict[str, Any]) -> Allocated:
    """The state of the pools: `driver/pool/device` in use, shares of devices, and the capacity that these consume."""
    pools: dict[PoolID, PoolState] = {}

    def enter(driver: str, pool: str, **more: frozenset[Any]) -> None:
        known = pools.get(PoolID(driver, pool), PoolState())
        pools[PoolID(driver, pool)] = PoolState(
            known.devices | more.get("devices", frozenset()),
            known.shared | more.get("shared", frozenset()),
            known.consumed | more.get("consumed", frozenset()),
        )

    for name in in_use["devices"]:
        driver, pool, device = name.split("/")
        enter(driver, pool, devices=frozenset({device}))
    for name in in_use["shares"]:
        driver, pool, device, _ = name.split("/")
        enter(driver, pool, shared=frozenset({device}))
    for name, amounts in in_use["consumed"].items():
        driver, pool, device = name.split("/")
        consumed = {Consumption(device, capacity, Quantity(amount).value) for capacity, amount in amounts.items()}
        enter(driver, pool, shared=frozenset({device}), consumed=frozenset(consumed))
    return Allocated(pools)
