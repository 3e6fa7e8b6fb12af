"""GPUs in `/sys`: PCI functions first, what DRM adds after (Documentation/ABI/testing/sysfs-bus-pci, -class-drm).

The PCI scan is the base because a GPU may have no DRM node: NVIDIA's without nvidia-drm, those on vfio-pci, unbound
ones. Every file may be missing or fail to read (EPERM in a reset, EINVAL without a link); then its value is unknown.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

from dranode.api.errors import MachineError
from dranode.driver.machine.pci import PCI_DEVICES, numa_node, pci_folder, pcie_root
from dranode.driver.machine.root import (
    Root,
    all_names,
    attribute_if_there,
    integer,
    link_name,
    names,
    number,
    read_attribute,
)
from dranode.gpu.health import AERCounts
from dranode.gpu.inventory import ADDRESS, AMD, GPU, NVIDIA, VENDORS, Function, GPUKind, model_name

PROC_NVIDIA: Final = "proc/driver/nvidia"

# Base class and subclass: VGA, 3D, other display, processing accelerator.
GPU_CLASSES: Final = frozenset({0x0300, 0x0302, 0x0380, 0x1200})
_ACCELERATOR: Final = 0x1200

# Adapters that only display, and those of hypervisors; the hosts' own GPUs are none of theirs.
DISPLAYS: Final = {
    0x1013: "Cirrus Logic",
    0x1023: "Trident",
    0x102B: "Matrox",
    0x1234: "Bochs",
    0x126F: "Silicon Motion",
    0x1414: "Hyper-V",
    0x15AD: "VMware",
    0x18CA: "XGI",
    0x1A03: "ASPEED",
    0x1AB8: "Parallels",
    0x1AF4: "virtio",
    0x1B36: "QXL",
    0x5333: "S3",
    0x80EE: "VirtualBox",
}

# One of these is in every sysfs; a machine without PCI lacks the functions alone.
_ANY_SYS: Final = ("sys/bus", "sys/devices")
_SPEED: Final = re.compile(r"(?P<gigatransfers>[0-9]+(?:\.[0-9]+)?) GT/s")
_CHIP: Final = re.compile(r"[0-9a-fA-F]{1,16}")
_UNKNOWN_WIDTHS: Final = frozenset({0, 255})
_MINOR: Final = re.compile(r"(?P<kind>card|renderD)(?P<minor>[0-9]+)", re.ASCII)


def drm_minors(root: Root, folder: str) -> dict[str, int]:
    """The DRM minors under a device's folder: `card` and `renderD`, as far as there are any; connectors are none."""
    found = (_MINOR.fullmatch(name) for name in names(root, f"{folder}/drm"))
    return {match["kind"]: int(match["minor"]) for match in found if match}


def pci_function(root: Root, address: str) -> Function:
    """The function and the driver that it is bound to now."""
    return Function(address, link_name(root, f"{PCI_DEVICES}/{address}/driver"))


class PCI:
    """The PCI functions of a machine, read once: one object a scan."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._versions: dict[str, str | None] = {}
        self._left_out: dict[str, str | None] = {}
        self._vendors: dict[str, int | None] = {}

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of all functions, in the order of their text; none on a machine without PCI.

        Raises:
            MachineError: they cannot be listed, or nothing of `/sys` is there.
        """
        if not any(map(self.root.exists, _ANY_SYS)):
            raise MachineError(f"there is neither /{' nor /'.join(_ANY_SYS)}")
        return tuple(name for name in all_names(self.root, PCI_DEVICES) if ADDRESS.fullmatch(name))

    def vendor(self, address: str) -> int | None:
        """The PCI vendor; NVIDIA's driver vouches for a function whose `vendor` file does not read."""
        if address not in self._vendors:
            vendor = number(self.root, f"{PCI_DEVICES}/{address}/vendor", 16)
            if vendor is None and self.root.exists(f"{PROC_NVIDIA}/gpus/{address}"):
                vendor = NVIDIA
            self._vendors[address] = vendor
        return self._vendors[address]

    @cached_property
    def _slots(self) -> dict[str, list[str]]:
        """The functions of every slot (`0000:17:00`)."""
        slots: dict[str, list[str]] = {}
        for address in self.addresses:
            slots.setdefault(address[:-2], []).append(address)
        return slots

    def left_out(self, address: str) -> str | None:
        """Return why a function is not published, for a log; empty if that goes without saying, None if it is a GPU."""
        if address not in self._left_out:
            self._left_out[address] = self._judge(address)
        return self._left_out[address]

    def _judge(self, address: str) -> str | None:
        whole_class = number(self.root, f"{PCI_DEVICES}/{address}/class", 16)
        if whole_class is None:
            there = self.root.exists(f"{PCI_DEVICES}/{address}")
            return f"PCI function {address} is left out: its class cannot be read" if there else ""
        pci_class = whole_class >> 8
        vendor = self.vendor(address) if pci_class in GPU_CLASSES else None
        if pci_class not in GPU_CLASSES or vendor in DISPLAYS:
            return ""
        if vendor in VENDORS and (pci_class != _ACCELERATOR or vendor in (AMD, NVIDIA)):
            return None
        # A GPU that is passed to a virtual machine was taken from the driver that gave it a render node.
        taken = pci_class != _ACCELERATOR and pci_function(self.root, address).passthrough
        if taken or "renderD" in drm_minors(self.root, f"{PCI_DEVICES}/{address}"):
            return None
        if pci_class == _ACCELERATOR:
            return ""
        known = "an unreadable vendor" if vendor is None else f"vendor 0x{vendor:04x}"
        return f"PCI function {address} of {known} is left out: it has no render node, so nothing could be given"

    def gpu(self, address: str) -> GPU:
        """Return what PCI, DRM and the kernel driver's own files say about the GPU at this address."""
        folder = pci_folder(self.root, address)
        vendor_id = self.vendor(address)
        device_id = number(self.root, f"{folder}/device", 16)
        function = Function(address, link_name(self.root, f"{folder}/driver"))
        parent = link_name(self.root, f"{folder}/physfn")
        return GPU(
            address=address,
            kind=GPUKind.GPU if parent is None else GPUKind.VF,
            vendor_id=vendor_id,
            device_id=device_id,
            functions=(function, *(self._companions(address) if parent is None else ())),
            model=self._product(folder, vendor_id) or model_name(vendor_id, device_id),
            driver_version=self._version(function.driver),
            uuid=self._unique_id(folder, vendor_id),
            pcie_root=pcie_root(self.root, address),
            numa_node=numa_node(self.root, address),
            # A virtual function has no link of its own, and its memory is its parent's to tell.
            link_speed=self._link_speed(folder) if parent is None else None,
            link_width=self._link_width(folder) if parent is None else None,
            memory=self._memory(folder, function.driver) if parent is None else None,
            parent=parent,
            pinned=read_attribute(self.root, f"{folder}/driver_override") not in (None, "", "(null)"),
            iommu_group=link_name(self.root, f"{folder}/iommu_group"),
        )

    def virtual_functions(self, address: str) -> dict[str, int]:
        """The virtual functions of a physical one, by address, with their index from 0."""
        folder = f"{PCI_DEVICES}/{address}"
        functions: dict[str, int] = {}
        for name in names(self.root, folder):
            if name.startswith("virtfn") and name[6:].isdecimal():
                target = link_name(self.root, f"{folder}/{name}")
                if target is not None:
                    functions[target] = int(name[6:])
        return functions

    def _companions(self, address: str) -> tuple[Function, ...]:
        """The slot's other functions that are no GPUs: sound, USB."""
        others = (other for other in self._slots.get(address[:-2], ()) if other != address)
        return tuple(pci_function(self.root, other) for other in others if self.left_out(other) == "")

    def _link_speed(self, folder: str) -> int | None:
        match = _SPEED.match(read_attribute(self.root, f"{folder}/max_link_speed") or "")
        return None if match is None else round(float(match["gigatransfers"]) * 1000)

    def _link_width(self, folder: str) -> int | None:
        width = number(self.root, f"{folder}/max_link_width", 10)
        return None if width in _UNKNOWN_WIDTHS else width

    def _version(self, driver: str | None) -> str | None:
        if driver is None:
            return None
        if driver not in self._versions:
            self._versions[driver] = read_attribute(self.root, f"sys/module/{driver.replace('-', '_')}/version") or None
        return self._versions[driver]

    def _product(self, folder: str, vendor_id: int | None) -> str | None:
        return (read_attribute(self.root, f"{folder}/product_name") or None) if vendor_id == AMD else None

    def _unique_id(self, folder: str, vendor_id: int | None) -> str | None:
        """AMD's `unique_id` in the form that ROCm prints and takes: `GPU-` and 16 hexadecimal digits."""
        # All 64 bits count: half of the chips have the highest one.
        chip = read_attribute(self.root, f"{folder}/unique_id") if vendor_id == AMD else None
        return f"GPU-{int(chip, 16):016x}" if chip and _CHIP.fullmatch(chip) and int(chip, 16) else None

    def _memory(self, folder: str, driver: str | None) -> int | None:
        """Bytes of the GPU's own memory, where the kernel driver has a file for it."""
        match driver:
            case "amdgpu":
                paths = [f"{folder}/mem_info_vram_total"]
            case "xe":
                tiles = [name for name in names(self.root, folder) if name.startswith("tile")]
                paths = [f"{folder}/{tile}/physical_vram_size_bytes" for tile in tiles]
            case "i915":
                card = drm_minors(self.root, folder).get("card")
                paths = [f"{folder}/drm/card{card}/lmem_total_bytes"] if card is not None else []
            case _:
                return None
        sizes = [number(self.root, path) for path in paths]
        # Of a GPU with a tile that does not say it, less would be published than there is.
        return sum(size or 0 for size in sizes) or None if None not in sizes else None


# PCI AER counters: `<function>/aer_dev_fatal` and `aer_dev_nonfatal`, a `<name> <count>` line each and a total.


def aer_counts(root: Root, address: str) -> AERCounts | None:
    """The function's totals; None if it has no AER.

    Raises:
        MachineError: it has, and its counters cannot be read.
    """
    fatal = _total(root, address, "aer_dev_fatal", "TOTAL_ERR_FATAL")
    nonfatal = _total(root, address, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL")
    return None if fatal is None or nonfatal is None else AERCounts(fatal, nonfatal)


def _total(root: Root, address: str, name: str, key: str) -> int | None:
    path = f"{PCI_DEVICES}/{address}/{name}"
    text = attribute_if_there(root, path)
    if text is None:
        return None
    for line in text.splitlines():
        label, _, count = line.partition(" ")
        if label == key and (errors := integer(count, 10)) is not None and errors >= 0:
            return errors
    raise MachineError(f"/{path} cannot be read: it has no {key}")
