"""The boxes in which a node's CPUs lie, for pictures: packages and NUMA nodes around caches, caches around cores."""

from __future__ import annotations

import msgspec

from dranode.driver.core.api.cpuset import CPUSet


class Box(msgspec.Struct, frozen=True):
    """CPUs that belong together.

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
