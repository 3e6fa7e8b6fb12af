"""A machine's GPUs as values: what was read, no more.

A GPU is a PCI function that computes or draws. SR-IOV virtual functions and AMD's compute partitions are GPUs of their
own with a `parent`; a GPU that has such children is divided, and it and they are never both given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

NVIDIA: Final = 0x10DE
AMD: Final = 0x1002
INTEL: Final = 0x8086

VENDORS: Final = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel"}

ADDRESS: Final = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[0-9a-f]{2})\.(?P<function>[0-7])"
)


class GPUKind(StrEnum):
    """What a GPU is; also the value of the attribute `type`."""

    GPU = "gpu"
    VF = "vf"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Function:
    """A PCI function and the driver that it is bound to; None if it is bound to none."""

    address: str
    driver: str | None

    @property
    def passthrough(self) -> bool:
        """Whether the driver hands the function to a virtual machine: `vfio-pci` and the vendors' variants of it."""
        return self.driver is not None and self.driver.endswith("vfio-pci")


@dataclass(frozen=True, slots=True)
class GPU:
    """One GPU. None is a value that the machine does not tell.

    Attributes:
        address: PCI address of the function (`0000:17:00.0`); a partition's is that of the GPU that it is a part of.
        kind: a whole function, a virtual function or a partition.
        vendor_id: PCI vendor, None if unreadable and not to be told otherwise.
        device_id: PCI device.
        functions: the GPU's own first, then the slot's others (sound, USB) that go with it into a virtual machine.
        model: what people call it.
        driver_version: the driver module's own version, as it stands.
        uuid: the vendor's identity of the chip (`GPU-...`).
        pcie_root: `pci<domain>:<bus>` of the root complex.
        numa_node: the NUMA node of the CPUs that are near.
        memory_node: the NUMA node that the GPU's own memory is (coherent systems).
        link_speed: the fastest that the PCIe link goes, in MT/s.
        link_width: its number of lanes.
        memory: bytes of its own memory.
        compute_capability: CUDA compute capability as a version (`9.0.0`).
        parent: address of the physical function, or of the GPU that a partition is a part of.
        partition: number of the partition, from 0.
        partition_mode: `<compute>_<memory>`, AMD's words (`CPX_NPS4`).
        pinned: an administrator has chosen the driver (`driver_override`).
    """

    address: str
    kind: GPUKind = GPUKind.GPU
    vendor_id: int | None = None
    device_id: int | None = None
    functions: tuple[Function, ...] = ()
    model: str | None = None
    driver_version: str | None = None
    uuid: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    memory_node: int | None = None
    link_speed: int | None = None
    link_width: int | None = None
    memory: int | None = None
    compute_capability: str | None = None
    parent: str | None = None
    partition: int | None = None
    partition_mode: str | None = None
    pinned: bool = False

    @property
    def name(self) -> str:
        """The device's name: from the PCI address, so that it outlives reboots and new minor numbers."""
        return device_name(self.address, self.partition)

    @property
    def parent_name(self) -> str | None:
        """The parent's device name."""
        return None if self.parent is None else device_name(self.parent)

    @property
    def vendor(self) -> str:
        """`nvidia`, `amd`, `intel`, else the PCI vendor (`0x1ed5`), `unknown` if even that cannot be read."""
        if self.vendor_id is None:
            return "unknown"
        return VENDORS.get(self.vendor_id, f"0x{self.vendor_id:04x}")

    @property
    def driver(self) -> str | None:
        """The kernel driver that the GPU is bound to."""
        return self.functions[0].driver if self.functions else None


@dataclass(frozen=True)
class GPUInventory:
    """All GPUs, in the order of their addresses, partitions after their GPU.

    Attributes:
        gpus: every GPU once.
        warnings: one sentence each for what was found odd, with what was made of it.
        left_out: why a GPU that is on the bus is none of these, one of the warnings, by PCI address.
    """

    gpus: tuple[GPU, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> dict[str, GPU]:
        """The GPUs by device name."""
        return {gpu.name: gpu for gpu in self.gpus}

    @cached_property
    def children(self) -> dict[str, tuple[GPU, ...]]:
        """The parts of every divided GPU, by its device name."""
        parts: dict[str, tuple[GPU, ...]] = {}
        for gpu in self.gpus:
            if gpu.parent_name is not None and gpu.parent_name in self.by_name:
                parts[gpu.parent_name] = (*parts.get(gpu.parent_name, ()), gpu)
        return parts

    def family(self, name: str) -> frozenset[str]:
        """The devices that share silicon with `name` in a way that excludes it: its parent, or all its parts."""
        gpu = self.by_name[name]
        related = {part.name for part in self.children.get(name, ())}
        if gpu.parent_name in self.children:
            related.add(gpu.parent_name)
        return frozenset(related)


def device_name(address: str, partition: int | None = None) -> str:
    """`gpu-0000-17-00-0`, with `-p<n>` for a partition: a DNS label."""
    base = f"gpu-{address.replace(':', '-').replace('.', '-')}"
    return base if partition is None else f"{base}-p{partition}"


def sort_key(gpu: GPU) -> tuple[int, ...]:
    """By PCI address as numbers (a wide domain comes after the others), a GPU before its partitions."""
    parts = [int(part, 16) for part in re.split("[:.]", gpu.address)]
    return (*parts, -1 if gpu.partition is None else gpu.partition)


def doubtful_uuids(gpus: Iterable[GPU]) -> dict[str, tuple[str, ...]]:
    """UUIDs that several GPUs claim, each with the devices; a partition may bear that of its GPU."""
    bearers: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.uuid is not None and gpu.kind is not GPUKind.PARTITION:
            bearers.setdefault(gpu.uuid, []).append(gpu.name)
    return {uuid: tuple(names) for uuid, names in bearers.items() if len(names) > 1}
