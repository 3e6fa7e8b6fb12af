"""The PCIe root complexes of a machine and the CPUs near each, from sysfs (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import MachineError
from dranode.driver.machine.pci import PCIE_ROOT
from dranode.driver.machine.root import Root, read_text

# The list, and the mask for older kernels, which have no list.
_NEAR: Final = (("cpulistaffinity", CPUSet.parse), ("cpuaffinity", CPUSet.parse_mask))


def read_pcie_roots(root: Root) -> tuple[Mapping[str, CPUSet], tuple[str, ...]]:
    """Return the CPUs near every PCIe root (`pci0000:00`), and a sentence for each root whose CPUs cannot be read.

    Raises:
        MachineError: the roots cannot be listed.
    """
    try:
        names = root.listdir("sys/devices")
    except (FileNotFoundError, NotADirectoryError):
        return {}, ()
    except OSError as error:
        raise MachineError(f"/sys/devices cannot be read: {error.strerror or error}") from error
    near: dict[str, CPUSet] = {}
    warnings: list[str] = []
    for name, match in ((name, PCIE_ROOT.fullmatch(name)) for name in names):
        if match is None:
            continue
        folder = f"sys/devices/{name}/pci_bus/{match[1]}"
        try:
            near[name] = _read_near(root, folder)
        except OSError as error:
            warnings.append(f"PCIe root {name} is not published: /{folder}: {error.strerror or error}")
        except ValueError as error:
            warnings.append(f"PCIe root {name} is not published: /{folder}: {error}")
    return near, tuple(warnings)


def _read_near(root: Root, folder: str) -> CPUSet:
    file, parse = next((one for one in _NEAR if root.exists(f"{folder}/{one[0]}")), _NEAR[0])
    return parse(read_text(root, f"{folder}/{file}"))
