"""The devices of a synthetic machine: GPUs, NICs and interrupts, and the cgroups of its host.

GPUs and NICs are spread over the NUMA nodes: GPU `i` of `n` is on node `i x nodes / n`, and so is NIC `i`. A PCIe root
has at most one GPU and one NIC, each behind its own port: the first GPU and the first NIC of a node share a root, and
so do the second ones.
"""

from itertools import zip_longest
from typing import Final, NamedTuple

from dranode.api.cpuset import CPUSet, mask_text
from dranode.sim.machines.synthetic import Description
from dranode.sim.machines.tree import DeviceFile, Link, TreeEntry, plant

_GIB: Final = 1 << 30
# Root complexes are at buses 10, 20 ... f0 of a PCI domain.
_ROOTS_PER_DOMAIN: Final = 15
_FIRST_RENDER: Final = 128
_DRM_MAJOR: Final = 226
_FIRST_GROUP: Final = 20
_MOST_QUEUES: Final = 8
# The first interrupt numbers belong to the platform.
_FIRST_INTERRUPT: Final = 24


class _Model(NamedTuple):
    vendor: int
    device: int
    pci_class: int
    driver: str
    version: str = ""


# One GPU per vendor (PCI IDs: the public PCI ID repository). The kernel drivers of AMD and Intel report its memory.
_GPUS: Final = {
    "nvidia": _Model(0x10DE, 0x26B9, 0x030200, "nvidia", "580.95.05"),
    "amd": _Model(0x1002, 0x74A1, 0x120000, "amdgpu"),
    "intel": _Model(0x8086, 0xE211, 0x030000, "xe"),
}
_MEMORY: Final = {"amd": 192 * _GIB, "intel": 24 * _GIB}
_NIC: Final = _Model(0x15B3, 0x1021, 0x020000, "mlx5_core")
_PORT: Final = _Model(0x8086, 0x352A, 0x060400, "pcieport")


class _Place(NamedTuple):
    """A PCI function: its number among devices of its kind, its folder, its address and its NUMA node."""

    number: int
    folder: str
    address: str
    node: int


def plant_devices(tree: dict[str, TreeEntry], machine: Description) -> None:
    """Add the files of a description's devices and host to the tree of its machine."""
    gpus, nics = _places(machine)
    _plant_host(tree, machine)
    _plant_interrupts(tree, machine, nics)
    if not gpus and not nics:
        return
    drivers = {"pcieport": "", "vfio-pci": ""}
    if gpus:
        model = _GPUS[machine.gpu_vendor]
        drivers[model.driver] = model.version
        _plant_vendor(tree, machine, gpus)
    if nics:
        drivers[_NIC.driver] = ""
    for name, version in drivers.items():
        for action in ("bind", "unbind"):
            plant(tree, f"sys/bus/pci/drivers/{name}/{action}", b"")
        if version:
            plant(tree, f"sys/module/{name}/version", _text(version))
    for place in gpus:
        _plant_behind_port(tree, machine, place, _GPUS[machine.gpu_vendor])
        _plant_group(tree, place, _FIRST_GROUP + place.number)
        _plant_virtual_functions(tree, machine, place)
    for place in nics:
        _plant_behind_port(tree, machine, place, _NIC)
        _plant_group(tree, place, _FIRST_GROUP + machine.gpus + place.number)
        _plant_network(tree, machine, place)
    for root, node in {place.folder.split("/")[2]: place.node for place in (*gpus, *nics)}.items():
        plant(tree, f"sys/devices/{root}/pci_bus/{root[3:]}/cpulistaffinity", _text(machine.node_cpus(node)))
    plant(tree, "dev/vfio/vfio", DeviceFile("c", 10, 196))


def _plant_host(tree: dict[str, TreeEntry], machine: Description) -> None:
    every = _text(mask_text(CPUSet(range(machine.all_cpus))))
    plant(tree, "proc/irq/default_smp_affinity", every)
    plant(tree, "sys/devices/virtual/workqueue/cpumask", every)
    plant(tree, "sys/fs/cgroup/cgroup.controllers", _text("cpuset cpu io memory hugetlb pids"))
    for unit in ("system.slice", "user.slice", "init.scope"):
        plant(tree, f"sys/fs/cgroup/{unit}/cpuset.cpus", _text(""))


def _plant_interrupts(tree: dict[str, TreeEntry], machine: Description, nics: list[_Place]) -> None:
    """Add a disk's interrupts on all CPUs, and an interrupt on one CPU of its node for each queue of a NIC."""
    every = machine.cpus_of(0, machine.all_cores)
    named: list[tuple[str, object]] = [(f"nvme0q{number}", every) for number in range(machine.interrupts)]
    named += [
        (f"mlx5_comp{queue}@pci:{place.address}", cpu)
        for place in nics
        for queue, cpu in enumerate(_queue_cpus(machine, place))
    ]
    for number, (name, cpus) in enumerate(named, start=_FIRST_INTERRUPT):
        plant(tree, f"proc/irq/{number}/smp_affinity_list", _text(cpus))
        plant(tree, f"proc/irq/{number}/{name}", {})


def _queue_cpus(machine: Description, place: _Place) -> range:
    first = place.node * machine.cores_per_numa
    return range(first, first + min(_MOST_QUEUES, machine.cores_per_numa))


def _places(machine: Description) -> tuple[list[_Place], list[_Place]]:
    gpus: list[_Place] = []
    nics: list[_Place] = []
    root = 0
    for node in range(machine.nodes):
        of_node = (
            [number for number in range(count) if number * machine.nodes // count == node]
            for count in (machine.gpus, machine.nics)
        )
        for pair in zip_longest(*of_node):
            domain, bus = divmod(root, _ROOTS_PER_DOMAIN)
            bus = (bus + 1) * 16
            for port, (places, number) in enumerate(zip((gpus, nics), pair, strict=True), start=1):
                if number is not None:
                    bridge, address = f"{domain:04x}:{bus:02x}:{port:02x}.0", f"{domain:04x}:{bus + port:02x}:00.0"
                    folder = f"sys/devices/pci{domain:04x}:{bus:02x}/{bridge}/{address}"
                    places.append(_Place(number, folder, address, node))
            root += 1
    return gpus, nics


def _plant_behind_port(tree: dict[str, TreeEntry], machine: Description, place: _Place, model: _Model) -> None:
    """Add a function and the port of its root complex."""
    port = place.folder.rpartition("/")[0]
    _plant_function(tree, machine, place._replace(folder=port, address=port.rpartition("/")[2]), _PORT)
    _plant_function(tree, machine, place, model)


def _plant_function(tree: dict[str, TreeEntry], machine: Description, place: _Place, model: _Model) -> None:
    files: dict[str, object] = {
        "vendor": f"0x{model.vendor:04x}",
        "device": f"0x{model.device:04x}",
        "class": f"0x{model.pci_class:06x}",
        "numa_node": place.node,
        "local_cpulist": machine.node_cpus(place.node),
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": 16,
        "current_link_speed": "32.0 GT/s PCIe",
        "current_link_width": 16,
        "driver_override": "(null)",
        "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
        "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
    }
    for name, value in files.items():
        plant(tree, f"{place.folder}/{name}", _text(value))
    plant(tree, f"{place.folder}/driver", _link(place.folder, f"sys/bus/pci/drivers/{model.driver}"))
    plant(tree, f"sys/bus/pci/devices/{place.address}", _link("sys/bus/pci/devices", place.folder))


def _plant_virtual_functions(tree: dict[str, TreeEntry], machine: Description, gpu: _Place) -> None:
    """Divide a GPU into virtual functions of equal memory, each with a render node, as xe does."""
    for index in range(machine.vfs):
        number = machine.gpus + gpu.number * machine.vfs + index
        address = f"{gpu.address[:-1]}{index + 1}"
        function = _Place(number, f"{gpu.folder.rpartition('/')[0]}/{address}", address, gpu.node)
        _plant_function(tree, machine, function, _GPUS[machine.gpu_vendor])
        _plant_group(tree, function, _FIRST_GROUP + machine.nics + number)
        _plant_drm(tree, function)
        plant(tree, f"{function.folder}/physfn", Link(f"../{gpu.address}"))
        plant(tree, f"{gpu.folder}/virtfn{index}", Link(f"../{address}"))
        # The kernel counts virtual functions from 1 here and from 0 in virtfn<n>.
        quota = f"{gpu.folder}/sriov_admin/vf{index + 1}/profile/vram_quota"
        plant(tree, quota, _text(_MEMORY[machine.gpu_vendor] // machine.vfs))


def _plant_group(tree: dict[str, TreeEntry], place: _Place, group: int) -> None:
    plant(tree, f"{place.folder}/iommu_group", _link(place.folder, f"sys/kernel/iommu_groups/{group}"))
    members = f"sys/kernel/iommu_groups/{group}/devices"
    plant(tree, f"{members}/{place.address}", _link(members, place.folder))
    # The kernel creates this device when the function is bound to vfio-pci.
    plant(tree, f"dev/vfio/{group}", DeviceFile("c", 240, group))


def _plant_vendor(tree: dict[str, TreeEntry], machine: Description, gpus: list[_Place]) -> None:
    if machine.gpu_vendor == "nvidia":
        version = _GPUS["nvidia"].version
        version_line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Sep 16 19:49:42 UTC 2025"
        plant(tree, "proc/driver/nvidia/version", _text(version_line))
        for name, major, minor in (("nvidiactl", 195, 255), ("nvidia-uvm", 510, 0), ("nvidia-uvm-tools", 510, 1)):
            plant(tree, f"dev/{name}", DeviceFile("c", major, minor))
    if machine.gpu_vendor == "amd":
        plant(tree, "sys/class/kfd/kfd", Link("../../devices/virtual/kfd/kfd"))
        plant(tree, "dev/kfd", DeviceFile("c", 511, 0))
    for place in gpus:
        if machine.gpu_vendor == "nvidia":
            _plant_nvidia(tree, place)
            continue
        _plant_drm(tree, place)
        memory = _MEMORY[machine.gpu_vendor]
        if machine.gpu_vendor == "intel":
            plant(tree, f"{place.folder}/tile0/physical_vram_size_bytes", _text(memory))
        else:
            plant(tree, f"{place.folder}/mem_info_vram_total", _text(memory))
            plant(tree, f"{place.folder}/unique_id", _text(f"{0x1A2B3C4D5E6F0000 + place.number:016x}"))
            _plant_kfd(tree, machine.nodes + place.number, place, memory)


def _plant_nvidia(tree: dict[str, TreeEntry], place: _Place) -> None:
    information = (
        f"Model: \t\t NVIDIA L40S\nGPU UUID: \t GPU-{place.number:08x}-0000-4000-8000-000000000000\n"
        f"Bus Location: \t {place.address}\nDevice Minor: \t {place.number}\nGPU Excluded:\t No"
    )
    plant(tree, f"proc/driver/nvidia/gpus/{place.address}/information", _text(information))
    plant(tree, f"dev/nvidia{place.number}", DeviceFile("c", 195, place.number))


def _plant_drm(tree: dict[str, TreeEntry], place: _Place) -> None:
    for name, minor in (("card", place.number), ("renderD", _FIRST_RENDER + place.number)):
        folder = f"{place.folder}/drm/{name}{minor}"
        plant(tree, f"{folder}/dev", _text(f"{_DRM_MAJOR}:{minor}"))
        plant(tree, f"sys/class/drm/{name}{minor}", _link("sys/class/drm", folder))
        plant(tree, f"dev/dri/{name}{minor}", DeviceFile("c", _DRM_MAJOR, minor))


def _plant_kfd(tree: dict[str, TreeEntry], number: int, place: _Place, memory: int) -> None:
    domain, bus = place.address.split(":")[:2]
    properties = {
        "simd_count": 1216,
        "location_id": int(bus, 16) << 8,
        "domain": int(domain, 16),
        "drm_render_minor": _FIRST_RENDER + place.number,
    }
    folder = f"sys/devices/virtual/kfd/kfd/topology/nodes/{number}"
    plant(tree, f"{folder}/gpu_id", _text(1000 + number))
    plant(tree, f"{folder}/properties", _text("\n".join(f"{name} {value}" for name, value in properties.items())))
    plant(tree, f"{folder}/mem_banks/0/properties", _text(f"heap_type 1\nsize_in_bytes {memory}"))


def _plant_network(tree: dict[str, TreeEntry], machine: Description, place: _Place) -> None:
    name = f"nic{place.number}"
    folder = f"{place.folder}/net/{name}"
    plant(tree, f"sys/class/net/{name}", _link("sys/class/net", folder))
    files: dict[str, object] = {
        "ifindex": 2 + place.number,
        "address": f"02:00:00:00:00:{place.number:02x}",
        "operstate": "up",
        "speed": 200_000,
    }
    for file, value in files.items():
        plant(tree, f"{folder}/{file}", _text(value))
    # Incoming packets are not steered (RPS is off); for outgoing ones, each CPU has its own queue (XPS).
    for queue, cpu in enumerate(_queue_cpus(machine, place)):
        plant(tree, f"{folder}/queues/rx-{queue}/rps_cpus", _text(mask_text(CPUSet())))
        plant(tree, f"{folder}/queues/tx-{queue}/xps_cpus", _text(mask_text(CPUSet((cpu,)))))


def _link(folder: str, target: str) -> Link:
    """Return a link in a folder of `/sys` to another, as the kernel writes it."""
    return Link("../" * folder.count("/") + target.removeprefix("sys/"))


def _text(value: object) -> bytes:
    return f"{value}\n".encode()
