"""The CPUs and the memory nodes of the cgroup of all pods: no container gets more than these.

If a container asks for more, cgroup v1 refuses the write (EACCES). cgroup v2 accepts it and gives the container the
CPUs that its parent has too. If there are none, it gets all CPUs of the parent, which other claims may hold. The same
applies to memory nodes (Documentation/admin-guide/cgroup-v2.rst, Cpuset, and cgroup-v1/cpusets.rst).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.driver.claims.hooks import HardwareProblem


class PodsCgroup(msgspec.Struct, frozen=True):
    """The CPUs and the memory that the cgroup of all pods has.

    Attributes:
        folder: its folder, with a leading slash; empty if there is none, so that nothing is limited.
        cpus: the CPUs on which pods may run; None if they are not limited.
        nodes: the NUMA nodes from which they may take memory; None if they are not limited.
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
        """Yield a problem if the cgroup lacks some of the machine's CPUs."""
        if lacking := self.lacks(cpus):
            yield HardwareProblem(
                "pods-cgroup-cpus",
                f"pods may not run on CPUs {lacking}, so none of them is handed out: {self.folder} has CPUs "
                f"{self.cpus or 'none'}",
                _FIX.format("CPUs", "AllowedCPUs="),
            )

    def node_problems(self, nodes: CPUSet) -> Iterator[HardwareProblem]:
        """Yield a problem if the cgroup lacks some of the machine's NUMA nodes with memory."""
        if lacking := self.lacks_nodes(nodes):
            yield HardwareProblem(
                "pods-cgroup-memory",
                f"pods get no memory of NUMA nodes {lacking}, so none of it is handed out: {self.folder} has NUMA "
                f"nodes {self.nodes or 'none'}",
                _FIX.format("NUMA nodes", "AllowedMemoryNodes="),
            )


# Some administrators keep CPUs from pods on purpose, so this is not always an error.
_FIX: Final = (
    "if pods should have these {}, add them to that cgroup and to all cgroups above it ({} of the systemd slices, or "
    "the cpuset of the container or virtual machine that is the node); otherwise nothing needs to be done"
)
UNLIMITED: Final = PodsCgroup()
"""The value for a machine where pods have no cgroup, or where no cgroup limits them."""
