"""Says how near devices are to each other and to the machine's NUMA nodes, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import takewhile

import msgspec

from dranode.api.cpuset import CPUSet


class Proximity(StrEnum):
    """The obstacles between two devices, from near to far."""

    SELF = "X"
    SWITCH = "PIX"
    SWITCHES = "PXB"
    ROOT = "PHB"
    NODE = "NODE"
    WITHIN_NODE = "<=NODE"
    SYSTEM = "SYS"
    UNKNOWN = "?"


MEANINGS: Mapping[Proximity, str] = {
    Proximity.SELF: "itself",
    Proximity.SWITCH: "at most one PCIe switch between them",
    Proximity.SWITCHES: "several PCIe switches, and no root complex",
    Proximity.ROOT: "a PCIe root complex",
    Proximity.NODE: "several root complexes of one NUMA node",
    Proximity.WITHIN_NODE: "one NUMA node, or nearer: the machine does not show the root complexes",
    Proximity.SYSTEM: "the link between NUMA nodes",
    Proximity.UNKNOWN: "the machine does not say",
}


class PCIDevicePlace(msgspec.Struct, frozen=True):
    """A device and where it sits.

    Attributes:
        name: the device's, or that of a network interface.
        owner: the driver that publishes it; `network` for a network controller that nobody does.
        address: its PCI address.
        bridges: what is above it, the root complex first; empty if that is not known.
        numa_node: its NUMA node; None if that is not known.
        cpus: the CPUs near it.
        link: GT/s for each lane of its link, and the lanes, at most; None for what is not known.
        link_now: the same as it is now.
    """

    name: str
    owner: str
    address: str
    bridges: tuple[str, ...] = ()
    numa_node: int | None = None
    cpus: CPUSet = CPUSet()
    link: tuple[float | None, int | None] = (None, None)
    link_now: tuple[float | None, int | None] = (None, None)


class PlacedNode(msgspec.Struct, frozen=True):
    """A NUMA node.

    Attributes:
        number: its number.
        cpus: its CPUs.
        memory: bytes; None if they are not known.
        distances: to every NUMA node, by number; none if they are not known.
    """

    number: int
    cpus: CPUSet
    memory: int | None
    distances: Mapping[int, int]


def proximity(device: PCIDevicePlace, other: PCIDevicePlace) -> Proximity:
    """Return what lies between two devices, by the bridges above them and their NUMA nodes."""
    if device.address == other.address:
        return Proximity.SELF
    if device.bridges and other.bridges and device.bridges[0] == other.bridges[0]:
        return _below_one_root(device.bridges, other.bridges)
    if device.numa_node is None or other.numa_node is None:
        return Proximity.UNKNOWN
    if device.numa_node != other.numa_node:
        return Proximity.SYSTEM
    return Proximity.NODE if device.bridges and other.bridges else Proximity.WITHIN_NODE


def matrix(devices: Sequence[PCIDevicePlace]) -> list[list[Proximity]]:
    """Return a row for each device with what lies between it and every device."""
    return [[proximity(device, other) for other in devices] for device in devices]


def _below_one_root(bridges: Sequence[str], others: Sequence[str]) -> Proximity:
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(bridges, others, strict=False))))
    if common == 1:
        return Proximity.ROOT
    # Below the last bridge that they share, which may be a switch's upper port, each may have one port of that switch.
    return Proximity.SWITCH if max(len(bridges), len(others)) - common <= 1 else Proximity.SWITCHES
