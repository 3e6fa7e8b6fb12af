"""What a driver may tell people besides its devices: problems for `doctor`, readings for `topology`, boxes of CPUs."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.inventory import Inventory


class HardwareProblem(msgspec.Struct, frozen=True):
    """A problem of the node, which keeps a driver from working or from working well, as `dranode doctor` reports it.

    Attributes:
        code: a stable name for it, in lower case with dashes.
        what: what is wrong, with value and place, in one sentence without a full stop.
        fix: what to do, likewise.
        stops: whether claims fail by it; else it is a warning.
    """

    code: str
    what: str
    fix: str
    stops: bool = False


class HardwareReadings(msgspec.Struct, frozen=True):
    """A table of current values of the hardware, as `dranode topology` shows it.

    Attributes:
        title: what it is about, in a few words.
        rows: each with the same names, in the order of the columns; None is what could not be read.
        remarks: a sentence for each thing that the table does not say.
    """

    title: str
    rows: tuple[Mapping[str, str | int | None], ...]
    remarks: tuple[str, ...] = ()


class Box(msgspec.Struct, frozen=True):
    """CPUs that belong together: a package or a NUMA node around caches, a cache around cores.

    Attributes:
        title: for people: `package 0`, `part of NUMA 1`, `L3`; empty for CPUs that belong to nothing.
        cpus: the CPUs in it.
        framed: whether it is drawn as a frame around what is in it; else as rows of cores.
        numa: the NUMA node that it is, or is a part of; None if it is none.
        boxes: what is in it, in order.
        cores: where no box is in it, its physical cores: of each core the threads that are in the box.
    """

    title: str
    cpus: CPUSet
    framed: bool = False
    numa: int | None = None
    boxes: tuple[Box, ...] = ()
    cores: tuple[CPUSet, ...] = ()


class Layout(msgspec.Struct, frozen=True):
    """A node's CPUs, from the outermost boxes in.

    Attributes:
        title: how many of what, in one line.
        boxes: the outermost ones.
        facts: what is odd, each in a few words: `offline 6-7`.
        isolated: CPUs kept from the kernel's load balancing.
        warnings: one sentence each.
    """

    title: str
    boxes: tuple[Box, ...]
    facts: tuple[str, ...] = ()
    isolated: CPUSet = msgspec.field(default_factory=CPUSet)
    warnings: tuple[str, ...] = ()

    @property
    def cpus(self) -> CPUSet:
        """All CPUs of the picture."""
        return CPUSet.union(box.cpus for box in self.boxes)


class Reports(ABC):  # noqa: B024 - each method has a default
    """A driver that tells people more about the node than its devices.

    Commands call these methods, `serve` never does. They are called after `discover`, with its answer, in a process
    that may run as another user and beside the serving driver, perhaps on a captured or made-up machine. So they only
    read, through the `Root` that the driver was made for.
    """

    def problems(self, inventory: Inventory) -> Iterable[HardwareProblem]:  # noqa: ARG002 - subclasses use it
        """Return what keeps claims from being prepared, or from working well, on this node.

        Called by `dranode doctor`. What keeps `discover` from reading the hardware, and `Inventory.warnings`, are
        reported already. Give a problem the same `code` on every node, because alerts and scripts compare it.

        Example:
            return [HardwareProblem("fans-dusty", "fan-0 turns at 200 of 800 rounds a minute", "clean it")]
        """
        return ()

    def readings(self, inventory: Inventory) -> Iterable[HardwareReadings]:  # noqa: ARG002 - subclasses use it
        """Return current values of the hardware as tables.

        Called by `dranode topology`. Nothing of it is published, so values may change from one call to the next. A
        value that cannot be read is None and never 0, because people take 0 for a measured value.

        Example:
            return [HardwareReadings("Fans", ({"fan": "fan-0", "speed": 800}, {"fan": "fan-1", "speed": None}))]
        """
        return ()

    def layout(self, inventory: Inventory) -> Layout | None:  # noqa: ARG002 - subclasses use it
        """Return the boxes in which the node's CPUs lie; None if the driver's devices are no CPUs.

        Called where a picture of the node is drawn. Devices that are no CPUs need nothing: their attribute `numaNode`,
        in any domain, puts them into their box.

        Example:
            return Layout("4 CPUs", (Box("package 0", CPUSet.parse("0-3"), framed=True, numa=0),))
        """
        return None
