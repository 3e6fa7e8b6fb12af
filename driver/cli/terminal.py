"""The look of tables on a terminal, the same in every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from dranode.driver.picture.node import NodePicture

# A label that is longer stands on a line of its own.
_LABEL_COLUMNS: Final = 24
_INDENT: Final = 2


def columns(*names: str) -> Table:
    """Return a table with names over its columns and without lines; it folds long texts and never cuts them."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


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

    from dranode.driver.picture.text import node_text

    for line in node_text(picture, screen.width, marked=marked):
        screen.print(Text.assemble(*line), no_wrap=True, overflow="ignore", crop=False)
