"""A machine's GPUs as values.

A GPU is a PCI function that computes or draws. SR-IOV virtual functions and AMD's compute partitions are separate GPUs
with a `parent`. A GPU with such children is divided: claims get either the GPU or its children, never both.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Final

import msgspec

NVIDIA: Final = 0x10DE
AMD: Final = 0x1002
INTEL: Final = 0x8086

VENDORS: Final = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel"}

ADDRESS: Final = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[0-9a-f]{2})\.(?P<function>[0-7])"
)


_NAME: Final = re.compile(
    r"gpu-(?P<domain>[0-9a-f]{4,8})-(?P<bus>[0-9a-f]{2})-(?P<slot>[0-9a-f]{2})-(?P<function>[0-7])"
    r"(-p(?P<partition>[0-9]{1,3}))?",
    re.ASCII,
)


class GPUKind(StrEnum):
    """The kinds of GPUs; also the values of the attribute `type`."""

    GPU = "gpu"
    VF = "vf"
    PARTITION = "partition"


class Function(msgspec.Struct, frozen=True):
    """A PCI function and the driver that it is bound to; None if it is bound to none."""

    address: str
    driver: str | None

    @property
    def passthrough(self) -> bool:
        """Return whether its driver passes the function to virtual machines: `vfio-pci` or a vendor's variant of it."""
        # Variants have the name of their module, with underscores: `nvgrace_gpu_vfio_pci`, `xe_vfio_pci`.
        return self.driver is not None and self.driver.replace("_", "-").endswith("vfio-pci")


class GPU(msgspec.Struct, frozen=True):
    """One GPU. A value is None if the machine does not report it.

    Attributes:
        address: PCI address of the function (`0000:17:00.0`); a partition has the address of its GPU.
        kind: a whole function, a virtual function or a partition.
        vendor_id: PCI vendor; None if it cannot be read and nothing else reveals it.
        device_id: PCI device.
        functions: the GPU's own first, then those (sound, USB) that go with it into a virtual machine.
        model: the product name.
        driver_version: the version of the driver's kernel module, unchanged.
        uuid: the vendor's identity of the chip (`GPU-...`).
        pcie_root: `pci<domain>:<bus>` of the root complex.
        numa_node: the NUMA node of the CPUs near the GPU.
        memory_node: the NUMA node that consists of the GPU's own memory (coherent systems).
        link_speed: the maximum speed of the PCIe link, in MT/s.
        link_width: the maximum number of its lanes.
        memory: bytes of its own memory.
        compute_capability: CUDA compute capability as a version (`9.0.0`).
        parent: address of the physical function, or of a partition's GPU.
        partition: number of the partition, from 0.
        partition_mode: `<compute>_<memory>`, AMD's words (`CPX_NPS4`).
        parts: for a partition, the number of partitions of its GPU; otherwise 0.
        iommu_group: the group of functions that a virtual machine gets together; None if there is no IOMMU.
        unserved: why no kernel driver serves it, so that no container could use it; empty if a driver does, or if that
            is not known.
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
    parts: int = 0
    iommu_group: str | None = None
    unserved: str = ""

    @property
    def name(self) -> str:
        """Return the device's name, made from the PCI address so that it survives reboots and new minor numbers."""
        return device_name(self.address, self.partition)

    @property
    def parent_name(self) -> str | None:
        """Return the parent's device name, if there is a parent."""
        return None if self.parent is None else device_name(self.parent)

    @property
    def division(self) -> str:
        """Return how a partition's GPU is divided; empty if this is not a partition.

        It is the mode, with the number of parts if the mode could be read only in part: `CPX_NPS4`, `NPS4 of 8`.
        """
        mode = self.partition_mode or ""
        return "" if self.partition is None else mode if "_" in mode else f"{mode or 'unknown'} of {self.parts}"

    @property
    def source(self) -> str:
        """Return what it is made of, by a name that differs between the divisions of a GPU (`source_of`)."""
        return source_of(self.address, self.parent, self.partition, self.division)

    @property
    def vendor(self) -> str:
        """Return `nvidia`, `amd`, `intel` or another PCI vendor (`0x1ed5`); `unknown` if it cannot be read."""
        if self.vendor_id is None:
            return "unknown"
        return VENDORS.get(self.vendor_id, f"0x{self.vendor_id:04x}")

    @property
    def driver(self) -> str | None:
        """Return the kernel driver that the GPU is bound to, if any."""
        return self.functions[0].driver if self.functions else None


class GPUInventory(msgspec.Struct, frozen=True, dict=True):
    """All GPUs, in the order of their addresses, partitions after their GPU.

    Attributes:
        gpus: every GPU once, including those that no driver serves, which are not published.
        warnings: one sentence for each oddity of the machine and its interpretation.
        left_out: why a GPU on the bus is not listed, by PCI address; each reason is one of the warnings.
    """

    gpus: tuple[GPU, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: Mapping[str, str] = msgspec.field(default_factory=dict)

    @cached_property
    def by_name(self) -> dict[str, GPU]:
        """Return the GPUs by device name."""
        return {gpu.name: gpu for gpu in self.gpus}

    @cached_property
    def by_source(self) -> dict[str, GPU]:
        """Return the GPUs by their sources, and by the sources in records of earlier versions."""
        parts = {gpu.source: gpu for gpu in self.gpus}
        earlier = {source_of(gpu.address, None, gpu.partition, ""): gpu for gpu in self.gpus}
        return {**earlier, **parts}

    @cached_property
    def children(self) -> dict[str, tuple[GPU, ...]]:
        """Return the parts of every divided GPU, by its device name."""
        parts: dict[str, tuple[GPU, ...]] = {}
        for gpu in self.gpus:
            if gpu.parent_name is not None and gpu.parent_name in self.by_name:
                parts[gpu.parent_name] = (*parts.get(gpu.parent_name, ()), gpu)
        return parts

    def family(self, name: str) -> frozenset[str]:
        """Return the devices that a claim may not have together with `name`: its parent, or all its parts."""
        gpu = self.by_name[name]
        related = {part.name for part in self.children.get(name, ())}
        if gpu.parent_name in self.children:
            related.add(gpu.parent_name)
        return frozenset(related)


def device_name(address: str, partition: int | None = None) -> str:
    """Return the device name, a DNS label: `gpu-0000-17-00-0`, with `-p<n>` for a partition."""
    base = f"gpu-{address.replace(':', '-').replace('.', '-')}"
    return base if partition is None else f"{base}-p{partition}"


def source_of(address: str, parent: str | None, partition: int | None, division: str) -> str:
    """Return what a GPU is made of, by a name that stays if GPUs are divided differently (`Plugin.sources`).

    A whole GPU is its address. A part is `<address>/<division>/<part>`; the division of a virtual function is `vf`,
    that of a partition is `GPU.division`. Different divisions divide the same silicon, so their parts overlap.
    """
    if partition is not None:
        return f"{address}/{division}/{partition}"
    return address if parent is None else f"{parent}/vf/{address}"


def overlap(first: str, second: str) -> bool:
    """Return whether two sources overlap: they are of one GPU, and are not different parts of one division."""
    (gpu, *part), (other_gpu, *other_part) = first.split("/"), second.split("/")
    different_parts = len(part) == len(other_part) and part[:1] == other_part[:1] and part[1:] != other_part[1:]
    return gpu == other_gpu and not different_parts


def named_source(device: str) -> str | None:
    """Return what a device is made of, as far as its name tells; None if it is not a name of this driver."""
    match = _NAME.fullmatch(device)
    if match is None:
        return None
    address = f"{match['domain']}:{match['bus']}:{match['slot']}.{match['function']}"
    return source_of(address, None, None if match["partition"] is None else int(match["partition"]), "")


def sort_key(gpu: GPU) -> tuple[int, ...]:
    """Return the key that sorts GPUs by PCI address as numbers, and a GPU before its partitions."""
    parts = [int(part, 16) for part in re.split("[:.]", gpu.address)]
    return (*parts, -1 if gpu.partition is None else gpu.partition)


def doubtful_uuids(gpus: Iterable[GPU]) -> dict[str, tuple[str, ...]]:
    """Return the UUIDs that several GPUs report, with their devices; a partition may have the UUID of its GPU."""
    devices: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.uuid is not None and gpu.kind is not GPUKind.PARTITION:
            devices.setdefault(gpu.uuid, []).append(gpu.name)
    return {uuid: tuple(names) for uuid, names in devices.items() if len(names) > 1}


# Names of common GPUs by PCI id, for GPUs whose driver reports none (ids: the public PCI ID repository).

_NAMES: Final = {
    NVIDIA: {
        0x1DB1: "Tesla V100-SXM2-16GB",
        0x1DB4: "Tesla V100-PCIE-16GB",
        0x1DB5: "Tesla V100-SXM2-32GB",
        0x1DB6: "Tesla V100-PCIE-32GB",
        0x1EB8: "Tesla T4",
        0x20B0: "A100-SXM4-40GB",
        0x20B2: "A100-SXM4-80GB",
        0x20B5: "A100 80GB PCIe",
        0x20B7: "A30",
        0x20F1: "A100-PCIE-40GB",
        0x2235: "A40",
        0x2236: "A10",
        0x2237: "A10G",
        0x2321: "H100 NVL",
        0x2330: "H100 80GB HBM3",
        0x2331: "H100 PCIe",
        0x2335: "H200",
        0x233B: "H200 NVL",
        0x2342: "GH200",
        0x26B5: "L40",
        0x26B9: "L40S",
        0x27B8: "L4",
        0x2901: "B200",
        0x2941: "GB200",
        0x3182: "B300",
        0x31C2: "GB300",
    },
    AMD: {
        0x738C: "Instinct MI100",
        0x7408: "Instinct MI250X",
        0x740C: "Instinct MI250X/MI250",
        0x740F: "Instinct MI210",
        0x74A0: "Instinct MI300A",
        0x74A1: "Instinct MI300X",
        0x74A2: "Instinct MI308X",
        0x74A5: "Instinct MI325X",
        0x74B5: "Instinct MI300X VF",
        0x75A0: "Instinct MI350X",
        0x75A3: "Instinct MI355X",
        0x1681: "Radeon 680M",
        0x150E: "Radeon 880M/890M",
    },
    INTEL: {
        0x0BD5: "Data Center GPU Max 1550",
        0x0BD6: "Data Center GPU Max 1550",
        0x0BD9: "Data Center GPU Max 1100",
        0x0BDA: "Data Center GPU Max 1100",
        0x0BDB: "Data Center GPU Max 1100",
        0x56A0: "Arc A770",
        0x56A1: "Arc A750",
        0x56A5: "Arc A380",
        0x56C0: "Data Center GPU Flex 170",
        0x56C1: "Data Center GPU Flex 140",
        0x56C2: "Data Center GPU Flex 170V",
        0xE20B: "Arc B580",
        0xE20C: "Arc B570",
        0xE211: "Arc Pro B60",
        0xE212: "Arc Pro B50",
        0xE223: "Arc Pro B70",
        0x46A6: "Iris Xe Graphics",
        0x64A0: "Arc Graphics 130V/140V",
        0x7D55: "Arc Graphics",
        0x9A49: "Iris Xe Graphics",
        0xA7A0: "Iris Xe Graphics",
    },
}


def model_name(vendor_id: int | None, device_id: int | None) -> str | None:
    """Return the product name of a common GPU by its PCI ids; None for others."""
    if vendor_id is None or device_id is None:
        return None
    return _NAMES.get(vendor_id, {}).get(device_id)
