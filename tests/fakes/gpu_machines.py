"""Whole machines with GPUs, each modeled on a real kind: servers, partitions, virtual functions, a laptop."""

from typing import Any

from dranode.api.cpuset import CPUSet
from tests.fakes.gpu import (
    ACCELERATOR,
    AMD,
    ASPEED,
    AUDIO,
    BRIDGE,
    CONTROLLER_3D,
    DEVICES,
    DISPLAY,
    GIB,
    INTEL,
    NVIDIA,
    NVSWITCH,
    VGA,
    Machine,
    mask,
)

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
    """MI300X in CPX and NPS4: every GPU is partitioned, and partition 0 has the PCI device's own render node."""
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
    """An integrated Intel GPU, a discrete NVIDIA GPU with its sound function, and an NPU, which is not a GPU."""
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
    """POWER9 with six V100, whose memory is a NUMA node each, as in the capture: sparse node numbers, few PCI files."""
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
        machine.put(f"sys/devices/system/node/node{memory}/cpumap", mask(CPUSet(), 192))
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
