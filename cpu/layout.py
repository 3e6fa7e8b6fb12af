"""Describes how a machine's packages, NUMA nodes, L3 caches and core types contain one another.

Machines differ in the order: an L3 cache may span several NUMA nodes, and a NUMA node several packages.
"""

from collections.abc import Iterator, Sequence

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.cpu.topology import Topology
from dranode.driver.claims.hooks import Box, Layout


class _Group(msgspec.Struct, frozen=True):
    title: str
    cpus: CPUSet
    framed: bool = False
    numa: int | None = None


_Kinds = Sequence[tuple[_Group, ...]]


def cpu_layout(topology: Topology) -> Layout:
    """Return the machine's boxes, title and facts."""
    return Layout(
        title=_title(topology),
        boxes=_Nesting(topology).inside(topology.online, _kinds(topology)),
        facts=tuple(_facts(topology)),
        isolated=topology.isolated,
        warnings=topology.warnings,
    )


def _title(topology: Topology) -> str:
    sizes = sorted({len(core) for core in topology.cores})
    threads = f" of {' or '.join(map(str, sizes))} threads" if sizes[-1] > 1 else ""
    counts = (
        _count(len(topology.cpus), "CPU"),
        _count(len(topology.cores), "core") + threads,
        _count(len(topology.packages), "package"),
        _count(len(topology.numa), "NUMA node"),
        _count(len(topology.l3), "L3 cache"),
    )
    return f"{', '.join(counts)}; SMT {'on' if topology.smt else 'off'}"


def _facts(topology: Topology) -> Iterator[str]:
    memory_only = CPUSet(topology.memory_nodes - set(topology.numa))
    types = topology.core_types if len(topology.core_types) > 1 else {}
    facts = (
        ("offline", topology.offline),
        ("not for pods", topology.not_for_pods),
        ("isolated", topology.isolated),
        ("nohz_full", topology.nohz_full),
        ("NUMA nodes with memory only:", memory_only),
        *types.items(),
    )
    yield from (f"{name} {cpus}" for name, cpus in facts if cpus)


def _kinds(topology: Topology) -> _Kinds:
    """Return the kinds of groups, the kind with the largest groups first; core types come last."""
    packages = tuple(_Group(f"package {number}", cpus, framed=True) for number, cpus in topology.packages.items())
    numa = tuple(_Group(f"NUMA {number}", cpus, framed=True, numa=number) for number, cpus in topology.numa.items())
    l3 = tuple(_Group("L3", cpus) for cpus in topology.l3)
    types = topology.core_types
    by_type = tuple(_Group(name, cpus) for name, cpus in types.items()) if len(types) > 1 else ()
    sized = sorted((kind for kind in (packages, numa, l3) if kind), key=_mean_size, reverse=True)
    return (*sized, by_type) if by_type else tuple(sized)


class _Nesting:
    """Nests the groups of one machine."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def inside(self, cpus: CPUSet, kinds: _Kinds) -> tuple[Box, ...]:
        """Return the boxes of these CPUs, nested by groups of these kinds."""
        if not kinds:
            return (self._row("", cpus),)
        here, *below = kinds
        parts = [(group, group.cpus & cpus) for group in here if not group.cpus.isdisjoint(cpus)]
        rest = cpus - CPUSet.union(part for _, part in parts)
        if not here[0].framed and not any(kind[0].framed for kind in below):
            rows = [row for group, part in parts for row in self._rows(group.title, part, below)]
            return (*rows, *(self._rows("", rest, below) if rest else ()))
        frames = tuple(self._frame(group, part, below) for group, part in parts)
        return (*frames, *(self.inside(rest, below) if rest else ()))

    def _frame(self, group: _Group, cpus: CPUSet, below: _Kinds) -> Box:
        title = group.title if cpus == group.cpus else f"part of {group.title}"
        numa = group.numa
        # A group with the same CPUs as a group inside it shares its frame.
        while below and below[0][0].framed:
            same = next((inner for inner in below[0] if inner.cpus == cpus), None)
            if same is None:
                break
            title, numa, below = f"{title}, {same.title}", same.numa if numa is None else numa, below[1:]
        return Box(title, cpus, framed=True, numa=numa, boxes=self.inside(cpus, below))

    def _rows(self, title: str, cpus: CPUSet, below: _Kinds) -> Iterator[Box]:
        parts = [(group.title, group.cpus & cpus) for kind in below for group in kind] or [("", cpus)]
        for label, part in parts:
            if part:
                yield self._row(" ".join(filter(None, (title, label))), part)

    def _row(self, title: str, cpus: CPUSet) -> Box:
        topology = self._topology
        indexes = dict.fromkeys(topology.cpus[cpu].core for cpu in cpus)
        return Box(title, cpus, cores=tuple(topology.cores[index] for index in indexes))


def _mean_size(kind: tuple[_Group, ...]) -> float:
    return sum(len(group.cpus) for group in kind) / len(kind)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
