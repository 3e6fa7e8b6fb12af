"""A running made-up machine with GPUs: it binds, unbinds and probes as Linux does, and may crash at any write."""

import errno
import os
from dataclasses import dataclass, field

from dranode.sim.machines.confined import ConfinedRoot
from tests.fakes.gpu import DEVICES, DRIVERS, Machine


class Crash(BaseException):
    """The process died."""


@dataclass(eq=False)
class Kernel(ConfinedRoot):
    """The running machine: a `Root` that can be written to.

    Attributes:
        machine: its files.
        after: the number of writes before the process dies; None: it does not die.
        refuse: drivers that refuse to bind.
        writes: every write that happened.
    """

    machine: Machine
    after: int | None = None
    refuse: frozenset[str] = frozenset()
    writes: list[tuple[str, str]] = field(default_factory=list)
    _last_driver: dict[str, str] = field(default_factory=dict)
    _drm: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.machine.root().files)

    def group(self, path: str) -> int | None:
        return self.machine.groups.get(path.lstrip("/"))

    def write(self, path: str, content: str) -> None:
        if self.after is not None and len(self.writes) >= self.after:
            raise Crash
        root = self.machine.root()
        if not root.exists(path) and path != "sys/bus/pci/drivers_probe":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.writes.append((path, content))
        name = path.rpartition("/")[2]
        if name == "driver_override":
            self.machine.put(root.resolve(path), "(null)" if content == "\n" else content)
        elif name == "unbind":
            self._unbind(path.split("/")[-2], content)
        elif name == "bind":
            self._bind(path.split("/")[-2], content)
        elif name == "drivers_probe":
            self._bind(self._last_driver.get(content, ""), content)

    def _unbind(self, driver: str, address: str) -> None:
        if self.machine.bound(address) != driver:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        folder = self.machine.root().resolve(f"{DEVICES}/{address}")
        self.machine.remove(f"{folder}/driver")
        self.machine.remove(f"{DRIVERS}/{driver}/{address}")
        if driver.endswith("vfio-pci"):
            self._vfio_node(address, present=False)
        else:
            self._last_driver[address] = driver
            self.machine.remove(f"{folder}/drm")

    def _bind(self, driver: str, address: str) -> None:
        root = self.machine.root()
        override = root.read_bytes(f"{DEVICES}/{address}/driver_override").decode().strip()
        matches = override == driver or (override == "(null)" and not driver.endswith("vfio-pci"))
        if not (matches and root.exists(f"{DRIVERS}/{driver}")) or driver in self.refuse or self.machine.bound(address):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self.machine.bind(address, driver)
        if driver.endswith("vfio-pci"):
            self._vfio_node(address, present=True)

    def _vfio_node(self, address: str, *, present: bool) -> None:
        group = self.machine.root().readlink(f"{DEVICES}/{address}/iommu_group").rpartition("/")[2]
        if present:
            self.machine.node("dev/vfio/vfio", 10, 196)
            self.machine.node(f"dev/vfio/{group}", 240, int(group))
        else:
            self.machine.remove(f"dev/vfio/{group}")
