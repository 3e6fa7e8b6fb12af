"""Finds where a PCI function sits in its machine: root complex and bridges, NUMA node, CPUs and link.

Root complex and node are the values of the standard attributes `resource.kubernetes.io/pcieRoot` and
`resource.kubernetes.io/numaNode`.

Sources: Documentation/ABI/testing/sysfs-bus-pci (`class`, `numa_node`, `local_cpus`, `local_cpulist`, `max_link_speed`,
`max_link_width`, `current_link_speed`, `current_link_width`), Documentation/PCI/sysfs-pci.rst for the folders, and
sysfs-class-net for names of network devices.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.machine.numa import node_cpus
from dranode.driver.machine.root import Root, all_names, cpu_mask, names, number, read_attribute

PCI_DEVICES: Final = "sys/bus/pci/devices"
PCI_DRIVERS: Final = "sys/bus/pci/drivers"
# The folder of a root complex. It may be anywhere below /sys/devices, such as below a hypervisor's bus or a platform's
# controller. Extended domains (VMD) have more digits; the standard attribute does not allow these.
PCIE_ROOT: Final = re.compile(r"pci([0-9a-f]{4}:[0-9a-f]{2})", re.ASCII)

_FOLDER: Final = r"(?:\.\./\.\./\.\./|/sys/)(?P<folder>devices/(?:[^/]+/)*?pci.*?)/?"


def pci_folder(root: Root, address: str) -> str:
    """Return the function's own folder, `sys/devices/pci0000:00/...`, or the bus's link to it if that is not found."""
    link = f"{PCI_DEVICES}/{address}"
    try:
        match = re.fullmatch(_FOLDER, root.readlink(link))
    except OSError:
        return link
    return f"sys/{match['folder']}" if match and match["folder"].endswith(f"/{address}") else link


def pcie_root(root: Root, address: str) -> str | None:
    """Return the root complex above the function at `address` (`0000:17:00.0`), as `pci0000:16`; None if unknown."""
    return next(iter(_bridges(pci_folder(root, address))), None)


def _bridges(folder: str) -> tuple[str, ...]:
    """Return the bridges above a function, the root complex first; none if its folder does not show a root complex."""
    above = folder.split("/")[:-1]
    first = next((place for place, part in enumerate(above) if PCIE_ROOT.fullmatch(part)), len(above))
    return tuple(above[first:])


def numa_node(root: Root, address: str) -> int | None:
    """Return the NUMA node of the CPUs near the function at `address`; None if there is none or it is unknown.

    This is the kernel's `numa_node`. If there is no such file, or it names a node that has only memory (a GPU's own),
    it is the node of the CPUs in `local_cpus`.

    Raises:
        MachineError: the nodes cannot be listed, or this process cannot open any file.
    """
    folder = pci_folder(root, address)
    node = number(root, f"{folder}/numa_node", 10)
    # The kernel writes -1 if the node is unknown.
    if node is not None and node < 0:
        return None
    nodes = node_cpus(root)
    if node is not None and (node in nodes or not nodes):
        return node
    local = cpu_mask(root, f"{folder}/local_cpus")
    return next((near for near, cpus in nodes.items() if local and local <= cpus), None)


_NETWORK: Final = 0x02  # the first byte of the class code of network controllers, including InfiniBand
_SPEED: Final = re.compile(r"([0-9.]+) GT/s.*")


class PCIFunction(msgspec.Struct, frozen=True):
    """A PCI function.

    Attributes:
        address: `0000:17:00.0`.
        bridges: the bridges above it, the root complex (`pci0000:16`) first; empty if the machine does not show it.
        numa_node: the NUMA node of the CPUs near it; None if it is unknown.
        cpus: these CPUs; none if they are unknown.
        link: the highest speed of its link in GT/s per lane, and the highest number of lanes; None for an unknown one.
        link_now: the current speed and lanes, which may be lower while the device is idle.
        network: the names of its network devices, if it is a network controller.
    """

    address: str
    bridges: tuple[str, ...]
    numa_node: int | None
    cpus: CPUSet
    link: tuple[float | None, int | None]
    link_now: tuple[float | None, int | None]
    network: tuple[str, ...] = ()


def network_functions(root: Root) -> Iterator[PCIFunction]:
    """Yield the machine's network controllers, by address.

    Raises:
        MachineError: the folder of PCI devices exists and cannot be listed.
    """
    for address in sorted(all_names(root, PCI_DEVICES)):
        # The class code is three bytes: base class, subclass and programming interface.
        code = number(root, f"{pci_folder(root, address)}/class", 16)
        if code is not None and code >> 16 == _NETWORK:
            yield read_function(root, address)


def read_function(root: Root, address: str) -> PCIFunction:
    """Return the function at an address; values that the machine does not show are unknown.

    Raises:
        MachineError: this process cannot open any file.
    """
    folder, node = pci_folder(root, address), numa_node(root, address)
    return PCIFunction(
        address,
        _bridges(folder),
        node,
        _cpus(root, folder) or node_cpus(root).get(-1 if node is None else node, CPUSet()),
        _link(root, folder, "max"),
        _link(root, folder, "current"),
        tuple(sorted(_network_devices(root, folder))),
    )


def _network_devices(root: Root, folder: str) -> Iterator[str]:
    yield from names(root, f"{folder}/net")
    # A virtio device is on a bus of its own below the PCI function.
    for child in names(root, folder):
        if child.startswith("virtio"):
            yield from names(root, f"{folder}/{child}/net")


def _cpus(root: Root, folder: str) -> CPUSet:
    try:
        return CPUSet.parse(read_attribute(root, f"{folder}/local_cpulist") or "")
    except ValueError:
        return CPUSet()


def _link(root: Root, folder: str, which: str) -> tuple[float | None, int | None]:
    match = _SPEED.fullmatch(read_attribute(root, f"{folder}/{which}_link_speed") or "")
    speed = float(match[1]) if match else None
    # A function without a link has the width 0, and 255 as the largest width.
    width = number(root, f"{folder}/{which}_link_width", 10)
    return speed, width if speed is not None and width else None
