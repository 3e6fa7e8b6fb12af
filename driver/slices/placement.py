"""In which slice of its pool a device stands: where it stands already, so that a hot-plugged CPU costs one write.

Split by their order alone, devices move up by one through all slices when one comes or goes; every slice changes then,
and with more than one the whole pool gets a new generation. So published devices stay where they are, new ones go where
there is room, and within a slice the driver's order holds: a device that comes back makes the pool as it was. Only
where a slice would be left empty are all devices split anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from dranode.api.resource import Device

T = TypeVar("T")


def chunks(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """Split items by their order alone."""
    for start in range(0, len(items), size):
        yield tuple(items[start : start + size])


def placed(
    devices: Sequence[Device], size: int, published: Iterable[Sequence[Device]]
) -> tuple[tuple[Device, ...], ...]:
    """Split devices into slices.

    Args:
        devices: in the driver's order, each once.
        size: how many a slice may have.
        published: the devices of the slices that there are, in the order of the slices.
    """
    before = tuple(published)
    homes = {device.name: number for number, there in reversed(tuple(enumerate(before))) for device in there}
    slices: list[list[int]] = [[] for _ in before]
    homeless: list[int] = []
    for place, device in enumerate(devices):
        home = homes.get(device.name)
        if home is None or len(slices[home]) >= size:
            homeless.append(place)
        else:
            slices[home].append(place)
    number = 0
    for place in homeless:
        while number < len(slices) and len(slices[number]) >= size:
            number += 1
        if number == len(slices):
            slices.append([])
        slices[number].append(place)
    if not all(slices):
        return tuple(chunks(devices, size))
    return tuple(tuple(devices[place] for place in sorted(one)) for one in slices)
