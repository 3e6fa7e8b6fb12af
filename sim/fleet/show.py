"""A fleet for people: used and stranded amounts, placed and waiting pods, and every attempt to admit a workload."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dranode.driver.claims.grant import readable_results
from dranode.show.picture.devices import part_text
from dranode.show.terminal import PlainTable, columns, hanging
from dranode.sim.fleet.placing import SCORING, PodResult
from dranode.sim.fleet.report import FleetReport, NodeReport, add_units, unit_amount
from dranode.sim.queues.report import MODES, Row
from dranode.sim.scheduler.scores import DEVICES, WEIGHTS

_SHOWN_REASONS = 8
_SHOWN_PODS = 40


def show_fleet(screen: Console, report: FleetReport, *, scores: bool) -> None:
    """Print the report, optionally with the table of scores."""
    screen.print(_machines(report.nodes))
    screen.print(f"\n{report.headline}.")
    if any(result.node is not None for result in report.results):
        screen.print()
        show_placements(screen, report.results)
    if report.alternatives:
        screen.print()
        screen.print(_alternatives(report))
    if scores:
        screen.print()
        screen.print(_scores(report.results))
        screen.print(f"score is {SCORING}.", markup=False)
    _show_waiting(screen, report.results)


def show_placements(screen: Console, results: Iterable[PodResult]) -> None:
    """Print the node of each placed pod and the devices of its claims."""
    placed = [result for result in results if result.node is not None]
    table = columns("pod", "node", "devices")
    for result in placed[:_SHOWN_PODS]:
        table.add_row(Text(result.pod), Text(result.node or ""), Text(", ".join(_devices(result))))
    screen.print(table)
    if len(placed) > _SHOWN_PODS:
        screen.print(f"... and {len(placed) - _SHOWN_PODS} more pods; -o json has all of them.")


def _devices(placed: PodResult) -> Iterator[str]:
    """Yield each device, with the consumed amounts if it is shared."""
    for outcome in (*placed.outcomes, *placed.shared):
        for result in readable_results(outcome.allocation):
            amounts = ", ".join(part_text(amount, name) for name, amount in result.consumed_capacity.items())
            yield f"{result.device} ({amounts})" if amounts else result.device


def _machines(nodes: Iterable[NodeReport]) -> PlainTable:
    table = columns("machine", "nodes", "full", "unit", "total", "used", "free", "stranded")
    by_machine: dict[str, list[NodeReport]] = {}
    for node in nodes:
        by_machine.setdefault(node.machine, []).append(node)
    for machine, members in by_machine.items():
        full = sum(all(unit.free == 0 for unit in node.units.values()) for node in members)
        head = (machine, str(len(members)), str(full))
        for name, unit in add_units(members).items():
            amounts = (unit.total, unit.total - unit.free, unit.free, unit.stranded)
            table.add_row(*head, name, *map(unit_amount, amounts))
            head = ("", "", "")
    return table


def _alternatives(report: FleetReport) -> PlainTable:
    table = columns("request", "alternative", "taken")
    for request, counts in report.alternatives.items():
        for name, count in counts.items():
            table.add_row(request, name or "(none fits)", str(count))
    return table


def _scores(results: Iterable[PodResult]) -> PlainTable:
    table = columns("pod", "node", "raw", "score", f"x weight {WEIGHTS[DEVICES]}", "total", "chosen")
    for result in results:
        for score in result.scores:
            chosen = "*" if score.node == result.node else ""
            total = "-" if score.total is None else str(score.total)
            numbers = (score.raw, score.score, WEIGHTS[DEVICES] * score.score)
            table.add_row(result.pod, score.node, *map(str, numbers), total, chosen)
    return table


def _show_waiting(screen: Console, results: Iterable[PodResult]) -> None:
    reasons: Counter[tuple[str, tuple[str, ...]]] = Counter()
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    for result in results:
        if result.node is None:
            reason = (result.error, result.details)
            reasons[reason] += 1
            first.setdefault(reason, result.pod)
    for (error, details), count in reasons.most_common(_SHOWN_REASONS):
        screen.print()
        screen.print(hanging(f"{count} pod{'s' if count > 1 else ''} ({first[error, details]} first)", error))
        for line in details:
            screen.print(Padding(Text(line), (0, 0, 0, 2)))
    if len(reasons) > _SHOWN_REASONS:
        screen.print(f"\n... and {len(reasons) - _SHOWN_REASONS} more reasons; -o json has all of them.")


def attempts_drawn(drawn: Iterable[Row]) -> RenderableType:
    """Return the rows for people: a block for each attempt of a workload, and in it one for each flavor tried."""
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
