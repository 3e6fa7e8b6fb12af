"""The cgroup of all pods, and what it leaves them of the machine: no container gets a CPU or memory beyond it.

cgroup v1 refuses a container that is to have more (EACCES); in v2 it gets what its parent has of it, or all that the
parent has, which other claims may hold (Documentation/admin-guide/cgroup-v2.rst, Cpuset, and cgroup-v1/cpusets.rst).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.claims.hooks import HardwareProblem


class PodsCgroup(msgspec.Struct, frozen=True):
    """The CPUs and the memory that the cgroup of all pods has.

    Attributes:
        folder: where it is, with a leading slash; empty if there is none, and nothing is limited.
        cpus: the CPUs on which pods may run; None if no cgroup limits them.
        nodes: the NUMA nodes from which they may take memory; None if no cgroup limits them.
    """

    folder: str = ""
    cpus: CPUSet | None = None
    nodes: CPUSet | None = None

    def lacks(self, cpus: CPUSet) -> CPUSet:
        """Return the CPUs among these on which no pod may run."""
        return NO_CPUS if self.cpus is None else cpus - self.cpus

    def lacks_nodes(self, nodes: CPUSet) -> CPUSet:
        """Return the NUMA nodes among these from which no pod may take memory."""
        return NO_CPUS if self.nodes is None else nodes - self.nodes

    def cpu_problems(self, cpus: CPUSet) -> Iterator[HardwareProblem]:
        """Yield that the cgroup lacks some of these CPUs, which are those of the machine."""
        if lacking := self.lacks(cpus):
            yield HardwareProblem(
                "pods-cgroup-cpus",
                f"pods may not run on CPUs {lacking}, so none of them is handed out: {self.folder} has CPUs "
                f"{self.cpus or 'none'}",
                _FIX.format("CPUs", "AllowedCPUs="),
            )

    def node_problems(self, nodes: CPUSet) -> Iterator[HardwareProblem]:
        """Yield that the cgroup lacks some of these NUMA nodes, which are those of the machine with memory."""
        if lacking := self.lacks_nodes(nodes):
            yield HardwareProblem(
                "pods-cgroup-memory",
                f"pods get no memory of NUMA nodes {lacking}, so none of it is handed out: {self.folder} has NUMA "
                f"nodes {self.nodes or 'none'}",
                _FIX.format("NUMA nodes", "AllowedMemoryNodes="),
            )


_FIX: Final = (
    "if pods should have these {}, give them to that cgroup and to all above it ({} of the systemd slices, cpuset of "
    "the container or virtual machine that the node is); if not, nothing needs to be done"
)
UNLIMITED: Final = PodsCgroup()
"""The value for a machine where pods have no cgroup, or where no cgroup limits them."""
