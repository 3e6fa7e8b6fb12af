"""A fleet for people: tables of what is used, stranded and taken, and why pods wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from dranode.driver.cli.terminal import PlainTable, columns, hanging
from dranode.driver.core.api.units import part_text
from dranode.driver.core.claims.allocation import readable_results
from dranode.sim.cluster.place import SCORING
from dranode.sim.cluster.pods import PodPlacement
from dranode.sim.fleet.report import FleetReport, NodeReport, add_units, unit_amount

# kube-scheduler weighs the score of its plug-in for dynamic resources with this (KEP-4816).
WEIGHT = 2
_SHOWN_REASONS = 8
_SHOWN_PODS = 40


def show_fleet(screen: Console, report: FleetReport, *, scores: bool) -> None:
    """Draw the report; with the table of scores if it was asked for."""
    screen.print(_machines(report.nodes))
    placed = sum(placement.node is not None for placement in report.placements)
    screen.print(f"\n{placed} of {len(report.placements)} pods placed on {len(report.nodes)} nodes.")
    if placed:
        screen.print()
        show_placements(screen, report.placements)
    if report.alternatives:
        screen.print()
        screen.print(_alternatives(report))
    if scores:
        screen.print(_scores(report.placements))
        screen.print(f"score is {SCORING}.", markup=False)
    _show_waiting(screen, report.placements)


def show_placements(screen: Console, placements: Iterable[PodPlacement]) -> None:
    """Draw where each placed pod went, and which devices its claims got there."""
    placed = [placement for placement in placements if placement.node is not None]
    table = columns("pod", "node", "devices")
    for placement in placed[:_SHOWN_PODS]:
        table.add_row(Text(placement.pod), Text(placement.node or ""), Text(", ".join(_devices(placement))))
    screen.print(table)
    if len(placed) > _SHOWN_PODS:
        screen.print(f"... and {len(placed) - _SHOWN_PODS} more pods; -o json has all of them.")


def _devices(placement: PodPlacement) -> Iterator[str]:
    """Each device, with how much of it where it is shared."""
    for outcome in (*placement.outcomes, *placement.shared):
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


def _scores(placements: Iterable[PodPlacement]) -> PlainTable:
    table = columns("pod", "node", "raw", "score", f"x weight {WEIGHT}", "chosen")
    for placement in placements:
        for score in placement.scores:
            chosen = "*" if score.node == placement.node else ""
            numbers = (score.raw, score.score, WEIGHT * score.score)
            table.add_row(placement.pod, score.node, *map(str, numbers), chosen)
    return table


def _show_waiting(screen: Console, placements: Iterable[PodPlacement]) -> None:
    reasons: Counter[str] = Counter()
    details: dict[str, PodPlacement] = {}
    for placement in placements:
        error = next((outcome.error for outcome in placement.outcomes if outcome.error), None)
        if error is not None:
            reasons[error] += 1
            details.setdefault(error, placement)
    for error, count in reasons.most_common(_SHOWN_REASONS):
        screen.print()
        screen.print(hanging(f"{count} pod{'s' if count > 1 else ''} ({details[error].pod} first)", error))
        for node, miss in details[error].misses[1:]:
            screen.print(Padding(hanging(node, miss.sentence, style=""), (0, 0, 0, 2)))
    if len(reasons) > _SHOWN_REASONS:
        screen.print(f"\n... and {len(reasons) - _SHOWN_REASONS} more reasons; -o json has all of them.")
