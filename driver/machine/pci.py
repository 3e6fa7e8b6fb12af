"""Finds where a PCI function sits in its machine, as far as the scheduler can use it.

Source: Documentation/ABI/testing/sysfs-bus-pci for `numa_node` and `local_cpus`, Documentation/PCI/sysfs-pci.rst for
the folders. What is found are the values of the standard attributes `resource.kubernetes.io/pcieRoot` and
`resource.kubernetes.io/numaNode`.
"""

from __future__ import annotations

import re
from typing import Final

from dranode.driver.machine.attributes import cpu_mask, number
from dranode.driver.machine.numa import node_cpus
from dranode.driver.machine.root import Root

PCI_DEVICES: Final = "sys/bus/pci/devices"
# A root complex's folder below /sys/devices; extended domains (VMD) have more digits, and the attribute has no form for
# them.
PCIE_ROOT: Final = re.compile(r"pci([0-9a-f]{4}:[0-9a-f]{2})", re.ASCII)

_FOLDER: Final = r"(?:\.\./\.\./\.\./|/sys/)(?P<folder>devices/pci.*?)/?"


def pci_folder(root: Root, address: str) -> str:
    """The function's own folder, `sys/devices/pci0000:00/...`; the bus's link to it where that leads elsewhere."""
    link = f"{PCI_DEVICES}/{address}"
    try:
        match = re.fullmatch(_FOLDER, root.readlink(link))
    except OSError:
        return link
    return f"sys/{match['folder']}" if match and match["folder"].endswith(f"/{address}") else link


def pcie_root(root: Root, address: str) -> str | None:
    """The root complex above the function at `address` (`0000:17:00.0`), as `pci0000:16`; None if none is known."""
    name = pci_folder(root, address).split("/")[2]
    return name if PCIE_ROOT.fullmatch(name) else None


def numa_node(root: Root, address: str) -> int | None:
    """The NUMA node of the CPUs near the function at `address`; None on a machine without, or where it is not known.

    That is the kernel's `numa_node`. Where there is no such file, or it names a node that is memory alone (a GPU's
    own), it is the node of the CPUs in `local_cpus`.

    Raises:
        MachineError: the nodes cannot be listed, or this process can open no file.
    """
    folder = pci_folder(root, address)
    node = number(root, f"{folder}/numa_node", 10)
    if node is not None and node < 0:
        return None
    nodes = node_cpus(root)
    if node is not None and (node in nodes or not nodes):
        return node
    local = cpu_mask(root, f"{folder}/local_cpus")
    return next((found for found, cpus in nodes.items() if local and local <= cpus), None)
