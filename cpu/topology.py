"""A machine's CPUs as values: what is a core, a package, an L3 cache, a NUMA node.

Terms are the kernel's (Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-system-cpu).
Everything here is restricted to CPUs that are online; offline ones appear in `offline` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from dranode.cpu.groups import CPUGroups
from dranode.cpu.logical_cpu import CPU
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.pinning.pods_cgroup import UNLIMITED, PodsCgroup


class Topology(msgspec.Struct, frozen=True, dict=True):
    """A machine's CPUs and their cores, packages, caches and NUMA nodes. All lists are sorted by first CPU.

    Attributes:
        cpus: online CPUs by id.
        offline: present CPUs that are not online.
        isolated: CPUs kept from the scheduler's load balancing (`isolcpus=`), online or not.
        nohz_full: CPUs whose timer stops while one task runs alone (`nohz_full=`), online or not.
        smt: whether simultaneous multithreading is on.
        cores: the online threads of every physical core.
        packages: the CPUs of every package, by `physical_package_id`, or a free number where that is missing or taken.
        l3: the CPUs of every L3 cache.
        numa: the CPUs of every NUMA node that has any, by node id; node 0 alone on a kernel without NUMA.
        memory_nodes: NUMA nodes with memory; empty if the kernel does not report them.
        pods: what the cgroup of all pods has of these CPUs and nodes.
        warnings: one sentence each for contradictions that were resolved.
    """

    cpus: Mapping[int, CPU]
    offline: CPUSet = msgspec.field(default_factory=CPUSet)
    isolated: CPUSet = msgspec.field(default_factory=CPUSet)
    nohz_full: CPUSet = msgspec.field(default_factory=CPUSet)
    smt: bool = False
    cores: tuple[CPUSet, ...] = ()
    packages: Mapping[int, CPUSet] = msgspec.field(default_factory=dict)
    l3: tuple[CPUSet, ...] = ()
    numa: Mapping[int, CPUSet] = msgspec.field(default_factory=dict)
    memory_nodes: frozenset[int] = frozenset()
    pods: PodsCgroup = UNLIMITED
    warnings: tuple[str, ...] = ()

    @cached_property
    def online(self) -> CPUSet:
        """Return all online CPUs."""
        return CPUSet(self.cpus)

    @cached_property
    def present(self) -> CPUSet:
        """Return all CPUs that the machine has, online or not."""
        return self.online | self.offline

    @cached_property
    def for_pods(self) -> CPUSet:
        """Return the online CPUs on which pods may run."""
        return self.online - self.not_for_pods

    @cached_property
    def not_for_pods(self) -> CPUSet:
        """Return the online CPUs on which no pod may run: another's business, and never handed out."""
        return self.pods.lacks(self.online)

    @cached_property
    def core_types(self) -> Mapping[str, CPUSet]:
        """Return the CPUs by core type; `{"standard": ...}` on a machine that is not hybrid."""
        types: dict[str, CPUSet] = {}
        for cpu in self.cpus.values():
            types[cpu.type] = types.get(cpu.type, CPUSet()) | CPUSet((cpu.id,))
        return types

    @cached_property
    def groups(self) -> CPUGroups:
        """Return the topology as bit masks, for the picker."""
        return CPUGroups.of(self.cpus, self.cores)

    def whole_cores(self, cpus: CPUSet) -> CPUSet:
        """Return all threads of the cores that have a thread in `cpus`."""
        return CPUSet.union(self.cores[index] for index in {self.cpus[cpu].core for cpu in cpus})
