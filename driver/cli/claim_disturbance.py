"""Shows what has disturbed the CPUs of claims that want them quiet, for `dranode claims --verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from dranode.driver.cli.output import console
from dranode.driver.cli.terminal import columns
from dranode.driver.core.api.errors import LedgerError
from dranode.driver.core.claims.hooks import Disturbance, Tunes
from dranode.driver.core.claims.usage import Figure
from dranode.driver.core.diagnosis.placement import ClaimPlacement
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.container_usage import UsageReader
from dranode.driver.machine.root import Root, names
from dranode.driver.node.ledger import Contents, decoded_notes
from dranode.driver.plugins import load_installed

# A table names so many interrupts of a claim.
_NAMED: Final = 3


def disturbances_of(
    root: Root, noted: Mapping[str, Contents], placements: Mapping[str, ClaimPlacement]
) -> dict[str, dict[str, Any]]:
    """Return what has happened on the CPUs of each claim that wants them quiet, by UID, since it began.

    Args:
        root: the machine's files.
        noted: the ledger of each driver that has notes.
        placements: where the claims' containers run.
    """
    documents: dict[str, dict[str, Any]] = {}
    for each in _disturbances(root, noted):
        placement = placements.get(each.claim.uid)
        if placement is not None:
            own = None if each.busy is None else _own(root, placement, each)
            documents[each.claim.uid] = _document(each, own, _ended(root, placement))
    return documents


def _disturbances(root: Root, noted: Mapping[str, Contents]) -> Iterator[Disturbance]:
    for plugin in load_installed(root) if noted else ():
        if isinstance(plugin, Tunes) and plugin.driver in noted:
            contents = noted[plugin.driver]
            try:
                notes = decoded_notes(contents)
                if lost := plugin.unrestorable(notes):
                    click.echo(f"{plugin.driver}: {lost}", err=True)
                yield from plugin.disturbances(contents.records, notes)
            except LedgerError as error:
                click.echo(f"{plugin.driver}: what disturbed its claims is not known: {error}", err=True)


def _own(root: Root, placement: ClaimPlacement, disturbance: Disturbance) -> float | None:
    """Return how many seconds the claim's own containers ran; None if that is not known, or was on other CPUs too."""
    reader = UsageReader(root, Cgroups(root))
    seconds = 0.0
    for container in placement.containers:
        ran = reader.read(container.seen.cgroup, None).get(Figure.CPU)
        if ran is None or not container.expected <= disturbance.cpus:
            return None
        seconds += sum(ran.values())
    return None if placement.hidden else seconds


def _ended(root: Root, placement: ClaimPlacement) -> float:
    """Return how many seconds containers of the claim's pods ran that have ended: with the claim, or without it.

    The cgroup of a pod counts them too.
    """
    cgroups = Cgroups(root)
    reader, seconds = UsageReader(root, cgroups), 0.0
    for pod in {each.seen.cgroup.rpartition("/")[0] for each in placement.containers}:
        there = {name for hierarchy in cgroups.cpuset for name in names(root, f"{hierarchy}/{pod}")}
        seconds += max(0.0, _ran(reader, pod) - sum(_ran(reader, f"{pod}/{name}") for name in there))
    return seconds


def _ran(reader: UsageReader, folder: str) -> float:
    return sum(reader.read(folder, None, ()).get(Figure.CPU, {}).values())


def _document(disturbance: Disturbance, own: float | None, ended: float) -> dict[str, Any]:
    busy = disturbance.busy
    return {
        "cpus": str(disturbance.cpus),
        "deviceInterrupts": disturbance.count,
        "interrupts": disturbance.interrupts,
        "kernelInterrupts": disturbance.kernel,
        "busySeconds": None if busy is None else round(busy, 3),
        "ownSeconds": None if own is None else round(own, 3),
        "endedSeconds": round(ended, 3),
        "othersSeconds": None if busy is None or own is None else round(max(0.0, busy - own), 3),
    }


def draw_disturbances(disturbed: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Draw them as a table, by the claims' names."""
    table = columns("claim", "quiet CPUs", "device interrupts", "most often", "others ran")
    for name, found in disturbed:
        count, interrupts = found["deviceInterrupts"], found["interrupts"] or {}
        most = sorted(interrupts.items(), key=lambda each: -each[1])[:_NAMED]
        others = found["othersSeconds"]
        table.add_row(
            name,
            found["cpus"],
            "not known" if count is None else str(count),
            ", ".join(f"{interrupt}: {count}" for interrupt, count in most) or "-",
            "not known" if others is None else f"{'at most ' if found['endedSeconds'] else ''}{others:.2f} s",
        )
    out = console()
    out.print("\nOn CPUs that claims want quiet, since these began:")
    out.print(table)
