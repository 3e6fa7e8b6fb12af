"""The kernel's events about GPUs: added, removed, bound, unbound, wedged."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dranode.driver.machine import udev
from dranode.gpu.inventory import ADDRESS
from dranode.gpu.sysfs import GPU_CLASSES


class GPUEvent(msgspec.Struct, frozen=True):
    """One event of the kernel about a GPU.

    Attributes:
        action: add, remove, bind, unbind, change.
        address: the PCI function.
        wedged: how the GPU may be recovered, mildest first (`rebind,bus-reset`; `none`: it has recovered); None in an
            event that says nothing of it.
    """

    action: str
    address: str
    wedged: str | None = None


def gpu_event_of(action: str, subsystem: str, path: str, properties: Mapping[str, str]) -> GPUEvent | None:
    """The event that a uevent is; None if it has nothing to do with GPUs.

    Args:
        action: the uevent's ACTION.
        subsystem: its SUBSYSTEM.
        path: its device's path; a DRM card's leads through its PCI function.
        properties: its other keys: PCI_CLASS in hexadecimal without leading zeros, WEDGED.
    """
    addresses = [part for part in path.split("/") if ADDRESS.fullmatch(part)]
    if not addresses:
        return None
    if subsystem == "drm":
        wedged = properties.get("WEDGED")
        return None if wedged is None else GPUEvent(action, addresses[-1], wedged)
    try:
        pci_class = int(properties.get("PCI_CLASS", ""), 16) >> 8
    except ValueError:
        return None
    return GPUEvent(action, addresses[-1]) if subsystem == "pci" and pci_class in GPU_CLASSES else None


def gpu_kernel_events() -> udev.Events[GPUEvent]:
    """The kernel's uevents about GPUs.

    Raises:
        ImportError: libudev is not installed.
        OSError: the kernel's netlink group cannot be joined.
    """
    return udev.KernelEvents(("pci", "drm"), gpu_event_of)
