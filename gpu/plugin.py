"""The GPU driver, `dra.gpu`; its entry point in the group `dranode.plugins` is `gpu`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from dranode.api.errors import ClaimError, MachineError
from dranode.cdi.spec import ContainerEdits
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Config, Grant
from dranode.driver.claims.held import ClaimRef, Held
from dranode.driver.claims.hooks import Configures
from dranode.driver.claims.plugin import DeviceHealth, Inventory, Plugin, Stop
from dranode.driver.machine import udev
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.root import Root
from dranode.driver.machine.udev import Events, opened, watch
from dranode.gpu import health, vfio
from dranode.gpu.config import GPUConfig, parse_gpu_config
from dranode.gpu.devices import attribute_names, counters, gpu_devices
from dranode.gpu.edits import complete, foreseeable_problems
from dranode.gpu.grants import Intent, gpu_sources, grant_gpus
from dranode.gpu.health import AERCounts
from dranode.gpu.inventory import ADDRESS, GPUInventory
from dranode.gpu.nvml import NVML, open_nvml
from dranode.gpu.proc import nvidia_gpus
from dranode.gpu.scan import scan
from dranode.gpu.sysfs import GPU_CLASSES, aer_counts, pci_function


def group_of(path: str) -> int | None:
    """Return the group that owns a file of this machine; None if there is no such file.

    Raises:
        MachineError: it cannot be accessed.
    """
    try:
        return os.stat(path).st_gid  # noqa: PTH116 - one system call, no object
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise MachineError(f"the group of {path} cannot be read: {error.strerror}") from error


class GPUPlugin(Plugin, Configures):
    """NVIDIA, AMD and Intel GPUs, and any other with a render node, read from the machine's files.

    Args:
        root: the machine's files.
        shared: whether several claims may share a GPU.
        tainted: whether unhealthy GPUs are tainted.
        groups: returns the group of a device node (`/dev/dri/renderD128`); None for a captured or synthetic machine.
        nvml: NVIDIA's management library.
        events: opens the source of the kernel's events.
        clock: seconds since 1970.
    """

    driver: ClassVar[str] = "dra.gpu"

    def __init__(
        self,
        root: Root,
        *,
        shared: bool = False,
        tainted: bool = False,
        groups: Callable[[str], int | None] | None = None,
        nvml: NVML | None = None,
        events: Callable[[], Events[GPUEvent]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._shared = shared
        self._tainted = tainted
        self._groups = groups or (lambda _path: None)
        self._nvml = nvml
        self._events = events
        self._clock = clock
        # Prepare, health and hot-plug run in different threads.
        self._lock = threading.Lock()
        self._condition = health.GPUCondition()
        self._published: Mapping[str, Any] = {}

    def attribute_names(self) -> frozenset[str]:
        """Return the names of all attributes."""
        return attribute_names()

    def discover(self) -> Inventory:
        """Read the machine's GPUs; a machine without any has no devices.

        Raises:
            MachineError: the machine's files cannot be read.
        """
        facts = self._nvml.gpus(nvidia_gpus(self._root)) if self._nvml is not None else {}
        inventory = scan(self._root, facts)
        with self._lock:
            self._condition = health.present(self._condition, inventory, self._clock())
            self._published = health.taints(self._condition)
            taints = self._published if self._tainted else {}
        served = (gpu for gpu in inventory.gpus if not gpu.unserved)
        return Inventory(
            devices=gpu_devices(inventory, shared=self._shared, taints=taints),
            counters=counters(inventory),
            hardware=inventory,
            warnings=(*inventory.warnings, *foreseeable_problems(self._root, served)),
            sources={gpu.name: frozenset((gpu.source,)) for gpu in inventory.gpus},
        )

    def sources(self, device: str, state: Any) -> frozenset[str] | None:
        """Return what a granted device is made of, even if the GPU is divided differently by now."""
        return gpu_sources(device, state)

    def parse_config(self, config: Config) -> GPUConfig:
        """Decode a `GPUConfig`."""
        return parse_gpu_config(config)

    def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
        """Decide which GPUs a claim gets, in which mode, and with which variables."""
        gpus = (inventory.hardware.by_name[allocated.result.device] for allocated in claim.results)
        addresses = (function.address for gpu in gpus for function in gpu.functions)
        drivers = {address: pci_function(self._root, address).driver for address in addresses}
        return grant_gpus(claim, held, inventory.hardware, drivers)

    def complete(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """Add device nodes with their present numbers, group ids and NVIDIA's libraries."""
        return tuple(self._completed(claim, grant) for grant in grants)

    def configures(self, grants: tuple[Grant, ...]) -> bool:
        """Return whether a grant has mode `vfio`, the only one that binds drivers."""
        return next(_taking(grants), None) is not None

    def configure(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
        """Bind the GPUs of mode `vfio` to `vfio-pci`."""
        for intent in _taking(grants):
            with nullcontext() if self._nvml is None else self._nvml.released():
                vfio.take(self._root, claim, intent.homes)

    def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:  # noqa: ARG002 - grants suffice
        """Bind the GPUs of mode `vfio` to their earlier drivers."""
        for intent in _taking(grants):
            vfio.give_back(self._root, intent.homes)

    def health(self, inventory: Inventory) -> Iterable[DeviceHealth]:
        """Read the error counters and NVML's events, and return the health of every GPU that was ever published."""
        hardware: GPUInventory = inventory.hardware
        addresses = sorted({gpu.address for gpu in hardware.gpus})
        counts, unread = self._counted(addresses)
        xids, needs = (self._nvml.xids(), self._nvml.needs()) if self._nvml is not None else ((), {})
        now = self._clock()
        with self._lock:
            condition = replace(health.expired(self._condition, now), unread=unread)
            for address, totals in counts.items():
                condition = health.counted(condition, address, totals, now)
            for address, number in xids:
                condition = health.xid(condition, address, number, now)
            for address, need in needs.items():
                condition = health.needs(condition, address, need, now)
            self._condition = condition
            return health.report(condition)

    def _counted(self, addresses: Iterable[str]) -> tuple[dict[str, AERCounts], dict[str, str]]:
        """Return the error counters of the functions that have any, and why those of others cannot be read."""
        counts: dict[str, AERCounts] = {}
        unread: dict[str, str] = {}
        for address in addresses:
            try:
                read = aer_counts(self._root, address)
            except MachineError as error:
                unread[address] = str(error)
            else:
                if read is not None:
                    counts[address] = read
        return counts, unread

    def watch(self, stop: Stop) -> Iterator[None]:
        """Yield when `discover` may return something else, until `stop` is set; block in between.

        That is when GPUs were added, removed or bound to other drivers, when a taint changes, and every minute.
        """
        yield from watch(opened(self._events), self.note, stop, due=self._taints_changed)

    def note(self, event: GPUEvent) -> None:
        """Apply one event of the kernel to the condition of the GPUs."""
        with self._lock:
            condition = health.handled(self._condition, event.action, event.address)
            if event.wedged is not None:
                condition = health.wedged(condition, event.address, event.wedged, self._clock())
            self._condition = condition

    def _taints_changed(self) -> bool:
        with self._lock:
            return self._tainted and health.taints(self._condition) != self._published

    def _completed(self, claim: ClaimRef, grant: Grant) -> Grant:
        intent = Intent.of(grant)
        if intent is None:
            raise ClaimError(
                f"claim {claim} has device {grant.device}, but the record of what its containers get was lost; "
                "delete all pods that use the claim, also this one, so that kubelet unprepares it"
            )
        edits = complete(self._root, intent, grant.edits or ContainerEdits(), self._groups)
        return replace(grant, edits=edits)


def plugin(root: Root, options: Mapping[str, object]) -> GPUPlugin:
    """Make the GPU driver for the machine under `root`, with the options of `dranode.gpu.declared`."""
    here = isinstance(root, HostRoot)
    return GPUPlugin(
        root,
        shared=options.get("sharing") == "shared",
        tainted=bool(options.get("device_taints")),
        groups=group_of if here else None,
        nvml=open_nvml() if here else None,
        events=gpu_kernel_events if here else None,
    )


def _taking(grants: Iterable[Grant]) -> Iterator[Intent]:
    """Yield the intents of the grants whose functions are taken from their drivers."""
    for grant in grants:
        intent = Intent.of(grant)
        if intent is not None and intent.homes:
            yield intent


# The kernel's events about GPUs: added, removed, bound, unbound, wedged.


class GPUEvent(msgspec.Struct, frozen=True):
    """One event of the kernel about a GPU.

    Attributes:
        action: add, remove, bind, unbind, change.
        address: the PCI function.
        wedged: how the GPU may be recovered, mildest first (`rebind,bus-reset`), or `none` if it has recovered; None
            for other events.
    """

    action: str
    address: str
    wedged: str | None = None


def gpu_event_of(action: str, subsystem: str, path: str, properties: Mapping[str, str]) -> GPUEvent | None:
    """Return the event that a uevent reports; None if it is not about a GPU.

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
    """Open the source of the kernel's uevents about GPUs.

    Raises:
        ImportError: libudev is not installed.
        OSError: the kernel's netlink group cannot be joined.
    """
    return udev.KernelEvents(("pci", "drm"), gpu_event_of)
