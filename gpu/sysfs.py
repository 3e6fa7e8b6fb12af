"""Reads GPUs from `/sys`: PCI functions, with what DRM adds (Documentation/ABI/testing/sysfs-bus-pci, -class-drm).

The PCI functions come first because a GPU may have no DRM node: NVIDIA's without nvidia-drm, and those that are on
vfio-pci or unbound. Every file may be missing or unreadable (EPERM in a reset, EINVAL without a link); its value is
unknown then.
"""

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

# PCI vendors of adapters that only display (servers' management controllers, hypervisors) and cannot compute: Cirrus
# Logic, Trident, Matrox, Bochs, Silicon Motion, Hyper-V, VMware, XGI, ASPEED, Parallels, virtio, QXL, S3, VirtualBox.
DISPLAYS: Final = frozenset(
    {0x1013, 0x1023, 0x102B, 0x1234, 0x126F, 0x1414, 0x15AD, 0x18CA, 0x1A03, 0x1AB8, 0x1AF4, 0x1B36, 0x5333, 0x80EE}
)

# Every sysfs has one of these, also on a machine without PCI. If both are missing, sysfs was not seen.
_ANY_SYS: Final = ("sys/bus", "sys/devices")
_SPEED: Final = re.compile(r"(?P<gigatransfers>[0-9]+(?:\.[0-9]+)?) GT/s")
_CHIP: Final = re.compile(r"[0-9a-fA-F]{1,16}")
_UNKNOWN_WIDTHS: Final = frozenset({0, 255})
_MINOR: Final = re.compile(r"(?P<kind>card|renderD)(?P<minor>[0-9]+)", re.ASCII)


def drm_minors(root: Root, folder: str) -> dict[str, int]:
    """Return the minor numbers of the `card` and `renderD` nodes in a device's folder, without those of connectors."""
    matches = filter(None, map(_MINOR.fullmatch, names(root, f"{folder}/drm")))
    return {match["kind"]: int(match["minor"]) for match in matches}


def pci_function(root: Root, address: str) -> Function:
    """Return the function with its present driver."""
    return Function(address, link_name(root, f"{PCI_DEVICES}/{address}/driver"))


class PCI:
    """The PCI functions of a machine, each judged once; every scan makes a new object."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._left_out: dict[str, str | None] = {}

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of all functions as sorted texts; none on a machine without PCI.

        Raises:
            MachineError: they cannot be listed, or `/sys` is not mounted.
        """
        if not any(map(self.root.exists, _ANY_SYS)):
            raise MachineError(f"there is neither /{' nor /'.join(_ANY_SYS)}")
        return tuple(name for name in all_names(self.root, PCI_DEVICES) if ADDRESS.fullmatch(name))

    def vendor(self, address: str) -> int | None:
        """Return the PCI vendor. A function whose `vendor` file is unreadable is NVIDIA's if NVIDIA's driver has it."""
        vendor = number(self.root, f"{PCI_DEVICES}/{address}/vendor", 16)
        return NVIDIA if vendor is None and self.root.exists(f"{PROC_NVIDIA}/gpus/{address}") else vendor

    @cached_property
    def _slots(self) -> dict[str, list[str]]:
        """Return the functions of every slot (`0000:17:00`)."""
        slots: dict[str, list[str]] = {}
        for address in self.addresses:
            slots.setdefault(address[:-2], []).append(address)
        return slots

    def left_out(self, address: str) -> str | None:
        """Return why a function is not published; empty if it obviously is not a GPU, None if it is one."""
        if address not in self._left_out:
            self._left_out[address] = self._judge(address)
        return self._left_out[address]

    def _judge(self, address: str) -> str | None:
        whole_class = number(self.root, f"{PCI_DEVICES}/{address}/class", 16)
        if whole_class is None:
            exists = self.root.exists(f"{PCI_DEVICES}/{address}")
            return f"PCI function {address} is left out: its class cannot be read" if exists else ""
        pci_class = whole_class >> 8
        vendor = self.vendor(address) if pci_class in GPU_CLASSES else None
        if pci_class not in GPU_CLASSES or vendor in DISPLAYS:
            return ""
        if vendor in VENDORS and (pci_class != _ACCELERATOR or vendor in (AMD, NVIDIA)):
            return None
        # A GPU on vfio-pci has no render node, because it was taken from the driver that made it.
        taken = pci_class != _ACCELERATOR and pci_function(self.root, address).passthrough
        if taken or "renderD" in drm_minors(self.root, f"{PCI_DEVICES}/{address}"):
            return None
        if pci_class == _ACCELERATOR:
            return ""
        known = "an unreadable vendor" if vendor is None else f"vendor 0x{vendor:04x}"
        return f"PCI function {address} of {known} is left out: it has no render node that a container could use"

    def gpu(self, address: str) -> GPU:
        """Return the GPU at this address, from the files of PCI, DRM and its kernel driver."""
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
            # A virtual function has no link of its own, and only its parent knows its memory.
            link_speed=self._link_speed(folder) if parent is None else None,
            link_width=self._link_width(folder) if parent is None else None,
            memory=self._memory(folder, function.driver) if parent is None else None,
            parent=parent,
            iommu_group=self._group(address),
        )

    def virtual_functions(self, address: str) -> dict[str, int]:
        """Return the indexes, from 0, of a physical function's virtual functions, by address."""
        folder = f"{PCI_DEVICES}/{address}"
        functions: dict[str, int] = {}
        for name in names(self.root, folder):
            if name.startswith("virtfn") and name[6:].isdecimal():
                target = link_name(self.root, f"{folder}/{name}")
                if target is not None:
                    functions[target] = int(name[6:])
        return functions

    def _companions(self, address: str) -> tuple[Function, ...]:
        """Return the functions of its slot and IOMMU group that are not GPUs: sound, USB.

        A virtual machine gets a whole group. Functions of other groups stay: a processor with a GPU has the node's
        USB controllers in the same slot.
        """
        group = self._group(address)
        others = (other for other in self._slots.get(address[:-2], ()) if other != address)
        goes_with_it = (other for other in others if self.left_out(other) == "" and self._group(other) == group)
        return tuple(pci_function(self.root, other) for other in goes_with_it)

    def _group(self, address: str) -> str | None:
        return link_name(self.root, f"{PCI_DEVICES}/{address}/iommu_group")

    def _link_speed(self, folder: str) -> int | None:
        match = _SPEED.match(read_attribute(self.root, f"{folder}/max_link_speed") or "")
        return None if match is None else round(float(match["gigatransfers"]) * 1000)

    def _link_width(self, folder: str) -> int | None:
        width = number(self.root, f"{folder}/max_link_width", 10)
        return None if width in _UNKNOWN_WIDTHS else width

    def _version(self, driver: str | None) -> str | None:
        module = None if driver is None else driver.replace("-", "_")
        return (read_attribute(self.root, f"sys/module/{module}/version") or None) if module else None

    def _product(self, folder: str, vendor_id: int | None) -> str | None:
        return (read_attribute(self.root, f"{folder}/product_name") or None) if vendor_id == AMD else None

    def _unique_id(self, folder: str, vendor_id: int | None) -> str | None:
        """Return AMD's `unique_id` in ROCm's form: `GPU-` and 16 hexadecimal digits."""
        # The id has 64 bits; half of the chips have the highest bit set.
        chip = read_attribute(self.root, f"{folder}/unique_id") if vendor_id == AMD else None
        return f"GPU-{int(chip, 16):016x}" if chip and _CHIP.fullmatch(chip) and int(chip, 16) else None

    def _memory(self, folder: str, driver: str | None) -> int | None:
        """Return the bytes of the GPU's own memory; None if the kernel driver has no file for it."""
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
        # If a tile does not report its memory, the sum would be too small.
        return sum(size or 0 for size in sizes) or None if None not in sizes else None


# PCI AER counters: `aer_dev_fatal` and `aer_dev_nonfatal` have a line `<name> <count>` for each error, and a total.


def aer_counts(root: Root, address: str) -> AERCounts | None:
    """Return the function's totals; None if it has no AER.

    Raises:
        MachineError: the counters exist and cannot be read.
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
