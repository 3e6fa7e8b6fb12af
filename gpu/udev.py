"""The kernel's events about GPUs: added, removed, bound, unbound, wedged. An event source, never the source of truth.

libudev reads the real `/sys` only, so nothing is looked up through it; an event says that it is time to read again.
Events come from the kernel's own netlink group: udevd's do not reach a pod without the host's network namespace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dranode.gpu.inventory import ADDRESS
from dranode.gpu.sysfs import GPU_CLASSES

RESCAN: Final = 60.0
"""Seconds after which the machine is read again without any event."""

_TICK: Final = 2.0
_QUIET: Final = 0.5
_LONGEST_BURST: Final = 10.0


@dataclass(frozen=True, slots=True)
class Event:
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


class Events(Protocol):
    """Where events come from."""

    def next(self, timeout: float) -> Event | None:
        """The next event about a GPU; None if there was none for `timeout` seconds."""


def event_of(action: str, subsystem: str, path: str, properties: Mapping[str, str]) -> Event | None:
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
        return None if wedged is None else Event(action, addresses[-1], wedged)
    try:
        pci_class = int(properties.get("PCI_CLASS", ""), 16) >> 8
    except ValueError:
        return None
    return Event(action, addresses[-1]) if subsystem == "pci" and pci_class in GPU_CLASSES else None


class KernelEvents:
    """The kernel's uevents, through pyudev."""

    def __init__(self) -> None:
        import pyudev  # noqa: PLC0415 - a serving GPU driver alone pays for it

        self._monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        self._monitor.filter_by("pci")
        self._monitor.filter_by("drm")
        self._monitor.start()

    def next(self, timeout: float) -> Event | None:
        """The next uevent about a GPU; None if the next one is not, or there was none for `timeout` seconds."""
        device = self._monitor.poll(timeout)
        if device is None:
            return None
        return event_of(device.action or "", device.subsystem or "", device.device_path, dict(device.properties))


def watch(
    events: Events | None,
    note: Callable[[Event], None],
    stop: threading.Event,
    *,
    due: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Yield whenever the machine should be read again, until `stop` is set; a burst of events yields once.

    Args:
        events: the event source; None where there is none, then only `RESCAN` and `due` count.
        note: is told every event.
        stop: ends the watch within seconds.
        due: whether the machine should be read for another reason.
        clock: seconds that never run backwards.
    """
    last = clock()
    while not stop.is_set():
        event = events.next(_TICK) if events is not None else None
        if events is None:
            stop.wait(_TICK)
        if event is not None:
            note(event)
            _drain(events, note, clock)
        if event is not None or due() or clock() - last >= RESCAN:
            last = clock()
            yield


def _drain(events: Events | None, note: Callable[[Event], None], clock: Callable[[], float]) -> None:
    end = clock() + _LONGEST_BURST
    while events is not None and clock() < end:
        event = events.next(_QUIET)
        if event is None:
            return
        note(event)
