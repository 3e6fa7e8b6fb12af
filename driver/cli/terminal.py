"""The look of tables on a terminal, the same in every command."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dranode.driver.core.api.sentence import printable
from dranode.driver.picture.node import NodePicture
from dranode.driver.picture.text import node_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


# A label that is longer stands on a line of its own.
_LABEL_COLUMNS: Final = 24
_INDENT: Final = 2
_MOST_MEASURED: Final = 1_000
_GAP: Final = 2


def columns(*names: str) -> Table:
    """Return a table with names over its columns and without lines; it folds long texts and never cuts them.

    A text stands there to the letter: what it has in square brackets is no markup. What is to have a style is a Text.
    """
    from rich.table import Table
    from rich.text import Text

    class PlainTable(Table):
        def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
            super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    table = PlainTable(box=None, pad_edge=False)
    for name in names:
        table.add_column(Text(name), overflow="fold")
    return table


def show_rows(screen: Console, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of texts as `columns` has them; thousands of them without its measuring, which takes ms a row."""
    if len(rows) <= _MOST_MEASURED:
        table = columns(*names)
        for row in rows:
            table.add_row(*row)
        screen.print(table)
        return
    widths = [max(len(row[column]) for row in (names, *rows)) for column in range(len(names) - 1)]
    before = sum(widths) + _GAP * len(widths)
    room = max(screen.width - before, _LABEL_COLUMNS)
    for row in (names, *rows):
        head = "".join(f"{text:<{width + _GAP}}" for text, width in zip(row, widths, strict=False))
        lines = textwrap.wrap(row[-1], room) or [""]
        screen.file.write(f"{printable(head + lines[0])}\n")
        for line in lines[1:]:
            screen.file.write(f"{' ' * before}{printable(line)}\n")


def hanging(label: str, text: str, *, style: str = "bold") -> RenderableType:
    """Return a label and its text, whose further lines hang under where the text begins."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if len(label) > _LABEL_COLUMNS:
        return Group(Text(label, style=style), Padding(Text(text), (0, 0, 0, _INDENT)))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(label, style=style), Text(text))
    return table


def show_node(screen: Console, picture: NodePicture, *, marked: bool = True) -> None:
    """Draw a node as wide as the screen; nothing if there is nothing to draw."""
    from rich.text import Text

    for line in node_text(picture, screen.width, marked=marked):
        screen.print(Text.assemble(*line), no_wrap=True, overflow="ignore", crop=False)
