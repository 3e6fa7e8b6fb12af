"""A fleet or a node as an SVG picture: the content of the page, with every name in the picture.

Boxes, devices and cores have fixed places, so that two moments side by side have the same layout. States are never
distinguished by color alone: held is filled, tainted is striped, blocked is dotted, and holders have letters next to
their names.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Final

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.hooks import Box
from dranode.show.picture.devices import Tally
from dranode.show.picture.fleet import (
    CPUS,
    DeviceKey,
    DeviceShare,
    FleetClaim,
    FleetDevice,
    FleetMoment,
    FleetNode,
    FleetPicture,
)

_WIDTH: Final = 1180.0
_MARGIN: Final = 20.0
# Sentences are wrapped at this width or more.
_LEAST: Final = 560.0
_DEVICE: Final = 230.0
_COLORS: Final = ("#20558f", "#a14d00", "#00735c", "#8a3a78", "#6b5d00", "#46515e")
_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
_FRAME: Final = 'fill="#ffffff" stroke="#7d8894"'
_OUTER: Final = 'fill="#f6f7f9" stroke="#cdd4dc"'
_MUTED: Final = 'fill="#566170"'
_STRIPES: Final = (
    '<defs><pattern id="tainted" width="6" height="6" patternTransform="rotate(45)" patternUnits="userSpaceOnUse">'
    '<rect width="3" height="6" fill="#b4430a"/></pattern></defs>'
)


def fleet_svg(picture: FleetPicture) -> str:
    """Return the picture as the text of an SVG file."""
    count = len(picture.moments)
    width = _WIDTH if count == 1 else (_WIDTH * 1.3 - 20) / count
    panes = []
    for moment in picture.moments:
        title = [line_of(moment.title, size=15, style='font-weight="bold"')] if count > 1 else []
        nodes = [_NodeDrawing(node, picture.moments, moment).piece(width) for node in picture.nodes]
        panes.append(stacked([*title, flowing(nodes, width, 12)], 8))
    head = [line_of(picture.title, size=18, style='font-weight="bold"')]
    if picture.taken:
        head.append(line_of(f"seen {picture.taken}", style=_MUTED))
    # Moments are side by side only if there is room; in half of the width they would be unreadable.
    drawn = flowing(panes, _WIDTH, 20)
    waiting = [f"{pod.name} waits: {reason}" for pod in picture.waiting for reason in pod.reasons[:1]]
    sentences = (*waiting, *picture.facts, *picture.notes)
    texts = [wrapped(sentence, max(drawn.width, _LEAST), _MUTED) for sentence in sentences]
    drawing = stacked([*head, _legend(), drawn, *texts], 8)
    wide, high = drawing.width + 2 * _MARGIN, drawing.height + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:g}" height="{high:g}" viewBox="0 0 {wide:g} {high:g}" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" fill="#191c20">{_STRIPES}'
        f'<rect width="{wide:g}" height="{high:g}" fill="#ffffff"/>{drawing.at(_MARGIN, _MARGIN)}</svg>\n'
    )


def _legend() -> Piece:
    samples = (
        ("free", rectangle(14, 14, _FRAME)),
        ("held", rectangle(14, 14, f'fill="{_COLORS[0]}"')),
        ("held in part", rectangle(14, 14, _FRAME) + rectangle(14, 7, f'fill="{_COLORS[0]}"', 0, 7)),
        ("tainted", rectangle(14, 14, 'fill="url(#tainted)" stroke="#b4430a"')),
        ("blocked: what it draws on is held", rectangle(14, 14, 'fill="none" stroke="#7d8894" stroke-dasharray="2 3"')),
    )
    return beside(
        [Piece(22 + CHARACTER * 12 * len(words), 18, sign + text_at(words, 20, 12)) for words, sign in samples], 12
    )


class _NodeDrawing:
    """One node at one moment; claims have the same letters at all moments."""

    def __init__(self, node: FleetNode, moments: Iterable[FleetMoment], moment: FleetMoment) -> None:
        moments = tuple(moments)
        self._node = node
        self._moment = moment
        self._ever_fragmented = any(node.name in other.fragmented for other in moments)
        keys = {device.key for device in node.devices}
        self._shares: dict[DeviceKey, list[tuple[FleetClaim, DeviceShare]]] = {}
        for claim in moment.claims:
            for share in claim.shares:
                if share.device in keys and not share.admin:
                    self._shares.setdefault(share.device, []).append((claim, share))
        names = sorted({claim.name for other in moments for claim in other.claims if _is_on(claim, node, keys)})
        self._rank = {name: rank for rank, name in enumerate(names)}
        self._cpus = {
            claim.name: CPUSet.parse(claim.cpus[node.name]) for claim in moment.claims if node.name in claim.cpus
        }
        self._holder = {cpu: name for name, cpus in self._cpus.items() for cpu in cpus}
        boxes = node.layout.boxes if node.layout is not None else ()
        cores = [core for box in boxes for core in _cores(box)]
        self._core_width = (
            max((CHARACTER * 11 * (len(_threads(core)) + 1 + len(core)) for core in cores), default=0) + 8
        )

    def piece(self, width: float) -> Piece:
        """Return the node in its frame."""
        node = self._node
        facts = [node.layout.title, *node.layout.facts] if node.layout is not None else []
        facts += node.remarks
        if self._ever_fragmented:  # every moment reserves the line, so that the layouts match
            pieces = ", ".join(self._moment.fragmented.get(node.name, ()))
            facts.append(f"fragmented: {pieces}" if pieces else "")
        lines = [line_of(shortened(fact, width - 40), style=_MUTED) for fact in facts]
        boxes = node.layout.boxes if node.layout is not None else ()
        by_numa: dict[int | None, list[FleetDevice]] = {}
        for device in node.devices:
            by_numa.setdefault(device.numa, []).append(device)
        drawn = self._boxes(boxes, by_numa, width - 30)
        for numa in sorted(by_numa, key=lambda number: (number is None, number or 0)):
            title = "NUMA node unknown" if numa is None else f"NUMA {numa}"
            drawn.append(framed_piece(title, self._devices(by_numa[numa]), _FRAME))
        if not drawn:
            drawn = [line_of("publishes no devices", style=_MUTED)]
        legend = [self._key(name, rank) for name, rank in self._rank.items()]
        title = node.name or "reached from several nodes"
        return framed_piece(title, stacked([*lines, flowing(drawn, width - 16), *legend]), _OUTER)

    def _boxes(self, boxes: Iterable[Box], by_numa: dict[int | None, list[FleetDevice]], width: float) -> list[Piece]:
        pieces: list[Piece] = []
        for box in boxes:
            if not box.framed:
                pieces.append(self._row(box, width))
                continue
            inner = self._boxes(box.boxes, by_numa, width - 16)
            arrange = flowing(inner, width - 16) if any(inner_box.framed for inner_box in box.boxes) else stacked(inner)
            devices = by_numa.pop(box.numa, []) if box.numa is not None else []
            pieces.append(
                framed_piece(box.title, stacked([arrange, *([self._devices(devices)] if devices else [])]), _FRAME)
            )
        return pieces

    def _row(self, box: Box, width: float) -> Piece:
        cells = [self._core(core) for core in box.cores]
        label = line_of(box.title.ljust(2), size=11, style=_MUTED)
        # About as many columns as rows, so a cache with 8 cores has 3 rows instead of a line across the page.
        columns = max(1, round(len(cells) ** 0.5))
        room = min(width - label.width - 8, columns * (self._core_width + 3))
        return beside([label, flowing(cells, room, 3)], 6)

    def _core(self, core: CPUSet) -> Piece:
        threads = _threads(core)
        holders = [self._holder.get(cpu) for cpu in core]
        same = len(set(holders)) == 1 and holders[0] is not None
        marks = "".join(self._letter(name) for name in (holders[:1] if same else holders)) if any(holders) else ""
        width = self._core_width
        color = self._color(holders[0]) if same else ""
        style = f'fill="{color}" stroke="{color}"' if same else _FRAME
        unknown = "?" if CPUS in self._moment.unknown else ""
        words = f"{threads} {marks or unknown}".strip()
        return Piece(
            width, 18, rectangle(width, 18, style) + text_at(words, 4, 13, size=11, style='fill="#ffffff"' * same)
        )

    def _devices(self, devices: Iterable[FleetDevice]) -> Piece:
        return stacked([self._device(device) for device in devices], 3)

    def _device(self, device: FleetDevice) -> Piece:
        holding = self._shares.get(device.key, [])
        dashes = ' stroke-dasharray="2 3"' if device.key in self._moment.blocked or not device.published else ""
        parts = [rectangle(_DEVICE, 36, f"{_FRAME}{dashes}")]
        y = 36.0
        for claim, share in holding:
            part = max(4.0, 36 * _fraction(device, share, len(holding)))
            y = max(0.0, y - part)
            parts.append(rectangle(9, part, f'fill="{self._color(claim.name)}"', 0, y))
        if device.closed:
            parts.append(rectangle(9, 36, 'fill="url(#tainted)" stroke="#b4430a"', _DEVICE - 9, 0))
        name = " ".join(filter(None, (device.key.device, device.product)))
        parts.append(text_at(shortened(name, _DEVICE - 26, 11), 14, 14, size=11))
        words = ", ".join(f"{self._letter(claim.name)} {claim.name}" for claim, _ in holding) or self._state(device)
        style = 'font-weight="bold"' if holding else _MUTED
        parts.append(text_at(shortened(words, _DEVICE - 26, 11), 14, 29, size=11, style=style))
        return Piece(_DEVICE, 36, "".join(parts))

    def _state(self, device: FleetDevice) -> str:
        blocked = "blocked" if device.key in self._moment.blocked else "free"
        if device.key.driver in self._moment.unknown:
            blocked = "holder unknown"
        return f"{blocked}, tainted: {device.taints[0]}" if device.taints else blocked

    def _key(self, name: str, rank: int) -> Piece:
        cpus = self._cpus.get(name)
        words = f"{name}  CPUs {cpus}" if cpus else name
        sign = rectangle(20, 16, f'fill="{_COLORS[rank % len(_COLORS)]}"')
        letter = text_at(self._letter(name), 6, 12, size=11, style='fill="#ffffff" font-weight="bold"')
        return Piece(28 + CHARACTER * 12 * len(words), 18, sign + letter + text_at(words, 28, 12))

    def _letter(self, name: str | None) -> str:
        if name is None:
            return "·"
        rank = self._rank[name]
        return _LETTERS[rank] if rank < len(_LETTERS) else str(rank + 1)

    def _color(self, name: str | None) -> str:
        return _COLORS[self._rank[name] % len(_COLORS)] if name is not None else ""


def _threads(core: CPUSet) -> str:
    return ",".join(map(str, core))


def _cores(box: Box) -> Iterator[CPUSet]:
    yield from box.cores
    for inner in box.boxes:
        yield from _cores(inner)


def _is_on(claim: FleetClaim, node: FleetNode, keys: set[DeviceKey]) -> bool:
    return node.name in claim.cpus or any(share.device in keys and not share.admin for share in claim.shares)


def _fraction(device: FleetDevice, share: DeviceShare, sharers: int) -> float:
    """Return the fraction of a device in a share; if it is unknown, all sharers have equal parts."""
    if not device.shared or not share.consumed:
        return 1 / sharers
    parts = [
        float(share.consumed[name].value / total) for name, total in _totals(device).items() if name in share.consumed
    ]
    return min(1.0, max(parts, default=1 / sharers))


def _totals(device: FleetDevice) -> Mapping[str, Tally]:
    domain = f"{device.key.driver}/"
    return {name.removeprefix(domain): amount.value for name, amount in device.capacity.items() if amount.value}


# The width of a character per font size. No font is embedded or measured, so this has to fit common fonts.
CHARACTER: Final = 0.62
_PAD: Final = 8.0
_TITLE: Final = 20.0


class Piece(msgspec.Struct, frozen=True):
    """A piece of a picture.

    Attributes:
        width: in pixels.
        height: in pixels.
        svg: its elements, drawn from the point 0, 0.
    """

    width: float
    height: float
    svg: str = ""

    def at(self, x: float, y: float) -> str:
        """Return the elements moved to a point."""
        return f'<g transform="translate({x:g} {y:g})">{self.svg}</g>' if x or y else self.svg


def text_at(words: str, x: float, y: float, *, size: float = 12, style: str = "") -> str:
    """Return a text that starts at a point."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{style and f" {style}"}>{escape(printable_xml(words))}</text>'
    )


def printable_xml(words: str) -> str:
    """Return a text without characters that XML does not allow; names in documents may contain them."""
    return "".join(character if character.isprintable() else "\ufffd" for character in words)


def shortened(words: str, width: float, size: float = 12) -> str:
    """Return a text that fits a width, shortened in the middle if needed, because names differ at their ends."""
    most = max(4, int(width / (CHARACTER * size)))
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"


def rectangle(width: float, height: float, style: str, x: float = 0, y: float = 0) -> str:
    """Return a rectangle with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" {style}/>'


def line_of(words: str, *, size: float = 12, style: str = "") -> Piece:
    """Return one line of text as a piece."""
    return Piece(CHARACTER * size * len(words), size + 6, text_at(words, 0, size + 1, size=size, style=style))


def wrapped(words: str, width: float, style: str) -> Piece:
    """Return a text wrapped to a width, between words if possible."""
    most = max(20, int(width / (CHARACTER * 12)))
    # Names are not broken at hyphens, only if they are longer than a line.
    lines = wrap(words, most, break_on_hyphens=False)
    return stacked([line_of(line, style=style) for line in lines], 0)


def stacked(pieces: Iterable[Piece], gap: float = 4) -> Piece:
    """Return pieces below each other."""
    svg: list[str] = []
    width = y = 0.0
    for piece in pieces:
        svg.append(piece.at(0, y))
        y += piece.height + gap
        width = max(width, piece.width)
    return Piece(width, max(0.0, y - gap), "".join(svg))


def beside(pieces: Iterable[Piece], gap: float = 8) -> Piece:
    """Return pieces side by side."""
    svg: list[str] = []
    x = height = 0.0
    for piece in pieces:
        svg.append(piece.at(x, 0))
        x += piece.width + gap
        height = max(height, piece.height)
    return Piece(max(0.0, x - gap), height, "".join(svg))


def flowing(pieces: Sequence[Piece], width: float, gap: float = 8) -> Piece:
    """Return pieces in rows of equal columns that fit the width, at least one per row."""
    widest = max((piece.width for piece in pieces), default=0.0)
    columns = max(1, int((width + gap) // (widest + gap))) if widest else 1
    rows = [
        beside((Piece(widest, piece.height, piece.svg) for piece in pieces[start : start + columns]), gap)
        for start in range(0, len(pieces), columns)
    ]
    return stacked(rows, gap)


def framed_piece(title: str, inner: Piece, style: str) -> Piece:
    """Return a piece in a frame with a title."""
    wide = max(inner.width + 2 * _PAD, CHARACTER * 12 * len(title) + 2 * _PAD)
    high = _TITLE + inner.height + _PAD
    caption = text_at(title, _PAD, 15, size=12, style='font-weight="bold"')
    return Piece(wide, high, rectangle(wide, high, style) + caption + inner.at(_PAD, _TITLE))
