"""Made-up machines with GPUs: sysfs, /proc and /dev with the links, newlines and failures of real ones.

`Machine` builds one in memory; `root()` reads it, `write(folder)` unpacks it, `document()` is it as a YAML machine.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dranode.api.cpuset import CPUSet
from dranode.driver.machine.root import link_name
from dranode.sim.machines.confined import ConfinedRoot
from dranode.sim.machines.tree import DeviceFile, Link, TreeEntry, TreeFiles, leaves

DEVICES = "sys/bus/pci/devices"


DRIVERS = "sys/bus/pci/drivers"


NVIDIA, AMD, INTEL, ASPEED = 0x10DE, 0x1002, 0x8086, 0x1A03


VGA, CONTROLLER_3D, DISPLAY, ACCELERATOR = 0x030000, 0x030200, 0x038000, 0x120000


BRIDGE, AUDIO, NVSWITCH = 0x060400, 0x040300, 0x068000


GIB = 1 << 30


class FailingFiles(TreeFiles):
    """Files, folders, links and device nodes, some of which exist and cannot be read."""

    def __init__(self, tree: dict[str, TreeEntry], failures: Mapping[str, int]) -> None:
        super().__init__(tree)
        self.failures = failures

    def read(self, path: str) -> bytes:
        self._fail(path)
        return super().read(path)

    def names(self, path: str) -> list[str]:
        self._fail(path)
        return super().names(path)

    def link(self, path: str) -> str | None:
        target = super().link(path)
        if target is not None:
            self._fail(path)
        return target

    def device(self, path: str) -> tuple[str, int, int]:
        self._fail(path)
        return super().device(path)

    def _fail(self, path: str) -> None:
        if path in self.failures:
            raise OSError(self.failures[path], os.strerror(self.failures[path]), path)


@dataclass(repr=False)
class Machine:
    """A machine under construction.

    Attributes:
        tree: its files.
        failures: real paths of files, folders, links and device nodes that cannot be read, with the error number.
        groups: the group that owns a device node, by path.
    """

    tree: dict[str, TreeEntry] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)

    # --- files ---

    def put(self, path: str, node: TreeEntry | str) -> None:
        """Put a file (text gets the kernel's newline), a link or a device node in place of what is there."""
        folder, name = self._folder(path)
        folder[name] = f"{node}\n".encode() if isinstance(node, str) else node

    def remove(self, path: str) -> None:
        """Remove a file, a link or a whole folder if it exists."""
        folder, name = self._folder(path)
        folder.pop(name, None)

    def fail(self, path: str, number: int = errno.EPERM) -> None:
        """Make a file unreadable; a link fails by its own path in `failures`."""
        self.failures[self.root().resolve(path)] = number

    def bound(self, address: str) -> str | None:
        """The driver to which a function is bound."""
        return link_name(self.root(), f"{DEVICES}/{address}/driver")

    def root(self) -> ConfinedRoot:
        """The machine's files; later changes are visible too."""
        return ConfinedRoot(FailingFiles(self.tree, self.failures))

    def write(self, folder: Path) -> Path:
        """Unpack into a folder, without device nodes, since these need root."""
        for path, node in leaves(self.tree):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(node, Link):
                place.symlink_to(node.target)
            elif isinstance(node, bytes):
                place.write_bytes(node)
        return folder

    def document(self) -> dict[str, Any]:
        """The machine as a YAML machine's long form, without the files that cannot be read."""
        document: dict[str, dict[str, str]] = {"files": {}, "links": {}, "devices": {}}
        for path, node in leaves(self.tree):
            match node:
                case Link(target):
                    document["links"][f"/{path}"] = target
                case DeviceFile(kind, major, minor):
                    document["devices"][f"/{path}"] = f"{kind} {major}:{minor}"
                case bytes() if path not in self.failures:
                    document["files"][f"/{path}"] = node.decode()
        return document

    def _folder(self, path: str) -> tuple[dict[str, TreeEntry], str]:
        *folders, name = path.split("/")
        here = self.tree
        for part in folders:
            below = here.setdefault(part, {})
            assert isinstance(below, dict), f"{path} leads through a file or a link"
            here = below
        return here, name

    def _real(self, path: str) -> str:
        return self.root().resolve(path)

    # --- CPUs ---

    def numa(self, node: int, cpus: str, size: int = 256) -> None:
        """A NUMA node with one core for each CPU; `size` is how many CPUs the kernel's masks have room for."""
        ids = CPUSet.parse(cpus)
        folder = f"sys/devices/system/node/node{node}"
        self.put(f"{folder}/cpulist", cpus)
        self.put(f"{folder}/cpumap", mask(ids, size))
        for cpu in ids:
            below = f"sys/devices/system/cpu/cpu{cpu}"
            self.put(f"{below}/topology/core_id", str(cpu))
            self.put(f"{below}/topology/physical_package_id", str(node))
            self.put(f"{below}/topology/thread_siblings_list", str(cpu))
            self.put(f"{below}/cache/index3/level", "3")
            self.put(f"{below}/cache/index3/id", str(node))
            self.put(f"{below}/cache/index3/shared_cpu_list", cpus)
            self.put(f"{below}/node{node}", Link(f"../../node/node{node}"))
            self.put(f"{folder}/cpu{cpu}", Link(f"../../cpu/cpu{cpu}"))
        root = self.root()
        nodes = sorted(int(name[4:]) for name in root.listdir("sys/devices/system/node") if name.startswith("node"))
        lists = {each: root.read_bytes(f"sys/devices/system/node/node{each}/cpulist").decode() for each in nodes}
        for row, each in enumerate(nodes):
            distances = " ".join("10" if column == row else "20" for column in range(len(nodes)))
            self.put(f"sys/devices/system/node/node{each}/distance", distances)
        everything = CPUSet.union(CPUSet.parse(text.strip()) for text in lists.values())
        for name in ("online", "present", "possible"):
            self.put(f"sys/devices/system/cpu/{name}", str(everything))
        self.put("sys/devices/system/node/online", str(CPUSet(nodes)))

    # --- PCI ---

    def pci(
        self,
        address: str,
        vendor: int,
        device: int,
        pci_class: int,
        *,
        bridges: Iterable[str] = (),
        root: str = "pci0000:00",
        node: int = -1,
        driver: str | None = None,
        speed: str = "32.0 GT/s PCIe",
        width: int = 16,
        group: int | None = None,
    ) -> str:
        """A PCI function behind bridges; returns its real folder."""
        folder = "/".join(("sys/devices", root, *bridges, address))
        self.put(f"{DEVICES}/{address}", Link(f"../../../{folder.removeprefix('sys/')}"))
        files = {
            "vendor": f"0x{vendor:04x}",
            "device": f"0x{device:04x}",
            "class": f"0x{pci_class:06x}",
            "numa_node": str(node),
            "max_link_speed": speed,
            "max_link_width": str(width),
            "current_link_speed": "2.5 GT/s PCIe",
            "current_link_width": str(width),
            "driver_override": "(null)",
            "aer_dev_fatal": "Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 0",
            "aer_dev_nonfatal": "Undefined 0\nCmpltTO 0\nTOTAL_ERR_NONFATAL 0",
            "uevent": f"PCI_CLASS={pci_class:X}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SLOT_NAME={address}",
        }
        for name, content in files.items():
            self.put(f"{folder}/{name}", content)
        self.put(f"{folder}/subsystem", Link("/sys/bus/pci"))
        if group is not None:
            self.put(f"{folder}/iommu_group", Link(f"/sys/kernel/iommu_groups/{group}"))
            self.put(f"sys/kernel/iommu_groups/{group}/devices/{address}", Link(f"/{folder}"))
        if driver is not None:
            self.bind(address, driver)
        bus = f"{root.removeprefix('pci')}"
        if node >= 0:
            cpus = self.root().read_bytes(f"sys/devices/system/node/node{node}/cpulist").decode().strip()
            self.put(f"{folder}/local_cpulist", cpus)
            self.put(f"sys/devices/{root}/pci_bus/{bus}/cpulistaffinity", cpus)
        return folder

    def bind(self, address: str, driver: str) -> None:
        """Link a function and a driver to each other."""
        self.put(f"{self._real(f'{DEVICES}/{address}')}/driver", Link(f"/{DRIVERS}/{driver}"))
        self.put(f"{DRIVERS}/{driver}/{address}", Link(f"/{self._real(f'{DEVICES}/{address}')}"))

    def driver(self, name: str, version: str | None = None) -> None:
        """A loaded PCI driver, with its module's version if the module has one."""
        self.put(f"{DRIVERS}/{name}/bind", b"")
        self.put(f"{DRIVERS}/{name}/unbind", b"")
        self.put(f"sys/module/{name.replace('-', '_')}/initstate", "live")
        if version is not None:
            self.put(f"sys/module/{name}/version", version)

    def drm(self, folder: str, card: int | None, render: int | None) -> None:
        """The DRM minors of a device with their nodes, and a connector."""
        for name, minor in ((f"card{card}", card), (f"renderD{render}", render)):
            if minor is None:
                continue
            self.put(f"{folder}/drm/{name}/dev", f"226:{minor}")
            self.put(f"{folder}/drm/{name}/uevent", f"MAJOR=226\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor")
            self.put(f"sys/class/drm/{name}", Link(f"/{folder}/drm/{name}"))
            self.node(f"dev/dri/{name}", 226, minor, group=44 if name.startswith("card") else 105)
        if card is not None:
            self.put(f"{folder}/drm/card{card}/card{card}-DP-1/status", "disconnected")

    def node(self, path: str, major: int, minor: int, group: int = 0) -> None:
        """A character device node."""
        self.put(path, DeviceFile("c", major, minor))
        self.groups[path] = group

    def virtual_functions(self, pf: str, addresses: Iterable[str], device: int, **options: Any) -> None:
        """SR-IOV virtual functions of a physical one, linked both ways."""
        folder = self._real(f"{DEVICES}/{pf}")
        addresses = tuple(addresses)
        vendor = int(self.root().read_bytes(f"{folder}/vendor"), 16)
        self.put(f"{folder}/sriov_totalvfs", str(len(addresses)))
        self.put(f"{folder}/sriov_numvfs", str(len(addresses)))
        for index, address in enumerate(addresses):
            below = self.pci(address, vendor, device, VGA, speed="Unknown", width=0, **options)
            self.put(f"{below}/physfn", Link(f"../{pf}"))
            self.put(f"{folder}/virtfn{index}", Link(f"../{address}"))

    # --- vendors ---

    def nvidia_driver(self, version: str = "550.54.15") -> None:
        """NVIDIA's kernel driver with its control nodes."""
        self.driver("nvidia", version)
        self.put(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Mar  5 22:23:56 UTC 2024\n"
            "GCC version:  gcc version 13.2.0",
        )
        for path, major, minor in (
            ("dev/nvidiactl", 195, 255),
            ("dev/nvidia-modeset", 195, 254),
            ("dev/nvidia-uvm", 510, 0),
            ("dev/nvidia-uvm-tools", 510, 1),
        ):
            self.node(path, major, minor)

    def nvidia(self, address: str, minor: int, model: str, uuid: str, *, excluded: str = "No") -> None:
        """What NVIDIA's driver reports about a GPU, and its node."""
        self.put(
            f"proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t {model}\nIRQ:   \t\t 321\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.89.00.01\n"
            f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
            f"GPU Excluded:\t {excluded}",
        )
        self.node(f"dev/nvidia{minor}", 195, minor)

    def kfd(self, number: int, address: str, *, render: int, part: int = 0, memory: int = 0, simds: int = 1216) -> None:
        """A KFD node: a GPU or a partition of one; a CPU if it has no SIMDs."""
        folder = f"sys/devices/virtual/kfd/kfd/topology/nodes/{number}"
        self.put("sys/class/kfd/kfd", Link("/sys/devices/virtual/kfd/kfd"))
        domain, bus, rest = address.split(":")
        slot, function = rest.split(".")
        location = part << 28 | int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
        self.put(
            f"{folder}/properties",
            f"cpu_cores_count 0\nsimd_count {simds}\nlocation_id {location}\ndomain {int(domain, 16)}\n"
            f"drm_render_minor {render}\nunique_id {number * 7919}",
        )
        self.put(f"{folder}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}\nflags 0")
        self.node("dev/kfd", 511, 0, group=105)


def mask(cpus: CPUSet, size: int) -> str:
    """Format CPUs as a kernel mask: words of 32 bits in hex."""
    digits = f"{cpus.mask:0{size // 4}x}"
    return ",".join(digits[start : start + 8] for start in range(0, len(digits), 8))
