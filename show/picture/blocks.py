"""Blocks of styled text, set beside and inside one another; no terminal is needed to make them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

Span: TypeAlias = tuple[str, str]  # text and style, in rich's words; "" is plain
BlockLine: TypeAlias = tuple[Span, ...]

_FRAME = "dim"


class Block(msgspec.Struct, frozen=True):
    """Lines that are as wide as the widest of them, once they are set beside something."""

    lines: tuple[BlockLine, ...]

    @property
    def width(self) -> int:
        """Columns of the widest line."""
        return max((length(line) for line in self.lines), default=0)


def length(line: BlockLine) -> int:
    """Columns of a line; every character here is one column wide."""
    return sum(len(text) for text, _ in line)


def stack(blocks: Iterable[Block]) -> Block:
    """Blocks one under another."""
    return Block(tuple(line for block in blocks for line in block.lines))


def flow(blocks: Sequence[Block], width: int, gap: int = 1) -> Block:
    """Blocks side by side, in rows of equal columns that fit the width; at least one a row."""
    widest = max((block.width for block in blocks), default=0)
    columns = max(1, (width + gap) // (widest + gap))
    rows = [blocks[start : start + columns] for start in range(0, len(blocks), columns)]
    return stack(_beside(row, widest, gap) for row in rows)


def framed(titled: Sequence[tuple[str, Block]]) -> list[Block]:
    """Blocks in frames of equal width, each with its title."""
    inner = max((max(block.width, len(title) + 2) for title, block in titled), default=0)
    return [_framed(title, block, inner) for title, block in titled]


def _framed(title: str, block: Block, inner: int) -> Block:
    top = (("╭─ ", _FRAME), (title, "bold"), (" " + "─" * (inner - len(title) - 1) + "╮", _FRAME))
    middle = tuple((("│ ", _FRAME), *_padded(line, inner), (" │", _FRAME)) for line in block.lines)
    return Block((top, *middle, (("╰" + "─" * (inner + 2) + "╯", _FRAME),)))


def _beside(blocks: Sequence[Block], width: int, gap: int) -> Block:
    height = max(len(block.lines) for block in blocks)
    lines: list[BlockLine] = []
    for row in range(height):
        spans: list[Span] = []
        for position, block in enumerate(blocks):
            line = block.lines[row] if row < len(block.lines) else ()
            last = position == len(blocks) - 1
            spans += line if last else (*_padded(line, width), (" " * gap, ""))
        lines.append(tuple(spans))
    return Block(tuple(lines))


def _padded(line: BlockLine, width: int) -> BlockLine:
    missing = width - length(line)
    return (*line, (" " * missing, "")) if missing > 0 else line
