"""The kernel's events about CPUs: going offline, coming back, added, removed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dranode.driver.machine import udev

_PATH: Final = re.compile(r"/devices/system/cpu/cpu(\d+)", re.ASCII)


class CPUEvent(msgspec.Struct, frozen=True):
    """One event of the kernel about a CPU.

    Attributes:
        action: online, offline, add, remove.
        cpu: the kernel's CPU number.
    """

    action: str
    cpu: int


def cpu_event_of(action: str, subsystem: str, path: str, properties: Mapping[str, str]) -> CPUEvent | None:
    """Return the event that a uevent reports, or None if it is not about a CPU."""
    del properties
    match = _PATH.fullmatch(path)
    return CPUEvent(action, int(match[1])) if subsystem == "cpu" and match is not None else None


def cpu_kernel_events() -> udev.Events[CPUEvent]:
    """Open the source of the kernel's uevents about CPUs.

    Raises:
        ImportError: libudev is not installed.
        OSError: the kernel's netlink group cannot be joined.
    """
    return udev.KernelEvents(("cpu",), cpu_event_of)
