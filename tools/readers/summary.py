"""A summary of a machine's files in the kernel's own words, without an interpretation by a driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dranode.driver.machine.root import Root, names, read_attribute

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
        "accelerators": [found for address in addresses if (found := _accelerator(root, address)) is not None],
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
