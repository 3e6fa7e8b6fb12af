"""A machine's CPUs as values: their cores, packages, L3 caches and NUMA nodes.

Terms are the kernel's (Documentation/admin-guide/cputopology.rst, Documentation/ABI/stable/sysfs-devices-system-cpu).
All values are about online CPUs, except `Topology.offline`, `isolated` and `nohz_full`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.pinning.pods_cgroup import UNLIMITED, PodsCgroup


class CPU(msgspec.Struct, frozen=True):
    """One online CPU (a hardware thread).

    Attributes:
        id: the kernel's CPU number.
        core: index into `Topology.cores`.
        core_id: the kernel's `topology/core_id`, which repeats from package to package; -1 if unknown.
        package: the key in `Topology.packages`; -1 if the kernel does not report packages.
        numa: NUMA node id, 0 on a kernel without NUMA; None if no node claims the CPU.
        l3: index into `Topology.l3`; None if the CPU has no level 3 cache.
        l3_id: the cache's `id`, a number that no other L3 cache has; -1 if the CPU has no L3.
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


# A topology as bit masks, in which the picker counts. A mask is an integer with bit n set for CPU n. Groups of one kind
# are in ascending order of their ids, which is the order that breaks ties, so an index is also a rank. CPUs for which
# the kernel reports no NUMA node, package or L3 cache form one group, which comes first, as if its id were -1:
# dra-driver-cpu treats them in this way.

# The part of one group that lies inside another: the group's index, and the mask of the CPUs in both.
GroupPart = tuple[int, int]


class CPUGroups(msgspec.Struct, frozen=True):
    """The masks of every kind of group, and how the groups contain one another.

    Where a group lists groups of another kind (`packages_of_numa`, ...), each is an index into that kind's masks and
    the mask of the CPUs in both.

    Attributes:
        numa: NUMA nodes, by node id.
        packages: packages (sockets), by package id.
        l3: L3 caches, by the kernel's cache id, then by first CPU.
        cores: physical cores, by core id where core ids are unique on the machine, else by package and core id.
        without_l3: CPUs that have no L3 cache; if there are any, they are also one of the groups in `l3`.
        numa_on_top: whether NUMA nodes contain packages, rather than packages NUMA nodes.
        threads_per_core: CPUs by cores, rounded down; 1 on most hybrid machines.
        cpus_per_l3: CPUs by L3 caches, rounded down; 0 without L3 caches.
        smallest_core: CPUs of the smallest core.
        packages_of_numa: for every NUMA node, the packages that reach into it.
        numa_of_package: for every package, the NUMA nodes that reach into it.
        l3_of_numa: for every NUMA node, the L3 caches that reach into it.
        cores_of_numa: for every NUMA node, the masks of its cores.
        cores_of_package: for every package, the masks of its cores.
        cores_of_l3: for every L3 cache, the masks of its cores.
    """

    numa: tuple[int, ...]
    packages: tuple[int, ...]
    l3: tuple[int, ...]
    cores: tuple[int, ...]
    without_l3: int
    numa_on_top: bool
    threads_per_core: int
    cpus_per_l3: int
    smallest_core: int
    packages_of_numa: tuple[tuple[GroupPart, ...], ...]
    numa_of_package: tuple[tuple[GroupPart, ...], ...]
    l3_of_numa: tuple[tuple[GroupPart, ...], ...]
    cores_of_numa: tuple[tuple[int, ...], ...]
    cores_of_package: tuple[tuple[int, ...], ...]
    cores_of_l3: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, by_id: Mapping[int, CPU], physical_cores: tuple[CPUSet, ...]) -> CPUGroups:
        """Return the groups of a topology's online CPUs and physical cores; `Topology.groups` keeps them.

        Args:
            by_id: the online CPUs, by the kernel's number.
            physical_cores: the online CPUs of each physical core.
        """
        cpus = by_id.values()
        numa = _masks(cpus, lambda cpu: (-1 if cpu.numa is None else cpu.numa,))
        packages = _masks(cpus, lambda cpu: (cpu.package,))
        l3 = _masks(cpus, lambda cpu: (-1, -1) if cpu.l3 is None else (cpu.l3_id, cpu.l3))
        cores = _cores(by_id, physical_cores)
        known_l3 = len({cpu.l3 for cpu in cpus} - {None})
        numa_nodes = len({cpu.numa for cpu in cpus} - {None})
        return cls(
            numa=numa,
            packages=packages,
            l3=l3,
            cores=cores,
            without_l3=sum(1 << cpu.id for cpu in cpus if cpu.l3 is None),
            numa_on_top=len(packages) >= numa_nodes,
            threads_per_core=max(1, len(cpus) // len(cores)) if cores else 1,
            cpus_per_l3=len(cpus) // known_l3 if known_l3 else 0,
            smallest_core=min(map(int.bit_count, cores), default=1),
            packages_of_numa=_parts(packages, numa),
            numa_of_package=_parts(numa, packages),
            l3_of_numa=_parts(l3, numa),
            cores_of_numa=_members(cores, numa),
            cores_of_package=_members(cores, packages),
            cores_of_l3=_members(cores, l3),
        )


def _masks(cpus: Collection[CPU], identity: Callable[[CPU], tuple[int, ...]]) -> tuple[int, ...]:
    """Return a mask for each value of `identity`, with the CPUs that have it, in ascending order of the values."""
    masks: dict[tuple[int, ...], int] = {}
    for cpu in cpus:
        key = identity(cpu)
        masks[key] = masks.get(key, 0) | 1 << cpu.id
    return tuple(mask for _, mask in sorted(masks.items()))


def _cores(by_id: Mapping[int, CPU], physical_cores: tuple[CPUSet, ...]) -> tuple[int, ...]:
    """Return the masks of the cores. Core ids only order them: they do not say which CPUs form a core."""
    firsts = [by_id[core.first()] for core in physical_cores]
    # On most servers core ids repeat from package to package. The cores are then ordered by package first.
    unique = len({cpu.core_id for cpu in firsts}) == len(firsts)
    firsts.sort(key=lambda cpu: (0 if unique else cpu.package, cpu.core_id, cpu.core))
    return tuple(physical_cores[cpu.core].mask for cpu in firsts)


def _parts(groups: tuple[int, ...], places: tuple[int, ...]) -> tuple[tuple[GroupPart, ...], ...]:
    return tuple(tuple((index, mask & place) for index, mask in enumerate(groups) if mask & place) for place in places)


def _members(groups: tuple[int, ...], places: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(mask for mask in groups if mask & place) for place in places)


class Topology(msgspec.Struct, frozen=True, dict=True):
    """A machine's CPUs and their cores, packages, caches and NUMA nodes. All lists are sorted by first CPU.

    Attributes:
        cpus: online CPUs by id.
        offline: present CPUs that are not online.
        isolated: CPUs kept from the scheduler's load balancing (`isolcpus=`), online or not.
        nohz_full: CPUs whose timer stops while one task runs alone (`nohz_full=`), online or not.
        smt: whether simultaneous multithreading is on.
        cores: the online threads of every physical core.
        core_numbers: the number in a core's name, for the online threads of cores that are not named after the first.
        packages: the CPUs of every package, by `physical_package_id`, or a free number where that is missing or taken.
        l3: the CPUs of every L3 cache.
        numa: the CPUs of every NUMA node that has any, by node id; node 0 alone on a kernel without NUMA.
        memory_nodes: NUMA nodes with memory; empty if the kernel does not report them.
        pods: the CPUs and NUMA nodes that the cgroup of all pods has.
        warnings: one sentence for each kind of contradiction in the machine's files.
    """

    cpus: Mapping[int, CPU]
    offline: CPUSet = msgspec.field(default_factory=CPUSet)
    isolated: CPUSet = msgspec.field(default_factory=CPUSet)
    nohz_full: CPUSet = msgspec.field(default_factory=CPUSet)
    smt: bool = False
    cores: tuple[CPUSet, ...] = ()
    core_numbers: Mapping[int, int] = msgspec.field(default_factory=dict)
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
        """Return the online CPUs on which no pod may run. They are never given to a claim."""
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

    def with_core_numbers(self, known: dict[int, int]) -> Topology:
        """Return the topology with cores that keep their names when threads go offline or come back.

        For an offline CPU the kernel does not report a core, so `known` keeps the number of each CPU's core.
        """
        numbers: dict[int, int] = {}
        for core in self.cores:
            used = set(numbers.values())
            before = (known[cpu] for cpu in core if cpu in known)
            number = next((number for number in before if number not in used), core.first())
            numbers |= dict.fromkeys(core, number)
        known |= numbers
        others = {cpu: number for cpu, number in numbers.items() if number != self.cores[self.cpus[cpu].core].first()}
        return msgspec.structs.replace(self, core_numbers=others)

    def whole_cores(self, cpus: CPUSet) -> CPUSet:
        """Return all threads of the cores that have a thread in `cpus`."""
        return CPUSet.union(self.cores[index] for index in {self.cpus[cpu].core for cpu in cpus})
