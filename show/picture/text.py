"""A node on a terminal: packages and NUMA nodes are frames, caches rows, physical cores cells, and devices lines.

A cell shows a core's threads and the letter of the claim that holds them, or a letter per thread if they differ. With
`_MAP_FROM` CPUs or more, a core is one character, and the row names its CPUs. Room for letters is always reserved, so
that a node has the same layout before and after.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.errors import number_of
from dranode.driver.claims.hooks import Box, Layout
from dranode.show.picture.node import NodePicture, PlacedDevice

_MAP_FROM: Final = 257
_MAX_PER_ROW: Final = 64
# If a driver has more devices than this in a box, the rest is only counted.
_MAX_LINES: Final = 12
_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
_COLORS: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
_FREE, _MANY, _MIXED = "·", "#", "+"
_ISOLATED: Final = "~"
_TAINTED: Final = "!"
# How many holders of a shared device are shown by letter; more are shown by a sign.
_SHARERS: Final = 4


def node_text(picture: NodePicture, width: int, *, marked: bool = True) -> tuple[BlockLine, ...]:
    """Draw a node with the claims that hold its CPUs and devices.

    Args:
        picture: the node.
        width: the available columns; wider cells are not cut.
        marked: whether cells have room for letters, even if nothing is held.

    Returns:
        Lines of text with rich's styles, which are not needed to understand the picture. Empty if there is nothing to
        draw.
    """
    if picture.layout is None and not picture.devices:
        return ()
    drawing = _Drawing(picture, marked=marked)
    body = min((drawing.body(width, per_row) for per_row in drawing.rows_to_try), key=lambda block: _cost(block, width))
    legend = tuple(drawing.legend(width))
    return (*drawing.heading(), (), *body.lines, *((), *legend) * bool(legend))


def _cost(block: Block, width: int) -> tuple[bool, int, int]:
    return block.width > width, len(block.lines), block.width


class _Drawing:
    """The state of drawing one picture: the letters of the holders, and the boxes with their devices."""

    def __init__(self, picture: NodePicture, *, marked: bool) -> None:
        self._layout = picture.layout or Layout("", ())
        self._cpus = self._layout.cpus
        self._picture = picture
        self._claims = picture.claims
        self._rank = {claim: rank for rank, claim in enumerate(self._claims)}
        self._holder_of = {cpu: self._rank[claim] for claim in picture.cpus for cpu in picture.cpus[claim]}
        self._is_map = len(self._cpus) >= _MAP_FROM
        self._boxes = _with_boxes_for(self._layout.boxes, picture.devices)
        rows = tuple(_rows(self._boxes))
        self._most = max((len(row.cores) for row in rows), default=1)
        cores = {core for row in rows for core in row.cores}
        self._cells = {core: self._cell(core) for core in cores}
        self._marked = marked
        self._cell_width = max((len(self._threads(core)) + (1 + len(core)) * marked for core in cores), default=0)
        self._label_width = max((len(f"{row.title} {row.cpus}") for row in rows), default=0) if self._is_map else 0
        self._name_width = max((len(_name(device)) for device in picture.devices), default=0)
        self._part_width = max((len(device.part) for device in picture.devices), default=0)
        self._has_place = {box.numa for box in _all(self._boxes)} - {None}

    @property
    def rows_to_try(self) -> Sequence[int]:
        """Return the numbers of cells per row to try: those that divide the largest row evenly."""
        return sorted({min(_MAX_PER_ROW, -(-self._most // rows)) for rows in range(1, self._most + 1)})

    def heading(self) -> Iterator[BlockLine]:
        """Yield the title of the node, its facts and warnings."""
        title = self._layout.title or _devices_alone(len(self._picture.devices))
        yield ((title, "bold"),)
        if self._layout.facts:
            yield (("; ".join(self._layout.facts), ""),)
        for warning in self._layout.warnings:
            yield (("warning: ", "yellow"), (warning, ""))

    def body(self, width: int, per_row: int) -> Block:
        """Return the frames and rows with at most `per_row` cells, and below them the devices without a NUMA node."""
        homeless = [device for device in self._picture.devices if device.numa is None]
        blocks = [self._inside(self._boxes, set(self._has_place), width, per_row)] if self._boxes else []
        if homeless:
            blocks += [Block(((("NUMA node unknown", "dim"),),)), self._devices(homeless)]
        return stack(blocks)

    def legend(self, width: int) -> Iterator[BlockLine]:
        """Yield the meaning of the letters and signs."""
        for rank, claim in enumerate(self._claims):
            cpus = self._picture.cpus.get(claim)
            devices = ", ".join(device.name for device in self._picture.devices if claim in device.holders)
            holdings = "; ".join(filter(None, (str(cpus) if cpus else "", devices)))
            yield ((self._letter(rank), _color(rank)), (f" {claim}  ", ""), (holdings, "dim"))
        free = self._cpus - CPUSet.union(self._picture.cpus.values())
        if self._claims and free:
            yield ((_FREE, ""), (" free  ", ""), (str(free), "dim"))
        if self._is_map:
            signs = f"one sign a core{f'; {_MIXED} threads of one core held differently' if self._claims else ''}"
            yield ((signs[:width], "dim"),)
        if self._layout.isolated & self._cpus:
            yield ((f"{_ISOLATED} isolated", "dim"),)
        for device in self._picture.devices:
            if device.taints:
                yield ((f"{_TAINTED} {device.name}", ""), (f" is tainted: {', '.join(device.taints)}", "dim"))

    def _inside(self, boxes: Iterable[Box], places: set[int | None], width: int, per_row: int) -> Block:
        """Return boxes side by side; `places` are the NUMA nodes whose devices are not drawn yet."""
        frames: list[tuple[str, Block]] = []
        rows: list[Block] = []
        for box in boxes:
            if not box.framed:
                rows.append(self._row(box, per_row))
                continue
            devices = [device for device in self._picture.devices if box.numa in places and device.numa == box.numa]
            places.discard(box.numa)
            content = self._inside(box.boxes, places, width - 4, per_row)
            frames.append((box.title, stack([content, self._devices(devices)])))
        return flow([*framed(frames), *([stack(rows)] if rows else [])], width)

    def _row(self, box: Box, per_row: int) -> Block:
        label = f"{box.title} {box.cpus}".strip().ljust(self._label_width) if self._is_map else box.title
        label += "  " * bool(label)
        lines: list[BlockLine] = []
        for start in range(0, len(box.cores), per_row):
            spans: list[Span] = [(label if start == 0 else " " * len(label), "dim")]
            row = box.cores[start : start + per_row]
            for position, core in enumerate(row):
                cell = self._cells[core]
                spans += cell
                if not self._is_map:
                    gap = 2 if position < len(row) - 1 else 0
                    spans.append((" " * (self._cell_width - length(cell) + gap), ""))
            lines.append(tuple(spans))
        return Block(tuple(lines))

    def _cell(self, core: CPUSet) -> tuple[Span, ...]:
        ranks = [self._holder_of.get(cpu) for cpu in core]
        same = len(set(ranks)) == 1
        style = _color(ranks[0]) if same else ""
        if self._is_map:
            return ((self._letter(ranks[0]) if same else _MIXED, style),)
        threads = self._threads(core)
        if same and ranks[0] is None:
            return ((threads, style),)
        marks = ranks[:1] if same else ranks
        return ((f"{threads} ", style), *((self._letter(rank), _color(rank)) for rank in marks))

    def _threads(self, core: CPUSet) -> str:
        isolated = self._layout.isolated
        return ",".join(f"{_ISOLATED if cpu in isolated else ''}{cpu}" for cpu in core)

    def _devices(self, devices: Iterable[PlacedDevice]) -> Block:
        by_driver: dict[str, list[PlacedDevice]] = {}
        for device in devices:
            by_driver.setdefault(device.driver, []).append(device)
        return Block(tuple(line for of_driver in by_driver.values() for line in self._device_lines(of_driver)))

    def _device_lines(self, devices: Sequence[PlacedDevice]) -> Iterator[BlockLine]:
        shown = devices if len(devices) <= _MAX_LINES else devices[: _MAX_LINES - 1]
        for device in shown:
            ranks = sorted(self._rank[claim] for claim in device.holders)
            marks = [(self._letter(rank), _color(rank)) for rank in ranks[:_SHARERS]]
            if len(ranks) > _SHARERS:
                marks[-1] = (_MANY, "")
            style = _color(ranks[0]) if len(ranks) == 1 else ""
            room = (_SHARERS if device.shared else 1) * self._marked
            missing = self._name_width - len(_name(device)) + self._marked
            part = f" {device.part.rjust(self._part_width)} " if self._part_width else ""
            yield ((_name(device), style), (" " * missing, ""), (part, ""), *marks, (" " * (room - len(marks)), ""))
        if len(shown) < len(devices):
            hidden = devices[len(shown) :]
            held = sum(bool(device.holders) for device in hidden)
            yield ((f"+{len(hidden)} of {hidden[0].driver}, {held} held", "dim"),)

    def _letter(self, rank: int | None) -> str:
        if rank is None:
            return _FREE
        return _LETTERS[rank] if rank < len(_LETTERS) else _MANY


def _devices_alone(count: int) -> str:
    return f"{number_of(count, 'device')}; CPUs are not shown, because no driver reports them"


def _name(device: PlacedDevice) -> str:
    return f"{_TAINTED if device.taints else ''}{device.name}"


def _with_boxes_for(boxes: tuple[Box, ...], devices: Iterable[PlacedDevice]) -> tuple[Box, ...]:
    """Add a box for each NUMA node that has devices but no box."""
    known = {box.numa for box in _all(boxes)}
    missing = sorted({device.numa for device in devices if device.numa is not None} - known)
    return (*boxes, *(Box(f"NUMA {numa}", CPUSet(), framed=True, numa=numa) for numa in missing))


def _all(boxes: Iterable[Box]) -> Iterator[Box]:
    for box in boxes:
        yield box
        yield from _all(box.boxes)


def _rows(boxes: Iterable[Box]) -> Iterator[Box]:
    return (box for box in _all(boxes) if box.cores)


def _color(rank: int | None) -> str:
    return "" if rank is None else f"bold {_COLORS[rank % len(_COLORS)]}"


Span: TypeAlias = tuple[str, str]  # a text and rich's style for it; "" is plain
BlockLine: TypeAlias = tuple[Span, ...]

_FRAME: Final = "dim"
_GAP: Final = 1


class Block(msgspec.Struct, frozen=True):
    """Lines of text; next to another block, each is padded to the widest."""

    lines: tuple[BlockLine, ...]

    @property
    def width(self) -> int:
        """Return the columns of the widest line."""
        return max((length(line) for line in self.lines), default=0)


def length(line: BlockLine) -> int:
    """Return the columns of a line, assuming that every character is one column wide."""
    return sum(len(text) for text, _ in line)


def stack(blocks: Iterable[Block]) -> Block:
    """Return blocks below each other."""
    return Block(tuple(line for block in blocks for line in block.lines))


def flow(blocks: Sequence[Block], width: int) -> Block:
    """Return blocks side by side, in rows of equal columns that fit the width, at least one per row."""
    widest = max((block.width for block in blocks), default=0)
    columns = max(1, (width + _GAP) // (widest + _GAP))
    rows = [blocks[start : start + columns] for start in range(0, len(blocks), columns)]
    return stack(_beside(row, widest) for row in rows)


def framed(titled: Sequence[tuple[str, Block]]) -> list[Block]:
    """Return blocks in frames of equal width, each with its title."""
    inner = max((max(block.width, len(title) + 2) for title, block in titled), default=0)
    return [_framed(title, block, inner) for title, block in titled]


def _framed(title: str, block: Block, inner: int) -> Block:
    top = (("╭─ ", _FRAME), (title, "bold"), (" " + "─" * (inner - len(title) - 1) + "╮", _FRAME))
    middle = tuple((("│ ", _FRAME), *_padded(line, inner), (" │", _FRAME)) for line in block.lines)
    return Block((top, *middle, (("╰" + "─" * (inner + 2) + "╯", _FRAME),)))


def _beside(blocks: Sequence[Block], width: int) -> Block:
    height = max(len(block.lines) for block in blocks)
    lines: list[BlockLine] = []
    for row in range(height):
        spans: list[Span] = []
        for position, block in enumerate(blocks):
            line = block.lines[row] if row < len(block.lines) else ()
            last = position == len(blocks) - 1
            spans += line if last else (*_padded(line, width), (" " * _GAP, ""))
        lines.append(tuple(spans))
    return Block(tuple(lines))


def _padded(line: BlockLine, width: int) -> BlockLine:
    missing = width - length(line)
    return (*line, (" " * missing, "")) if missing > 0 else line
