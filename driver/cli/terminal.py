"""How tables look on a terminal, the same in every command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def columns(*names: str) -> Table:
    """A table for people: names over columns and no lines, long texts folded and never cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table
