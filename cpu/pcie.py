"""The PCIe root complexes of a machine and the CPUs near each, from sysfs (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dranode.driver.core.cpuset import CPUSet
from dranode.driver.machine.root import Root, read_text

# The form of the standard attribute resource.kubernetes.io/pcieRoot.
_ROOT: Final = re.compile(r"pci([0-9a-f]{4}:[0-9a-f]{2})", re.ASCII)


def read_pcie_roots(root: Root) -> tuple[Mapping[str, CPUSet], tuple[str, ...]]:
    """The CPUs near every PCIe root (`pci0000:00`), and a sentence for each root whose CPUs cannot be read."""
    try:
        names = root.listdir("sys/devices")
    except OSError:
        return {}, ()
    near: dict[str, CPUSet] = {}
    warnings: list[str] = []
    for name in names:
        match = _ROOT.fullmatch(name)
        if match is None:
            continue
        path = f"sys/devices/{name}/pci_bus/{match[1]}/cpulistaffinity"
        try:
            near[name] = CPUSet.parse(read_text(root, path))
        except (OSError, ValueError) as error:
            warnings.append(f"PCIe root {name} is not published: /{path}: {error}")
    return near, tuple(warnings)
