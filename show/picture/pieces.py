"""Pieces of an SVG picture that know their size, set beside, under and into one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from textwrap import wrap
from typing import Final

import msgspec

# No font is shipped, and none is measured: wide enough for the fonts that people have.
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
    """Return a text whose line begins at a point."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{style and f" {style}"}>{escape(printable_xml(words))}</text>'
    )


def printable_xml(words: str) -> str:
    """Return a text without the characters that XML does not have, which names from documents may hold."""
    return "".join(each if each.isprintable() else "\ufffd" for each in words)


def shortened(words: str, width: float, size: float = 12) -> str:
    """Return a text that fits a width, cut in its middle where it does not: names differ at their ends."""
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


def wrapped(words: str, width: float, *, size: float = 12, style: str = "") -> Piece:
    """Return a text in as many lines as fit a width, broken between words where it can be."""
    most = max(20, int(width / (CHARACTER * size)))
    # Names are not broken at their hyphens; one that is longer than a line is.
    lines = wrap(words, most, break_on_hyphens=False)
    return stacked([line_of(each, size=size, style=style) for each in lines], 0)


def stacked(pieces: Iterable[Piece], gap: float = 4) -> Piece:
    """Return pieces one under another."""
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
    """Return pieces in rows of equal columns that fit the width; at least one a row."""
    widest = max((piece.width for piece in pieces), default=0.0)
    columns = max(1, int((width + gap) // (widest + gap))) if widest else 1
    rows = [
        beside((Piece(widest, piece.height, piece.svg) for piece in pieces[start : start + columns]), gap)
        for start in range(0, len(pieces), columns)
    ]
    return stacked(rows, gap)


def framed_piece(title: str, inner: Piece, style: str, width: float = 0) -> Piece:
    """Return a piece in a frame with a title."""
    wide = max(width, inner.width + 2 * _PAD, CHARACTER * 12 * len(title) + 2 * _PAD)
    high = _TITLE + inner.height + _PAD
    caption = text_at(title, _PAD, 15, size=12, style='font-weight="bold"')
    return Piece(wide, high, rectangle(wide, high, style) + caption + inner.at(_PAD, _TITLE))
