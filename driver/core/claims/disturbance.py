"""The value of what has disturbed the CPUs of a claim since it began; whoever reads the kernel's counters makes it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.claims.held import ClaimRef


class Disturbance(msgspec.Struct, frozen=True):
    """The disturbances on the CPUs of a claim since it began.

    Attributes:
        claim: the claim.
        cpus: the CPUs that are to be quiet.
        interrupts: how often devices interrupted them, by number and name of the interrupt: `36 virtio1-req.0`; without
            those that did not. None if the kernel does not say, or did not when the claim began.
        kernel: the same for what the kernel itself interrupts with, such as its timer: `LOC Local timer interrupts`.
        busy: how many seconds tasks ran on them, the claim's own and others; None if the kernel does not say.
        processes: the threads that have not the claim and ran there last, by names and processes, the busiest first;
            filled in by who looks at processes.
    """

    claim: ClaimRef
    cpus: CPUSet
    interrupts: Mapping[str, int] | None = None
    kernel: Mapping[str, int] | None = None
    busy: float | None = None
    processes: tuple[str, ...] = ()

    @property
    def count(self) -> int | None:
        """Return how often devices interrupted the CPUs; None if that is not known."""
        return None if self.interrupts is None else sum(self.interrupts.values())
