"""The ResourceSlices of a driver's devices, split so that the API server accepts each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from dranode.api.errors import UsageError
from dranode.api.resource import CounterSet, Device, ResourcePool, ResourceSliceSpec
from dranode.driver.claims.inventory import Inventory
from dranode.driver.slices.limits import (
    MAX_COUNTER_SETS,
    MAX_DEVICES,
    MAX_LARGE_DEVICES,
    counter_set_problems,
    frame_problems,
    is_large,
    sanitize,
)
from dranode.driver.slices.placement import chunks, placed


def publishable(inventory: Inventory) -> Inventory:
    """Return the inventory without what the API server would refuse; a warning names everything that is left out."""
    problems: list[str] = []
    counters: list[CounterSet] = []
    for counter_set in inventory.counters:
        refusals = counter_set_problems(counter_set)
        if counter_set.name in {kept.name for kept in counters}:
            refusals = (f'counter set "{counter_set.name}" is left out: there is one of that name already',)
        problems += refusals
        if not refusals:
            counters.append(counter_set)
    devices: list[Device] = []
    names: Counter[str] = Counter()
    known = {counter_set.name: frozenset(counter_set.counters) for counter_set in counters}
    for device in inventory.devices:
        names[device.name] += 1
        if names[device.name] > 1:
            problems.append(f'device "{device.name}" is left out: there is one of that name already')
            continue
        unknown = [
            f"{consumption.counter_set}/{name}"
            for consumption in device.consumes_counters
            for name in consumption.counters
            if name not in known.get(consumption.counter_set, ())
        ]
        if unknown:
            problems.append(f'device "{device.name}" is left out: it draws on unknown counters {", ".join(unknown)}')
            continue
        kept, refusals = sanitize(device)
        problems += refusals
        if kept is not None:
            devices.append(kept)
    if not problems:
        return inventory
    return replace(
        inventory, devices=tuple(devices), counters=tuple(counters), warnings=(*inventory.warnings, *problems)
    )


def desired_slices(
    driver: str, node_name: str, inventory: Inventory, published: Mapping[int, ResourceSliceSpec] | None = None
) -> tuple[ResourceSliceSpec, ...]:
    """Return the slices of a node's one pool; the pool has the node's name and the generation of a first publication.

    Counter sets come first, in slices of their own. Devices follow, 128 a slice, or 64 if any device of the pool has
    taints, counters or list attributes: the limit holds for the whole pool, so that one more taint moves devices to
    other slices at most once. Those that are `published` (slices by index) stay where they are (`placement`), all
    others follow in the driver's order. Without devices there is one empty slice, which shows that the driver is alive.
    What the API server would refuse is left out; `publishable` names it.

    Raises:
        UsageError: the API does not allow the name of the driver or of the node.
    """
    inventory = publishable(inventory)
    size = MAX_LARGE_DEVICES if any(map(is_large, inventory.devices)) else MAX_DEVICES
    there = _devices_by_slice(published or {})
    parts: list[tuple[tuple[CounterSet, ...], tuple[Device, ...]]] = [
        *((counters, ()) for counters in chunks(inventory.counters, MAX_COUNTER_SETS)),
        *(((), devices) for devices in placed(inventory.devices, size, there)),
    ]
    parts = parts or [((), ())]
    pool = ResourcePool(name=node_name, generation=1, resource_slice_count=len(parts))
    slices = tuple(
        ResourceSliceSpec(driver=driver, pool=pool, node_name=node_name, shared_counters=counters, devices=devices)
        for counters, devices in parts
    )
    for problem in frame_problems(slices[0]):
        raise UsageError(f"{problem}; the pool is called like the node, so name the node with --node-name")
    return slices


def _devices_by_slice(published: Mapping[int, ResourceSliceSpec]) -> list[tuple[Device, ...]]:
    """The devices of each slice after those of counter sets; none of a slice that is missing."""
    first = max((index + 1 for index, spec in published.items() if spec.shared_counters), default=0)
    return [
        published[index].devices if index in published else () for index in range(first, max(published, default=-1) + 1)
    ]
