"""Records the files of a machine that drivers read, and no others.

`/proc/cmdline`, environments and logs are left out because they may contain secrets, and counters because they change
every second. Serial numbers and GPU UUIDs are recorded, because drivers publish them.
"""

import bz2
import errno
import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from dranode.api.errors import MachineError, UsageError
from dranode.driver.machine.root import Root, names, read_attribute
from dranode.sim.machines.tree import INDEX, DeviceFile, index_of

_MAX_FILE: Final = 1 << 20
_MAX_TOTAL: Final = 256 << 20

# The names to record in each folder; `*` matches within a name. The kernel's Documentation/ABI describes them.
_CAPTURED: Final = {
    "sys/devices/system/cpu": "online offline present possible isolated nohz_full kernel_max cpu*/online cpu*/node*"
    " smt/control smt/active",
    "sys/devices/system/cpu/cpu*/topology": "*",
    "sys/devices/system/cpu/cpu*/cache/index*": "level type id size shared_cpu_list shared_cpu_map",
    "sys/devices/system/node": "online possible has_cpu has_memory has_normal_memory node*/cpulist node*/cpumap"
    " node*/distance node*/meminfo node*/hugepages/*/nr_hugepages node*/hugepages/*/free_hugepages"
    " node*/hugepages/*/surplus_hugepages",
    "sys/kernel/mm/hugepages/*": "nr_hugepages free_hugepages surplus_hugepages resv_hugepages",
    "sys/devices": "cpu_core/cpus cpu_atom/cpus cpu_lowpower/cpus pci*/pci_bus/*/cpulistaffinity",
    "sys/bus/pci/devices/*": "vendor device subsystem_vendor subsystem_device revision class modalias numa_node"
    " local_cpulist local_cpus current_link_speed max_link_speed current_link_width max_link_width resource enable"
    " driver driver_override iommu_group sriov_totalvfs sriov_numvfs sriov_drivers_autoprobe sriov_vf_device virtfn*"
    " physfn aer_dev_correctable aer_dev_nonfatal aer_dev_fatal power/runtime_status uevent subsystem reset_method"
    " mem_info_* product_name product_number serial_number unique_id fru_id manufacturer vbios_version"
    " current_compute_partition available_compute_partition current_memory_partition available_memory_partition"
    " net/*/ifindex virtio*/net/*/ifindex"
    " tile*/physical_vram_size_bytes vfio-dev/*/dev drm/*/dev drm/*/uevent drm/*/device drm/*/lmem_total_bytes"
    " accel/*/dev accel/*/uevent accel/*/device sriov_admin/*/profile/*",
    "sys/devices/platform/*": "drm/*/dev drm/*/uevent drm/*/device",
    "sys/class/drm": "* */dev */uevent */device",
    "sys/class/accel": "* */dev */uevent */device",
    "sys/class/vfio": "* */dev",
    "sys/kernel/iommu_groups/*/devices": "*",
    "sys/class/kfd/kfd": "dev topology/generation_id topology/system_properties",
    "sys/class/kfd/kfd/topology/nodes/*": "gpu_id name properties mem_banks/*/properties io_links/*/properties"
    " p2p_links/*/properties",
    "sys/module/*": "version srcversion",
    # /proc/meminfo is for kernels without NUMA, which have no folders of nodes.
    "proc": "devices meminfo",
    "proc/driver/nvidia": "version params gpus/*/information gpus/*/numa_status"
    " capabilities/* capabilities/mig/* capabilities/gpu*/mig/* capabilities/gpu*/mig/gi*/*"
    " capabilities/gpu*/mig/gi*/ci*/*",
    "proc/driver/nvidia-caps": "*",
    "dev": "kfd nvidia* nvidia-caps/* nvidia-caps-imex-channels/* dri/* dri/by-path/* accel/* vfio/* vfio/devices/*"
    " iommu",
}


class Recording(msgspec.Struct):
    """A recording of a machine's files.

    Attributes:
        files: contents by path.
        links: targets by path, as they were written.
        devices: device nodes by path.
        left_out: files and folders that exist but could not be recorded, with the reason.
    """

    files: dict[str, bytes] = msgspec.field(default_factory=dict)
    links: dict[str, str] = msgspec.field(default_factory=dict)
    devices: dict[str, DeviceFile] = msgspec.field(default_factory=dict)
    left_out: dict[str, str] = msgspec.field(default_factory=dict)


def record(root: Root) -> Recording:
    """Read the files that drivers read.

    Raises:
        MachineError: the files are larger than those of any machine.
    """
    recorder = _Recorder(root)
    for folder, patterns in _CAPTURED.items():
        for name in patterns.split():
            recorder.take(f"{folder}/{name}")
    return recorder.recording


class _Recorder:
    def __init__(self, root: Root) -> None:
        self.recording = Recording()
        self._root = root
        self._targets: dict[str, str | None] = {}
        self._names: dict[str, list[str]] = {}
        self._size = 0

    def take(self, pattern: str) -> None:
        """Record every file that matches, and the links that lead to it."""
        *folders, last = pattern.split("/")
        places = [""]
        for part in folders:
            places = [self._real(path) for place in places for path in self._matches(place, part)]
        for path in [path for place in dict.fromkeys(places) for path in self._matches(place, last)]:
            if self._link(path) is None:
                self._leaf(path)

    def _matches(self, folder: str, part: str) -> Iterator[str]:
        if folder not in self._names:
            try:
                self._names[folder] = self._root.listdir(folder)
            except OSError as error:
                self._names[folder] = []
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    self.recording.left_out[folder] = error.strerror or str(error)
        return (f"{folder}/{name}".lstrip("/") for name in self._names[folder] if fnmatchcase(name, part))

    def _real(self, path: str) -> str:
        """Return a folder's path; if it is a link, the path that it points to."""
        if self._link(path) is None:
            return path
        try:
            return self._root.resolve(path)
        except OSError:
            return path

    def _link(self, path: str) -> str | None:
        if path not in self._targets:
            try:
                self._targets[path] = self.recording.links[path] = self._root.readlink(path)
            except OSError:
                self._targets[path] = None
        return self._targets[path]

    def _leaf(self, path: str) -> None:
        recording = self.recording
        if path in recording.files or path in recording.devices:
            return
        try:
            if path.startswith("dev/"):
                recording.devices[path] = DeviceFile(*self._root.device_number(path))
                return
            content = self._root.read_bytes(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EISDIR, errno.ENODEV):
                recording.left_out[path] = error.strerror or str(error)
            return
        if len(content) > _MAX_FILE:
            recording.left_out[path] = f"is larger than {_MAX_FILE >> 20} MiB"
            return
        self._size += len(content)
        if self._size > _MAX_TOTAL:
            raise MachineError(f"the files to record are larger than {_MAX_TOTAL >> 20} MiB; check the machine's root")
        recording.files[path] = content


# A recording is written as a tar archive that `--machine` accepts; equal recordings result in equal bytes.

_PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    ".tar": bytes,
    ".tar.gz": lambda content: gzip.compress(content, mtime=0),
    ".tgz": lambda content: gzip.compress(content, mtime=0),
    ".tar.bz2": bz2.compress,
}


def write_archive(recording: Recording, path: Path) -> None:
    """Write the archive atomically; its top folder is named after the file.

    Raises:
        UsageError: the file's name does not say which compression to use.
        MachineError: the file cannot be written.
    """
    ending = next((ending for ending in sorted(_PACKERS, key=len, reverse=True) if path.name.endswith(ending)), None)
    if ending is None or path.name == ending:
        raise UsageError(f'"{path}" must end in one of {", ".join(_PACKERS)}, after a name')
    content = _PACKERS[ending](_tar(recording, path.name.removesuffix(ending)))
    try:
        # In the same folder, because a rename cannot cross file systems. mkstemp makes the file readable only for its
        # owner.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from error


def _tar(recording: Recording, name: str) -> bytes:
    files = {**recording.files, INDEX: index_of(recording.devices)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted({*files, *recording.links}):
            member = tarfile.TarInfo(f"{name}/{path}")
            member.mode = 0o644
            if path in recording.links:
                member.type, member.linkname = tarfile.SYMTYPE, recording.links[path]
                archive.addfile(member)
            else:
                member.size = len(files[path])
                archive.addfile(member, io.BytesIO(files[path]))
    return buffer.getvalue()


_FACTS: Final = {  # name in the summary, file
    "cpus": "sys/devices/system/cpu/online",
    "present": "sys/devices/system/cpu/present",
    "isolated": "sys/devices/system/cpu/isolated",
    "smt": "sys/devices/system/cpu/smt/control",
    "numa": "sys/devices/system/node/online",
    "memory": "sys/devices/system/node/has_memory",
}
_PCI: Final = "sys/bus/pci/devices"
_PCI_FACTS: Final = ("vendor", "device", "class", "numa_node")
# PCI base classes: display controllers and processing accelerators.
_ACCELERATORS: Final = ("0x03", "0x12")
_NODES: Final = ("dev", "dev/dri", "dev/accel", "dev/vfio", "dev/nvidia-caps")
_NODE_NAMES: Final = ("card", "renderD", "accel", "nvidia", "kfd", "vfio")


def summarize(root: Root) -> dict[str, Any]:
    """Return the machine as a plain document; a value that the kernel does not report is null.

    `accelerators` lists display controllers and processing accelerators on PCI, `nodes` their device nodes.
    """
    addresses = names(root, _PCI)
    return {
        **{name: read_attribute(root, path) for name, path in _FACTS.items()},
        "cpuFolders": sum(name[:3] == "cpu" and name[3:].isdecimal() for name in names(root, "sys/devices/system/cpu")),
        "pci": len(addresses),
        "accelerators": [
            accelerator for address in addresses if (accelerator := _accelerator(root, address)) is not None
        ],
        "nodes": dict(_device_nodes(root)),
    }


def _accelerator(root: Root, address: str) -> dict[str, str | None] | None:
    folder = f"{_PCI}/{address}"
    if not (read_attribute(root, f"{folder}/class") or "").startswith(_ACCELERATORS):
        return None
    try:
        driver = root.readlink(f"{folder}/driver").rpartition("/")[2]
    except OSError:
        driver = None
    return {
        "address": address,
        **{name: read_attribute(root, f"{folder}/{name}") for name in _PCI_FACTS},
        "driver": driver,
    }


def _device_nodes(root: Root) -> Iterator[tuple[str, str]]:
    for folder in _NODES:
        for name in names(root, folder):
            if not name.startswith(_NODE_NAMES):
                continue
            try:
                kind, major, minor = root.device_number(f"{folder}/{name}")
            except OSError:
                continue
            yield f"/{folder}/{name}", f"{kind} {major}:{minor}"
