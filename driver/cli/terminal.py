"""The look of tables on a terminal, the same in every command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def columns(*names: str) -> Table:
    """Return a table with names over its columns and without lines; it folds long texts and never cuts them."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table
