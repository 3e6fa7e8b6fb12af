"""Prints the rows of `dranode claims` as tables: the claims, and what was seen of their containers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from dranode.driver.cli.claim_disturbance import draw_disturbances
from dranode.driver.cli.claim_memory import draw_memory, draw_memory_usage
from dranode.driver.cli.claim_usage import draw_usage
from dranode.driver.cli.output import console
from dranode.driver.cli.terminal import columns
from dranode.driver.core.api.quantity import Quantity

# A table lists so many intruders, and only counts the others.
_NAMED: Final = 20


def draw_claims(rows: list[dict[str, Any]]) -> None:
    """Print the claims as a table, a row each."""
    if not rows:
        console().print("No claim is on record.")
        return
    table = columns("claim", "driver", "devices", "cpus", "held", "state", "pods")
    for row in rows:
        table.add_row(
            _name(row),
            row["driver"],
            ", ".join(_device(name, row["amounts"]) for name in dict.fromkeys(row["devices"])),
            _cpus(row),
            row["held"] or "-",
            row["state"],
            ", ".join(row["pods"]),
        )
    console().print(table)


def _cpus(row: Mapping[str, Any]) -> str:
    """Return the CPUs of a claim, by request where it has several."""
    requests: Mapping[str, str] = row.get("requestCpus", {})
    return "\n".join(f"{name}: {cpus}" for name, cpus in requests.items()) or row["cpus"] or "-"


def _device(name: str, amounts: Mapping[str, int]) -> str:
    """Return a device with how much of it the claim holds, where it shares it with others."""
    return f"{name} {Quantity.binary(amounts[name])}" if name in amounts else name


def draw_looks(rows: list[dict[str, Any]], *, verify: bool, usage: bool) -> None:
    """Print what was seen of the claims' containers, by `--verify` and by `--usage`."""
    if verify:
        _draw_verified(rows)
        verified = [
            (_name(row), row["verify"]["containerMemory"]) for row in rows if "containerMemory" in row.get("verify", {})
        ]
        draw_memory(_once(verified))
    if not usage:
        return
    draw_memory_usage((_name(row), row["memory_usage"]) for row in rows if "memory_usage" in row)
    draw_usage((_name(row), row["usage"]) for row in rows if "usage" in row)
    for row in rows:
        if "usage_unseen" in row:
            click.echo(f"not seen: {_name(row)} ({row['driver']}): {row['usage_unseen']}")


def _once(verified: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each container once, though claims of one name are on record with several drivers.

    So is that no container of a claim was seen (`unseen`).
    """
    seen: set[str] = set()
    unseen: set[str] = set()
    for name, document in verified:
        fresh = [each for each in document["containers"] if each["cgroup"] not in seen]
        seen.update(each["cgroup"] for each in fresh)
        yield name, {**document, "containers": fresh, "unseen": not document["containers"] and name not in unseen}
        if not document["containers"]:
            unseen.add(name)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['namespace']}/{row['name']}" if row["name"] else str(row["uid"])


def _draw_verified(rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    out = console()
    out.print()
    containers = columns("claim", "pod", "should run on", "runs on", "")
    intruders: dict[int, tuple[str, str, int | None]] = {}
    for row in (row for row in rows if "ok" in row.get("verify", {})):
        verified = row["verify"]
        for placed in verified["containers"]:
            word = "yes" if placed["ok"] else Text("NO", style="red")
            runs_on = f"{placed['found']}, no process on {placed['unused']}" if "unused" in placed else placed["found"]
            containers.add_row(_name(row), placed["pod"], placed["expected"], runs_on, word)
        if verified["ok"] is None:
            containers.add_row(_name(row), "", row["cpus"] or "-", "", "no container of it can be looked into")
        for placed in verified["intruders"] or ():
            _, _, before = intruders.get(placed["pid"], ("", "", None))
            seen = [count for count in (before, placed["threadsLastThere"]) if count is not None]
            intruders[placed["pid"]] = (placed["name"], placed["cpus"], sum(seen) if seen else None)
    out.print(containers)
    disturbed = [(_name(row), row["verify"]["disturbance"]) for row in rows if "disturbance" in row.get("verify", {})]
    if disturbed:
        draw_disturbances(disturbed)
    if not intruders:
        return

    processes = "process" if len(intruders) == 1 else "processes"
    out.print(f"\n{len(intruders)} {processes} without a claim may run on CPUs that a claim holds:")
    table = columns("pid", "name", "may run on", "threads that did last")
    for pid, (name, cpus, count) in sorted(intruders.items(), key=lambda each: (-(each[1][2] or 0), each[0]))[:_NAMED]:
        table.add_row(str(pid), name, cpus, "not seen" if count is None else str(count))
    out.print(table)
    if len(intruders) > _NAMED:
        out.print(f"and {len(intruders) - _NAMED} more (-o json names all)")
