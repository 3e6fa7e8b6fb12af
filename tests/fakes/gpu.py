"""Made-up machines with GPUs: sysfs, /proc and /dev with the links, newlines and failures of real ones.

`Machine` builds one in memory; `root()` reads it, `write(folder)` unpacks it, `document()` is it as a YAML machine. The
functions at the end are whole machines. `Kernel` is a machine that can be written to: it binds, unbinds and probes as
Linux does, and can be cut off after any write.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.machine.confined import ConfinedRoot
from dranode.driver.machine.tree import DeviceFile, Link, TreeEntry, TreeFiles, leaves

DEVICES = "sys/bus/pci/devices"
DRIVERS = "sys/bus/pci/drivers"

NVIDIA, AMD, INTEL, ASPEED = 0x10DE, 0x1002, 0x8086, 0x1A03
VGA, CONTROLLER_3D, DISPLAY, ACCELERATOR = 0x030000, 0x030200, 0x038000, 0x120000
BRIDGE, AUDIO, NVSWITCH = 0x060400, 0x040300, 0x068000

GIB = 1 << 30


class FailingFiles(TreeFiles):
    """Files of which some are there and do not read."""

    def __init__(self, tree: dict[str, TreeEntry], failures: Mapping[str, int]) -> None:
        super().__init__(tree)
        self.failures = failures

    def read(self, path: str) -> bytes:
        if path in self.failures:
            raise OSError(self.failures[path], os.strerror(self.failures[path]), path)
        return super().read(path)


@dataclass(repr=False)
class Machine:
    """A machine that is being made.

    Attributes:
        tree: its files.
        failures: real paths of files that do not read, with the error number.
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
        """Remove a file, a link or a whole folder, if it is there."""
        folder, name = self._folder(path)
        folder.pop(name, None)

    def fail(self, path: str, number: int = errno.EPERM) -> None:
        """Let a file be there and not read."""
        self.failures[self.root().resolve(path)] = number

    def root(self) -> ConfinedRoot:
        """The machine's files as they are now and as they change."""
        return ConfinedRoot(FailingFiles(self.tree, self.failures))

    def write(self, folder: Path) -> Path:
        """Unpack into a folder. Device nodes need root: there are none there."""
        for path, node in leaves(self.tree):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(node, Link):
                place.symlink_to(node.target)
            elif isinstance(node, bytes):
                place.write_bytes(node)
        return folder

    def document(self) -> dict[str, Any]:
        """The machine as a YAML machine's long form; files that fail are not in it."""
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
        """A NUMA node with one core a CPU; `size` is how many CPUs the kernel's masks have room for."""
        ids = CPUSet.parse(cpus)
        folder = f"sys/devices/system/node/node{node}"
        self.put(f"{folder}/cpulist", cpus)
        self.put(f"{folder}/cpumap", _mask(ids, size))
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
        """A PCI function behind bridges; gives its real folder."""
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
        """A PCI driver that is loaded, with its module's version if the module has one."""
        self.put(f"{DRIVERS}/{name}/bind", b"")
        self.put(f"{DRIVERS}/{name}/unbind", b"")
        self.put(f"sys/module/{name.replace('-', '_')}/initstate", "live")
        if version is not None:
            self.put(f"sys/module/{name}/version", version)

    def drm(self, folder: str, card: int | None, render: int | None) -> None:
        """The DRM minors of a device, with a connector, and their nodes."""
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
        """What NVIDIA's driver tells of a GPU, and its node."""
        self.put(
            f"proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t {model}\nIRQ:   \t\t 321\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.89.00.01\n"
            f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
            f"GPU Excluded:\t {excluded}",
        )
        self.node(f"dev/nvidia{minor}", 195, minor)

    def kfd(self, number: int, address: str, *, render: int, part: int = 0, memory: int = 0, simds: int = 1216) -> None:
        """A KFD node: a GPU or a partition of one; without SIMDs a CPU."""
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


def _mask(cpus: CPUSet, size: int) -> str:
    digits = f"{cpus.mask:0{size // 4}x}"
    return ",".join(digits[start : start + 8] for start in range(0, len(digits), 8))


class Crash(BaseException):
    """The process died."""


@dataclass
class Kernel:
    """The machine while it runs: what `dranode.gpu.host.Live` promises.

    Attributes:
        machine: its files.
        after: how many writes happen before the process dies; None: it does not.
        refuse: drivers that refuse to bind.
        writes: every write that happened.
    """

    machine: Machine
    after: int | None = None
    refuse: frozenset[str] = frozenset()
    writes: list[tuple[str, str]] = field(default_factory=list)
    _last_driver: dict[str, str] = field(default_factory=dict)
    _drm: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def group(self, path: str) -> int | None:
        return self.machine.groups.get(path)

    def write(self, path: str, content: str) -> None:
        if self.after is not None and len(self.writes) >= self.after:
            raise Crash
        root = self.machine.root()
        if not root.exists(path) and path != "sys/bus/pci/drivers_probe":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.writes.append((path, content))
        name = path.rpartition("/")[2]
        if name == "driver_override":
            self.machine.put(root.resolve(path), "(null)" if content == "\n" else content)
        elif name == "unbind":
            self._unbind(path.split("/")[-2], content)
        elif name == "bind":
            self._bind(path.split("/")[-2], content)
        elif name == "drivers_probe":
            self._bind(self._last_driver.get(content, ""), content)

    def _driver(self, address: str) -> str | None:
        try:
            return self.machine.root().readlink(f"{DEVICES}/{address}/driver").rpartition("/")[2]
        except OSError:
            return None

    def _unbind(self, driver: str, address: str) -> None:
        if self._driver(address) != driver:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        folder = self.machine.root().resolve(f"{DEVICES}/{address}")
        self.machine.remove(f"{folder}/driver")
        self.machine.remove(f"{DRIVERS}/{driver}/{address}")
        if driver.endswith("vfio-pci"):
            self._vfio_node(address, present=False)
        else:
            self._last_driver[address] = driver
            self.machine.remove(f"{folder}/drm")

    def _bind(self, driver: str, address: str) -> None:
        root = self.machine.root()
        override = root.read_bytes(f"{DEVICES}/{address}/driver_override").decode().strip()
        matches = override == driver or (override == "(null)" and not driver.endswith("vfio-pci"))
        if not matches or driver in self.refuse or self._driver(address) or not root.exists(f"{DRIVERS}/{driver}"):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self.machine.bind(address, driver)
        if driver.endswith("vfio-pci"):
            self._vfio_node(address, present=True)

    def _vfio_node(self, address: str, *, present: bool) -> None:
        group = self.machine.root().readlink(f"{DEVICES}/{address}/iommu_group").rpartition("/")[2]
        if present:
            self.machine.node("dev/vfio/vfio", 10, 196)
            self.machine.node(f"dev/vfio/{group}", 240, int(group))
        else:
            self.machine.remove(f"dev/vfio/{group}")


# --- whole machines ---

_HGX_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")


def hgx() -> Machine:
    """Two sockets, eight H100 and four NVSwitches; no nvidia-drm, so no DRM nodes."""
    machine = Machine()
    machine.numa(0, "0-55")
    machine.numa(1, "56-111")
    machine.nvidia_driver()
    machine.pci("0000:02:00.0", ASPEED, 0x2000, VGA, bridges=("0000:00:1c.0", "0000:01:00.0"), driver="ast", node=0)
    for index, bus in enumerate(_HGX_BUSES):
        address = f"0000:{bus}:00.0"
        top = f"0000:{int(bus, 16) - 2:02x}"
        machine.pci(
            address,
            NVIDIA,
            0x2330,
            CONTROLLER_3D,
            root=f"pci{top}",
            bridges=(f"{top}:01.0",),
            node=index // 4,
            driver="nvidia",
            group=30 + index,
        )
        machine.nvidia(address, index, "NVIDIA H100 80GB HBM3", f"GPU-{index:08x}-0000-4000-8000-0123456789ab")
    for bus in ("05", "06", "07", "08"):
        machine.pci(f"0000:{bus}:00.0", NVIDIA, 0x22A3, NVSWITCH, driver="nvidia-nvswitch", node=0)
    return machine


def mi300x(gpus: int = 2, parts: int = 8) -> Machine:
    """MI300X in CPX and NPS4: every GPU in parts, part 0 on the PCI device's own render node."""
    machine = Machine()
    machine.numa(0, "0-95")
    machine.numa(1, "96-191")
    machine.driver("amdgpu", "6.8.5")
    machine.kfd(0, "0000:00:00.0", render=0, simds=0)
    node, render, card = 1, 128, 1
    platform = 0
    for gpu in range(gpus):
        bus = ("0c", "22", "38", "5c", "9f", "af", "bf", "df")[gpu]
        address = f"0000:{bus}:00.0"
        folder = machine.pci(
            address,
            AMD,
            0x74A1,
            ACCELERATOR,
            root=f"pci0000:{int(bus, 16) - 3:02x}",
            bridges=(f"0000:{int(bus, 16) - 3:02x}:01.1",),
            node=0 if gpu * 2 < gpus else 1,
            driver="amdgpu",
            group=60 + gpu,
        )
        machine.put(f"{folder}/mem_info_vram_total", str(192 * GIB))
        machine.put(f"{folder}/unique_id", f"{0x53B1C8F2D4E60700 + gpu:016x}")
        machine.put(f"{folder}/product_name", "AMD Instinct MI300X OAM")
        machine.put(f"{folder}/current_compute_partition", "CPX" if parts > 1 else "SPX")
        machine.put(f"{folder}/current_memory_partition", "NPS4" if parts > 1 else "NPS1")
        for part in range(parts):
            below = folder if part == 0 else f"sys/devices/platform/amdgpu_xcp_{platform}"
            platform += part > 0
            machine.drm(below, card, render)
            machine.kfd(node, address, render=render, part=part, memory=192 * GIB // parts)
            node, render, card = node + 1, render + 1, card + 1
    return machine


def flex(vfs: int = 7) -> Machine:
    """An Intel Flex 170 on xe with virtual functions."""
    machine = Machine()
    machine.numa(0, "0-31")
    machine.driver("xe")
    folder = machine.pci(
        "0000:4d:00.0",
        INTEL,
        0x56C0,
        DISPLAY,
        root="pci0000:4a",
        bridges=("0000:4a:02.0", "0000:4b:00.0", "0000:4c:01.0"),
        node=0,
        driver="xe",
        speed="16.0 GT/s PCIe",
        group=12,
    )
    machine.put(f"{folder}/tile0/physical_vram_size_bytes", f"0x{16 * GIB:x}")
    machine.drm(folder, 0, 128)
    if vfs:
        addresses = [f"0000:4d:{(index + 1) >> 3:02x}.{(index + 1) & 7}" for index in range(vfs)]
        machine.virtual_functions(
            "0000:4d:00.0",
            addresses,
            0x56C0,
            root="pci0000:4a",
            bridges=("0000:4a:02.0", "0000:4b:00.0", "0000:4c:01.0"),
            node=0,
            driver="xe",
        )
        for index, address in enumerate(addresses):
            machine.put(f"{folder}/sriov_admin/vf{index + 1}/profile/vram_quota", str(2 * GIB))
            machine.drm(machine.root().resolve(f"{DEVICES}/{address}"), 1 + index, 129 + index)
    return machine


def laptop() -> Machine:
    """An integrated Intel GPU and a discrete NVIDIA one with its sound function; an NPU that is no GPU."""
    machine = Machine()
    machine.numa(0, "0-15")
    machine.driver("i915")
    machine.driver("vfio-pci")
    machine.driver("snd_hda_intel")
    machine.nvidia_driver("580.159.04")
    folder = machine.pci("0000:00:02.0", INTEL, 0xA7A0, VGA, driver="i915", speed="Unknown", width=0, group=0)
    machine.drm(folder, 1, 128)
    machine.pci("0000:00:0b.0", INTEL, 0x7D1D, ACCELERATOR, driver="intel_vpu")
    folder = machine.pci(
        "0000:01:00.0", NVIDIA, 0x28E0, VGA, bridges=("0000:00:01.0",), driver="nvidia", width=8, group=14
    )
    machine.drm(folder, 2, 129)
    machine.pci("0000:01:00.1", NVIDIA, 0x22BE, AUDIO, bridges=("0000:00:01.0",), driver="snd_hda_intel", group=14)
    machine.nvidia("0000:01:00.0", 0, "NVIDIA GeForce RTX 4060 Laptop GPU", "GPU-9d1c7a34-5b2e-4f60-8c11-2233445566aa")
    return machine


_POWER_GPUS = {
    "0004:05:00.0": (0, 255),
    "0004:06:00.0": (0, 254),
    "0006:00:00.0": (0, 253),
    "0007:00:00.0": (8, 252),
    "0035:04:00.0": (8, 251),
    "0035:05:00.0": (8, 250),
}


def power() -> Machine:
    """POWER9 with six V100 whose memory is a NUMA node each, as in the capture: sparse nodes, hardly a PCI file."""
    machine = Machine()
    machine.numa(0, "0-87", size=192)
    machine.numa(8, "88-175", size=192)
    for address, (near, memory) in _POWER_GPUS.items():
        folder = f"{DEVICES}/{address}"
        machine.put(f"{folder}/class", "0x030000")
        machine.put(
            f"{folder}/local_cpus", machine.root().read_bytes(f"sys/devices/system/node/node{near}/cpumap").decode()
        )
        machine.put(
            f"proc/driver/nvidia/gpus/{address}/numa_status",
            f"Node:      {memory}\nStatus:    online\nAddress:   40000000000\nSize:      3f0000000",
        )
        machine.put(f"sys/devices/system/node/node{memory}/cpulist", "")
        machine.put(f"sys/devices/system/node/node{memory}/cpumap", _mask(CPUSet(), 192))
    return machine


def plain() -> Machine:
    """A server without GPUs: a board's display, a virtual one, bridges and a disk."""
    machine = Machine()
    machine.numa(0, "0-3")
    machine.pci("0000:00:01.0", 0x1234, 0x1111, VGA)
    machine.pci("0000:00:02.0", ASPEED, 0x2000, VGA, driver="ast")
    machine.pci("0000:00:03.0", 0x1AF4, 0x1050, DISPLAY, driver="virtio-pci")
    machine.pci("0000:00:1c.0", INTEL, 0xA110, BRIDGE, driver="pcieport")
    machine.pci("0000:05:00.0", 0x144D, 0xA808, 0x010802, bridges=("0000:00:1c.0",), driver="nvme")
    return machine


def crowd(gpus: int = 16, vfs: int = 4, others: int = 200) -> Machine:
    """Many GPUs with virtual functions among other PCI functions, on two sockets."""
    machine = Machine()
    machine.numa(0, "0-63")
    machine.numa(1, "64-127")
    machine.driver("xe")
    for index in range(gpus):
        bus = f"{0x10 + index * 4:02x}"
        near: dict[str, Any] = {"root": f"pci0000:{int(bus, 16) - 1:02x}", "node": index * 2 // gpus, "driver": "xe"}
        folder = machine.pci(f"0000:{bus}:00.0", INTEL, 0x0BD5, DISPLAY, group=100 + index, **near)
        machine.drm(folder, index, 128 + index)
        machine.put(f"{folder}/tile0/physical_vram_size_bytes", str(64 * GIB))
        addresses = [f"0000:{bus}:00.{1 + vf}" for vf in range(vfs)]
        machine.virtual_functions(f"0000:{bus}:00.0", addresses, 0x0BD5, **near)
        for vf, address in enumerate(addresses):
            machine.drm(machine.root().resolve(f"{DEVICES}/{address}"), 32 + index * vfs + vf, 160 + index * vfs + vf)
    for index in range(others):
        machine.pci(
            f"0001:{index >> 3:02x}:{index & 7:02x}.0", INTEL, 0x1592, 0x020000, root="pci0001:00", driver="ice"
        )
    return machine
