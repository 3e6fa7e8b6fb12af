"""One CPU that is online, and where it belongs."""

from __future__ import annotations

import msgspec


class CPU(msgspec.Struct, frozen=True):
    """One online CPU (a hardware thread).

    Attributes:
        id: the kernel's CPU number.
        core: index into `Topology.cores`.
        core_id: the kernel's `topology/core_id`, which repeats from package to package; -1 if unknown.
        package: the key in `Topology.packages`; -1 if the kernel does not report packages.
        numa: NUMA node id, 0 on a kernel without NUMA; None if no node claims the CPU.
        l3: index into `Topology.l3`; None if the CPU has no level 3 cache.
        l3_id: the cache's `id`, else the lowest CPU that shares it; -1 without an L3.
        type: `standard`, or `p-core`, `e-core` on a hybrid machine.
    """

    id: int
    core: int
    core_id: int
    package: int
    numa: int | None
    l3: int | None
    l3_id: int = -1
    type: str = "standard"
