"""Every attempt to admit a workload, for people: blocks that need no more than 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dranode.sim.queues.report import MODES, Row


def attempts_drawn(drawn: Iterable[Row]) -> RenderableType:
    """The rows for people: a block for each attempt of a workload, in it one for each flavor that was looked at."""
    parts: list[RenderableType] = []
    for (cycle, workload), attempt in groupby(drawn, key=lambda row: (row.cycle, row.workload)):
        parts.append(Text.assemble("\n" if parts else "", f"cycle {cycle}  ", (workload, "bold")))
        for (pod_set, flavor), resources in groupby(attempt, key=lambda row: (row.pod_set, row.flavor)):
            parts += _flavor_block(pod_set, flavor, list(resources))
    return Group(*parts)


def _flavor_block(pod_set: str, flavor: str | None, resources: Sequence[Row]) -> Iterator[RenderableType]:
    first = resources[0]
    style = "" if first.chosen else "dim"
    worst = min(resources, key=lambda row: MODES.index(row.mode)).mode
    verdict = f"{worst}, chosen" if first.chosen else worst
    flavor_words = f"flavor {flavor}  " if flavor else ""
    yield Padding(Text(f"pod set {pod_set}  {flavor_words}{verdict}", style=style), (0, 0, 0, 2))
    reasons = Table.grid(padding=(0, 2, 0, 0))
    reasons.add_column(no_wrap=True)
    reasons.add_column(overflow="fold")
    preempted = dict.fromkeys(name for row in resources for name in row.preempted)
    for label, text in (
        *dict.fromkeys((row.resource or "why", row.why) for row in resources),
        ("then", first.choice),
        ("preempts", ", ".join(preempted)),
        ("next from", first.next),
    ):
        if text:
            reasons.add_row(Text(label, style=style), Text(text, style=style))
    yield Padding(reasons, (0, 0, 0, 4))
