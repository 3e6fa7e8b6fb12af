"""Prints for `dranode claims --usage` how much the claims' containers use of the CPUs that the claims hold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click
import msgspec

from dranode.driver.cli.output import console
from dranode.driver.cli.terminal import columns
from dranode.driver.core.api.sentence import number_of
from dranode.driver.core.claims.record import Record
from dranode.driver.core.claims.usage import (
    GAUGES,
    IDLE_PART,
    IDLE_SECONDS,
    ClaimShare,
    ContainerReading,
    Figure,
    PodUsage,
    UsageBook,
)
from dranode.driver.core.diagnosis.placement import ClaimPlacement, PlacedContainer, placements, pod_uids
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.container_usage import UsageReader, container_processes
from dranode.driver.machine.numa import local_nodes, node_cpus
from dranode.driver.machine.processes import online_for_pods, require_visible
from dranode.driver.machine.root import Root

_PERCENT: Final = 100
_MIB: Final = 1 << 20


class _Look(msgspec.Struct, frozen=True):
    """The containers of the claims at one moment, and when that was, in seconds of a clock that never goes back."""

    at: float
    placements: Mapping[str, ClaimPlacement]


def usage_of(root: Root, records: Iterable[Record], seconds: float) -> dict[str, dict[str, Any]]:
    """Return what each claim that holds CPUs used, by UID: since its containers were started, and within `seconds`.

    A claim with a process that cannot be looked into is missing there, and so are figures that could not be read, which
    are named on stderr.

    Raises:
        MachineError: `/proc` does not show the claims' processes, or the machine does not say which CPUs are online.
    """
    records = tuple(record for record in records if record.held)
    book = UsageBook()
    first = _take(book, root, records)
    before = {(each.claim, each.pod): each for each in book.usage().pods}
    time.sleep(seconds)
    last = _take(book, root, records)
    usage = book.usage()
    for figure, count in usage.unread.items():
        if count:
            click.echo(
                f"{figure.value.replace('_', ' ')} could not be read of {number_of(count, 'container')}", err=True
            )
    documents: dict[str, dict[str, Any]] = {}
    for record in records:
        placement = last.placements[record.uid]
        if placement.hidden:
            continue
        pods = [
            _pod(each, before.get((each.claim, each.pod)), len(record.held), last.at - first.at)
            for each in usage.pods
            if each.claim == record.ref
        ]
        containers = [_container(root, each) for each in placement.containers]
        idle = usage.idle.get(record.ref)
        documents[record.uid] = {
            "held": len(record.held),
            "seconds": round(last.at - first.at, 3),
            "idle": _idle_since_start(pods, containers, len(record.held)) if idle is None else idle,
            "pods": pods,
            "containers": containers,
        }
    return documents


def _take(book: UsageBook, root: Root, records: tuple[Record, ...]) -> _Look:
    seen = require_visible(root, pod_uids(records))
    placed = placements(records, seen.containers, seen.processes, online_for_pods(root))
    shares: dict[PlacedContainer, list[Record]] = {}
    for record in records:
        for container in placed[record.uid].containers:
            shares.setdefault(container, []).append(record)
    reader, nodes, now = UsageReader(root, Cgroups(root)), node_cpus(root), time.monotonic()
    readings = [
        ContainerReading(
            container.seen.cgroup,
            tuple(ClaimShare(record.ref, container.pod, len(record.held)) for record in theirs),
            reader.read(container.seen.cgroup, local_nodes(container.expected, nodes), container.seen.pids),
        )
        for container, theirs in shares.items()
    ]
    known = {record.ref: len(record.held) for record in records}
    book.take(now, known, readings)
    return _Look(now, placed)


def _pod(usage: PodUsage, before: PodUsage | None, held: int, seconds: float) -> dict[str, Any]:
    """Return totals, what the counters rose by within the interval, and CPU time as a part of what is held."""
    begun = before.values if before is not None else {}
    rise = {
        figure.value: value - begun.get(figure, 0.0) for figure, value in usage.values.items() if figure not in GAUGES
    }
    used = rise.get(Figure.CPU.value)
    return {
        "pod": usage.pod,
        "total": {figure.value: value for figure, value in usage.values.items()},
        "rise": rise,
        "used": None if used is None else used / seconds,
        "of_held": None if used is None else used / seconds / held,
    }


def _container(root: Root, container: PlacedContainer) -> dict[str, Any]:
    """Return what its processes say, which no file of its cgroup does."""
    seen = container_processes(root, container.seen.pids)
    return {
        "pod": container.pod,
        "cgroup": container.seen.cgroup,
        "processes": len(container.seen.processes),
        "threads": None if seen is None else seen.threads,
        "affinity": None if seen is None else str(seen.affinity),
        "running_seconds": None if seen is None else round(max(0.0, time.time() - seen.started), 1),
    }


def _idle_since_start(pods: list[dict[str, Any]], containers: list[dict[str, Any]], held: int) -> bool | None:
    """Return whether its containers, all older than a minute, have used next to nothing ever; None if not known."""
    ages = [each["running_seconds"] for each in containers]
    used = [each["total"].get(Figure.CPU.value) for each in pods]
    if not ages or None in ages or None in used:
        return None
    oldest = max(ages)
    if sum(used) >= IDLE_PART * held * oldest:
        return False
    return True if oldest >= IDLE_SECONDS else None


def draw_usage(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Print what each claim, by its name, used within the interval."""
    from rich.text import Text

    table = columns("claim", "pod", "held", "used", "of held", "throttled", "waited", "pressure", "other nodes", "")
    idle = []
    for name, usage in rows:
        if usage["idle"]:
            idle.append(name)
        for pod in usage["pods"] or [None]:
            table.add_row(name, *_cells(usage, pod), Text("idle", style="red") if usage["idle"] else "")
    out = console()
    out.print()
    out.print(table)
    if idle:
        out.print(f"\nidle (less than 1 % of its CPUs used for a minute): {', '.join(idle)}")


def _cells(usage: Mapping[str, Any], pod: Mapping[str, Any] | None) -> list[str]:
    held = f"{usage['held']} CPUs"
    if pod is None:
        return ["-", held, *["-"] * 6]
    rise, total = pod["rise"], pod["total"]
    memory, remote = total.get(Figure.MEMORY.value), total.get(Figure.REMOTE_MEMORY.value)
    return [
        pod["pod"],
        held,
        "-" if pod["used"] is None else f"{pod['used']:.2f}",
        _part(pod["of_held"]),
        _part(_ratio(rise.get(Figure.THROTTLED_PERIODS.value), rise.get(Figure.PERIODS.value))),
        _seconds(rise.get(Figure.WAIT.value)),
        _part(_ratio(rise.get(Figure.WAITING.value), usage["seconds"])),
        "-" if remote is None or memory is None else f"{remote / _MIB:.0f} of {memory / _MIB:.0f} MiB",
    ]


def _ratio(value: float | None, whole: float | None) -> float | None:
    if value is None or whole is None:
        return None
    return value / whole if whole else 0.0


def _part(value: float | None) -> str:
    return "-" if value is None else f"{value * _PERCENT:.1f} %"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
