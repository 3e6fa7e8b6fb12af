"""Handmade topologies: one line for each CPU."""

from collections.abc import Callable, Iterable

from dranode.api.cpuset import CPUSet
from dranode.cpu.topology import CPU, Topology

# core id, package, NUMA node (None: unknown), L3 cache id (None: no L3)
Place = tuple[int, int, int | None, int | None]


def topology(places: dict[int, Place]) -> Topology:
    """A machine with online CPU n at `places[n]`; equal core ids of a package mean one core, equal cache ids one L3."""
    cores = _sets(places, lambda place: place[:2])
    caches = _sets({cpu: place for cpu, place in places.items() if place[3] is not None}, lambda place: place[3])
    return Topology(
        cpus={
            cpu: CPU(
                id=cpu,
                core=_index(cores, cpu),
                core_id=core,
                package=package,
                numa=numa,
                l3=None if l3 is None else _index(caches, cpu),
                l3_id=-1 if l3 is None else l3,
            )
            for cpu, (core, package, numa, l3) in sorted(places.items())
        },
        smt=len(cores) < len(places),
        cores=cores,
        packages={places[cpus.first()][1]: cpus for cpus in _sets(places, lambda place: place[1])},
        l3=caches,
        numa={
            node: CPUSet(cpu for cpu, place in places.items() if place[2] == node)
            for node in sorted({place[2] for place in places.values() if place[2] is not None})
        },
    )


def regular(sockets: int, numa: int, l3: int, cores: int, threads: int) -> Topology:
    """A machine of equal parts, each number per parent, with CPUs numbered as on most servers."""
    total = sockets * numa * l3 * cores
    return topology(
        {
            cpu: (cpu % total, cpu % total // (numa * l3 * cores), cpu % total // (l3 * cores), cpu % total // cores)
            for cpu in range(total * threads)
        }
    )


def _sets(places: dict[int, Place], key: Callable[[Place], object]) -> tuple[CPUSet, ...]:
    found: dict[object, list[int]] = {}
    for cpu, place in sorted(places.items()):
        found.setdefault(key(place), []).append(cpu)
    return tuple(map(CPUSet, found.values()))


def _index(sets: Iterable[CPUSet], cpu: int) -> int:
    return next(index for index, cpus in enumerate(sets) if cpu in cpus)
