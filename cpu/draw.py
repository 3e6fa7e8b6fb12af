"""A machine's CPUs as a picture: packages and NUMA nodes as frames, L3 caches as rows, physical cores as cells.

A cell lists a core's threads and the letter of the claim that holds them; with a letter a thread where they differ.
From `_MAP_FROM` CPUs on a core is one character and the row says which CPUs it shows.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dranode.cpu.blocks import Block, BlockLine, Span, flow, framed, stack
from dranode.cpu.topology import Topology
from dranode.driver.core.api.cpuset import CPUSet

_MAP_FROM: Final = 257
_MAX_PER_ROW: Final = 64
_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
_COLOURS: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
_FREE, _MANY, _MIXED = "·", "#", "+"
_ISOLATED: Final = "~"


@dataclass(frozen=True, slots=True)
class _Group:
    kind: str
    title: str
    cpus: CPUSet


def picture(topology: Topology, holders: Mapping[str, CPUSet], width: int) -> tuple[BlockLine, ...]:
    """Draw the machine and who holds which CPU.

    Args:
        topology: the machine.
        holders: what each claim holds, by `<namespace>/<claim>`.
        width: columns to draw in; a cell that is wider than that is not cut.

    Returns:
        Lines of text with styles in rich's words; without the styles the picture says the same.
    """
    drawing = _Drawing(topology, holders)
    body = min((drawing.body(width, per_row) for per_row in drawing.rows_to_try), key=lambda block: _cost(block, width))
    legend = tuple(drawing.legend(width))
    return (*drawing.heading(), (), *body.lines, *((), *legend) * bool(legend))


def _cost(block: Block, width: int) -> tuple[bool, int, int]:
    return block.width > width, len(block.lines), block.width


class _Drawing:
    """One picture being made: the letters of the holders and the order in which groups lie in each other."""

    def __init__(self, topology: Topology, holders: Mapping[str, CPUSet]) -> None:
        self._topology = topology
        self._holders = dict(sorted(holders.items(), key=lambda item: (item[1].mask & -item[1].mask, item[0])))
        self._holder_of = {cpu: rank for rank, cpus in enumerate(self._holders.values()) for cpu in cpus}
        self._is_map = len(topology.cpus) >= _MAP_FROM
        self._cells = {core: self._cell(core) for core in topology.cores}
        self._cell_width = max((sum(len(text) for text, _ in cell) for cell in self._cells.values()), default=0)

    @cached_property
    def _label_width(self) -> int:
        return max((len(f"L3 {cpus}") for cpus in self._topology.l3), default=0)

    @property
    def rows_to_try(self) -> Sequence[int]:
        """How many cells a row could have: the numbers that divide the largest group into so many rows."""
        most = max(len(self._cores(group)) for group in self._topology.l3 or (self._topology.online,))
        return sorted({min(_MAX_PER_ROW, -(-most // rows)) for rows in range(1, most + 1)})

    def heading(self) -> Iterator[BlockLine]:
        """What the machine is, in two lines at most, and what is odd about it."""
        topology = self._topology
        sizes = sorted({len(core) for core in topology.cores})
        threads = f" of {' or '.join(map(str, sizes))} threads" if sizes[-1] > 1 else ""
        counts = (
            _count(len(topology.cpus), "CPU"),
            _count(len(topology.cores), "core") + threads,
            _count(len(topology.packages), "package"),
            _count(len(topology.numa), "NUMA node"),
            _count(len(topology.l3), "L3 cache"),
        )
        yield ((", ".join(counts), "bold"), (f"; SMT {'on' if topology.smt else 'off'}", ""))
        memory_only = CPUSet(topology.memory_nodes - set(topology.numa))
        facts = (
            ("offline", topology.offline),
            ("isolated", topology.isolated),
            ("NUMA nodes with memory alone", memory_only),
            *((name, cpus) for name, cpus in topology.core_types.items() if len(topology.core_types) > 1),
        )
        told = "; ".join(f"{name} {cpus}" for name, cpus in facts if cpus)
        if told:
            yield ((told, ""),)
        for warning in topology.warnings:
            yield (("warning: ", "yellow"), (warning, ""))

    def body(self, width: int, per_row: int) -> Block:
        """The frames and rows, with so many cells a row at most."""
        return self._inside(self._topology.online, self._kinds, width, per_row)

    def legend(self, width: int) -> Iterator[BlockLine]:
        """What the letters and signs mean."""
        for rank, (claim, cpus) in enumerate(self._holders.items()):
            yield ((self._letter(rank), _colour(rank)), (f" {claim}  ", ""), (str(cpus), "dim"))
        free = self._topology.online - CPUSet.union(self._holders.values())
        if self._holders:
            yield ((_FREE, ""), (" free  ", ""), (str(free), "dim"))
        if self._is_map:
            signs = f"one sign a core{f'; {_MIXED} threads of one core held differently' if self._holders else ''}"
            yield ((signs[:width], "dim"),)
        if self._topology.isolated & self._topology.online:
            yield ((f"{_ISOLATED} isolated", "dim"),)

    @cached_property
    def _kinds(self) -> tuple[tuple[_Group, ...], ...]:
        """The kinds of groups, the one with the largest first; rows of cells come last."""
        topology = self._topology
        packages = tuple(_Group("frame", f"package {number}", cpus) for number, cpus in topology.packages.items())
        numa = tuple(_Group("frame", f"NUMA {number}", cpus) for number, cpus in topology.numa.items())
        l3 = tuple(_Group("row", "L3", cpus) for cpus in topology.l3)
        types = topology.core_types
        by_type = tuple(_Group("row", name, cpus) for name, cpus in types.items()) if len(types) > 1 else ()
        sized = sorted((kind for kind in (packages, numa, l3) if kind), key=_mean_size, reverse=True)
        return (*sized, by_type) if by_type else tuple(sized)

    def _inside(self, cpus: CPUSet, kinds: Sequence[tuple[_Group, ...]], width: int, per_row: int) -> Block:
        if not kinds:
            return self._row("", cpus, per_row)
        here, *below = kinds
        parts = [(group, group.cpus & cpus) for group in here if not group.cpus.isdisjoint(cpus)]
        rest = cpus - CPUSet.union(part for _, part in parts)
        blocks: list[Block] = []
        if all(group.kind == "row" for group in here) and not any(kind[0].kind == "frame" for kind in below):
            for group, part in parts:
                blocks += self._rows(group.title, part, below, per_row)
            if rest:
                blocks += self._rows("", rest, below, per_row)
            return stack(blocks)
        titled = [
            self._content(group.title if part == group.cpus else f"part of {group.title}", part, below, width, per_row)
            for group, part in parts
        ]
        blocks = framed(titled)
        if rest:
            blocks.append(self._inside(rest, below, width, per_row))
        return flow(blocks, width)

    def _content(
        self, title: str, cpus: CPUSet, below: Sequence[tuple[_Group, ...]], width: int, per_row: int
    ) -> tuple[str, Block]:
        # A group that is the same CPUs as the one inside it shares its frame.
        while below and below[0][0].kind == "frame":
            same = [group for group in below[0] if group.cpus == cpus]
            if not same:
                break
            title, below = f"{title}, {same[0].title}", below[1:]
        return title, self._inside(cpus, below, width - 4, per_row)

    def _rows(self, title: str, cpus: CPUSet, below: Sequence[tuple[_Group, ...]], per_row: int) -> Iterator[Block]:
        parts = [(group.title, group.cpus & cpus) for kind in below for group in kind] or [("", cpus)]
        for label, part in parts:
            if part:
                yield self._row(" ".join(filter(None, (title, label))), part, per_row)

    def _row(self, title: str, cpus: CPUSet, per_row: int) -> Block:
        label = f"{title} {cpus}".strip().ljust(self._label_width) if self._is_map else title
        label += "  " * bool(label)
        cores = self._cores(cpus)
        lines: list[BlockLine] = []
        for start in range(0, len(cores), per_row):
            spans: list[Span] = [(label if start == 0 else " " * len(label), "dim")]
            row = cores[start : start + per_row]
            for position, core in enumerate(row):
                cell = self._cells[core]
                spans += cell
                if not self._is_map and position < len(row) - 1:
                    spans.append((" " * (self._cell_width - sum(len(text) for text, _ in cell) + 2), ""))
            lines.append(tuple(spans))
        return Block(tuple(lines))

    def _cores(self, cpus: CPUSet) -> list[CPUSet]:
        topology = self._topology
        return [topology.cores[index] for index in dict.fromkeys(topology.cpus[cpu].core for cpu in cpus)]

    def _cell(self, core: CPUSet) -> tuple[Span, ...]:
        ranks = [self._holder_of.get(cpu) for cpu in core]
        same = len(set(ranks)) == 1
        style = _colour(ranks[0]) if same else ""
        if self._is_map:
            return ((self._letter(ranks[0]) if same else _MIXED, style),)
        isolated = self._topology.isolated
        threads = ",".join(f"{_ISOLATED if cpu in isolated else ''}{cpu}" for cpu in core)
        if not self._holders or (same and ranks[0] is None):
            return ((threads, style),)
        marks = ranks[:1] if same else ranks
        return ((f"{threads} ", style), *((self._letter(rank), _colour(rank)) for rank in marks))

    def _letter(self, rank: int | None) -> str:
        if rank is None:
            return _FREE
        return _LETTERS[rank] if rank < len(_LETTERS) else _MANY


def _colour(rank: int | None) -> str:
    return "" if rank is None else f"bold {_COLOURS[rank % len(_COLOURS)]}"


def _mean_size(kind: tuple[_Group, ...]) -> float:
    return sum(len(group.cpus) for group in kind) / len(kind)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
