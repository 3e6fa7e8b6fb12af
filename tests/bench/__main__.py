"""`make bench`: how long the simulator takes on large clusters, compared with Go's allocator and kube-scheduler.

python -m tests.bench                   everything
python -m tests.bench cluster beside_go only these modules of this folder
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.table import Row

_NOT_BENCHES = {"__main__", "table", "compiled", "dumps"}


def modules(asked: list[str]) -> list[str]:
    """The requested benchmark modules of this folder; all if none was requested."""
    found = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _NOT_BENCHES)
    unknown = set(asked) - set(found)
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}; there is {', '.join(found)}")
    return asked or found


def draw(rows: Iterable[Row]) -> None:
    """Print rows as they come, and one table at the end."""
    table = Table(box=None, pad_edge=False)
    for column in ("what", "figure", "floor", "ratio", "target", ""):
        table.add_column(column, justify="right" if column in ("figure", "ratio") else "left")
    for row in rows:
        print(f"  {row.name}: {row.value:.4g} {row.unit}", file=sys.stderr)
        floor = f"{row.floor:.4g} {row.unit} ({row.floor_name})" if row.floor else ""
        ratio = f"{row.value / row.floor:.2f}" if row.floor else ""
        verdict = {True: "ok", False: "MISSED", None: ""}[row.ok]
        table.add_row(row.name, f"{row.value:.4g} {row.unit}", floor, ratio, row.target, verdict)
    Console(width=160).print(table)


if __name__ == "__main__":
    draw(row for name in modules(sys.argv[1:]) for row in importlib.import_module(f"tests.bench.{name}").bench())
