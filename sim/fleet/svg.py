"""A picture of a fleet: one square a node, filled as far as it is used; what is stranded stands out.

A node with several units (CPUs and GPUs) has a column for each. Below stands how often each alternative was taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

from dranode.sim.fleet.report import FleetReport, NodeReport, add_units

_CELL: Final = 16
_GAP: Final = 3
_COLUMNS: Final = 50
_MARGIN: Final = 24
_WIDTH: Final = 2 * _MARGIN + _COLUMNS * (_CELL + _GAP)
_LINE: Final = 20
_BAR: Final = 420
_LABEL: Final = 220

# Told apart by lightness alone too, so that it reads in grey and for the colour-blind.
_USED: Final = "#1f4e79"
_FREE: Final = "#dbe7f3"
_STRANDED: Final = "#e07b00"
_NONE: Final = "#b00020"
_TEXT: Final = "#222222"


def fleet_svg(report: FleetReport) -> str:
    """The picture as the text of an SVG file."""
    drawing = _Drawing()
    drawing.text("Fleet", size=18, bold=True)
    placed = sum(placement.node is not None for placement in report.placements)
    drawing.text(f"{placed} of {len(report.placements)} pods placed on {len(report.nodes)} nodes")
    drawing.legend((("used", _USED), ("free", _FREE), ("stranded: free, but no claim of the run fits", _STRANDED)))
    for machine, nodes in _by_machine(report.nodes).items():
        drawing.space()
        drawing.text(f"{len(nodes)} x {machine}", bold=True)
        for name, unit in add_units(nodes).items():
            used = unit.total - unit.free
            share = float(100 * used / unit.total) if unit.total else 0.0
            drawing.text(
                f"{name}: {_amount(used)} of {_amount(unit.total)} used ({share:.0f} %), "
                f"{_amount(unit.stranded)} stranded"
            )
        drawing.nodes(nodes)
    for request, counts in report.alternatives.items():
        drawing.space()
        drawing.text(f"request {request}: alternatives taken", bold=True)
        drawing.bars({name or "none fits": (count, _USED if name else _NONE) for name, count in counts.items()})
    return drawing.finish()


class _Drawing:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = _MARGIN

    def text(self, text: str, *, size: int = 13, bold: bool = False) -> None:
        self.y += _LINE
        self.write(_MARGIN, self.y - 5, text, size=size, bold=bold)

    def write(self, x: float, y: float, text: str, *, size: int = 13, bold: bool = False) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}"{weight}>{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}"/>')

    def space(self) -> None:
        self.y += _LINE // 2

    def legend(self, entries: tuple[tuple[str, str], ...]) -> None:
        x = float(_MARGIN)
        for text, colour in entries:
            self.box(x, self.y + 5, 12, 12, colour)
            self.write(x + 18, self.y + 15, text)
            x += 40 + 7.0 * len(text)
        self.y += _LINE

    def nodes(self, nodes: list[NodeReport]) -> None:
        self.y += _GAP
        for number, node in enumerate(nodes):
            row, column = divmod(number, _COLUMNS)
            self.node(_MARGIN + column * (_CELL + _GAP), self.y + row * (_CELL + _GAP), node)
        self.y += (-(-len(nodes) // _COLUMNS)) * (_CELL + _GAP)

    def node(self, x: float, y: float, node: NodeReport) -> None:
        tip = "; ".join(
            f"{name}: {_amount(unit.free)} of {_amount(unit.total)} free" for name, unit in node.units.items()
        )
        self.parts.append(f"<g><title>{escape(f'{node.name}: {tip}')}</title>")
        self.box(x, y, _CELL, _CELL, _FREE)
        width = _CELL / max(len(node.units), 1)
        for number, unit in enumerate(node.units.values()):
            used = float((unit.total - unit.free) / unit.total) * _CELL if unit.total else 0.0
            stranded = float(unit.stranded / unit.total) * _CELL if unit.total else 0.0
            left = x + number * width
            inner = width - (1 if len(node.units) > 1 else 0)
            if used:
                self.box(left, y + _CELL - used, inner, used, _USED)
            if stranded:
                self.box(left, y + _CELL - used - stranded, inner, stranded, _STRANDED)
        self.parts.append("</g>")

    def bars(self, counts: Mapping[str, tuple[int, str]]) -> None:
        most = max((count for count, _ in counts.values()), default=0) or 1
        for name, (count, colour) in counts.items():
            self.write(_MARGIN, self.y + 15, name)
            self.box(_MARGIN + _LABEL, self.y + 4, _BAR * count / most, 13, colour)
            self.write(_MARGIN + _LABEL + _BAR * count / most + 6, self.y + 15, str(count))
            self.y += _LINE

    def finish(self) -> str:
        height = self.y + _MARGIN
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" fill="{_TEXT}">'
        )
        return "\n".join(
            (head, f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>', *self.parts, "</svg>", "")
        )


def _by_machine(nodes: tuple[NodeReport, ...]) -> dict[str, list[NodeReport]]:
    grouped: dict[str, list[NodeReport]] = {}
    for node in nodes:
        grouped.setdefault(node.machine, []).append(node)
    return grouped


def _amount(amount: object) -> str:
    return f"{float(amount):g}" if not isinstance(amount, int) else str(amount)  # type: ignore[arg-type] # a Fraction
