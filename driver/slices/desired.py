"""The ResourceSlices of a driver's devices, split so that the API server accepts each of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dranode.api.errors import UsageError
from dranode.api.resource import CounterSet, Device, DeviceTaint, ResourcePool, ResourceSliceSpec
from dranode.api.slice_validation import MAX_COUNTER_SETS, MAX_DEVICES, MAX_LARGE_DEVICES, is_large, spec_errors
from dranode.driver.claims.plugin import DeviceHealth, Health, Inventory
from dranode.driver.slices.publishable import publishable


def desired_slices(
    driver: str, node_name: str, inventory: Inventory, published: Mapping[int, ResourceSliceSpec] | None = None
) -> tuple[ResourceSliceSpec, ...]:
    """Return the slices of a node's one pool; the pool has the node's name and the generation of a first publication.

    Counter sets come first, in slices of their own. Devices follow, 128 in each slice, or 64 if any device of the pool
    has taints, counters or list attributes. This limit applies to the whole pool, so that devices move to other slices
    only once, not with every taint. Devices that are `published` (slices by index) stay in their slices (`placed`);
    others follow in the driver's order. Without devices there is one empty slice, which shows that the driver is alive.
    What the API server would reject is left out; `publishable` names it.

    Raises:
        UsageError: the API does not allow the name of the driver or of the node.
    """
    inventory = publishable(inventory)
    size = MAX_LARGE_DEVICES if any(map(is_large, inventory.devices)) else MAX_DEVICES
    in_slices = _devices_by_slice(published or {})
    parts: list[tuple[tuple[CounterSet, ...], tuple[Device, ...]]] = [
        *((counters, ()) for counters in chunks(inventory.counters, MAX_COUNTER_SETS)),
        *(((), devices) for devices in placed(inventory.devices, size, in_slices)),
    ]
    parts = parts or [((), ())]
    pool = ResourcePool(name=node_name, generation=1, resource_slice_count=len(parts))
    slices = tuple(
        ResourceSliceSpec(driver=driver, pool=pool, node_name=node_name, shared_counters=counters, devices=devices)
        for counters, devices in parts
    )
    # Devices and counter sets were checked by `publishable`. The rest is the same in all slices, so one is enough.
    for error in spec_errors(replace(slices[0], shared_counters=(), devices=())):
        raise UsageError(
            f"{error.path}: {error.message}; the pool has the node's name; set another one with --node-name"
        )
    return slices


def _devices_by_slice(published: Mapping[int, ResourceSliceSpec]) -> list[tuple[Device, ...]]:
    """Return the devices of each slice after the slices of counter sets; none for a missing slice."""
    # `desired_slices` never puts counter sets and devices into one slice, so the devices begin after the last slice
    # with counter sets.
    first = max((index + 1 for index, spec in published.items() if spec.shared_counters), default=0)
    return [
        published[index].devices if index in published else () for index in range(first, max(published, default=-1) + 1)
    ]


# A published device stays in its slice, so that a hot-plugged device costs one write.
#
# If devices were split only by their order, one that comes or goes would shift all later ones by one. Then several
# slices change, and the whole pool needs a new generation. So published devices stay where they are, and new ones go
# where there is room. Within a slice they are in the driver's order, so that a device that comes back restores the pool
# as it was. All devices are split again only if a slice would be left empty.


T = TypeVar("T")


def chunks(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """Split items in their order."""
    for start in range(0, len(items), size):
        yield tuple(items[start : start + size])


def placed(
    devices: Sequence[Device], size: int, published: Iterable[Sequence[Device]]
) -> tuple[tuple[Device, ...], ...]:
    """Split devices into slices.

    Args:
        devices: the devices in the driver's order, without duplicates.
        size: the most devices of a slice.
        published: the devices of the published slices, in the order of the slices.
    """
    before = tuple(published)
    # In reverse, so that a device that is in several slices by mistake stays in the first one.
    homes = {device.name: number for number, content in reversed(tuple(enumerate(before))) for device in content}
    slices: list[list[int]] = [[] for _ in before]
    homeless: list[int] = []
    for place, device in enumerate(devices):
        home = homes.get(device.name)
        if home is None or len(slices[home]) >= size:
            homeless.append(place)
        else:
            slices[home].append(place)
    # `number` never goes back, because the slices before it are full.
    number = 0
    for place in homeless:
        while number < len(slices) and len(slices[number]) >= size:
            number += 1
        if number == len(slices):
            slices.append([])
        slices[number].append(place)
    if not all(slices):
        return tuple(chunks(devices, size))
    return tuple(tuple(devices[place] for place in sorted(slice_)) for slice_ in slices)


# Taints for unhealthy devices (KEP-5055): the scheduler does not allocate them until they are healthy again.


_EFFECT = "NoSchedule"


def taint_key(driver: str) -> str:
    """Return the key of the taint of a driver's unhealthy devices."""
    return f"{driver}/unhealthy"


def tainted(driver: str, inventory: Inventory, health: Iterable[DeviceHealth]) -> Inventory:
    """Taint every unhealthy device; a device that is healthy, or of unknown health, gets no taint.

    A device that already has this taint from its plug-in stays unchanged. The taint has no time: the publisher keeps
    the time of a published taint, and the API server sets that of a new one.
    """
    key = taint_key(driver)
    unhealthy = {device.device for device in health if device.health is Health.UNHEALTHY}

    def with_taint(device: Device) -> Device:
        if device.name not in unhealthy or any(taint.key == key for taint in device.taints):
            return device
        return msgspec.structs.replace(device, taints=(*device.taints, DeviceTaint(key=key, effect=_EFFECT)))

    return replace(inventory, devices=tuple(map(with_taint, inventory.devices))) if unhealthy else inventory
