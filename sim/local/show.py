"""The local run for people: what was published, what every claim got, the node before and after."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.text import Text

from dranode.api.quantity import Quantity
from dranode.api.resource import ResourceSlice
from dranode.driver.claims.grant import readable_results
from dranode.driver.claims.hooks import Reports
from dranode.show.picture.fleet import FleetPicture, WaitingPod
from dranode.show.picture.node import DriverView, NodePicture, node_picture
from dranode.show.picture.pictures import shares_of, views_picture
from dranode.show.terminal import PlainTable, columns, hanging, show_node, show_slices
from dranode.sim.local.run import ClaimResult, LocalRun
from dranode.sim.machines.scratch import WritableMachine

_NUMBER: Final = re.compile("[0-9]+")
# A pod's UID or a container's id; its beginning tells it from others.
_ID: Final = re.compile("([0-9a-f]{8})[0-9a-f_-]{24,}")


def views_of(run: LocalRun) -> tuple[DriverView, ...]:
    """Return what each driver of the node has now."""
    return tuple(
        DriverView.of(
            driver,
            service.node.inventory,
            service.plugin.layout(service.node.inventory) if isinstance(service.plugin, Reports) else None,
            service.node.records(),
            service.plugin,
        )
        for driver, service in run.services.items()
    )


def kept_back(run: LocalRun) -> tuple[str, ...]:
    """Return what the node's drivers do not publish on purpose, in one sentence each."""
    return tuple(
        f"{driver}: {note}" for driver, service in run.services.items() for note in service.node.inventory.kept_back
    )


def show_published(screen: Console, slices: Iterable[ResourceSlice], notes: Iterable[str]) -> None:
    """Print the node's first devices, and what is not published."""
    show_slices(screen, slices, most=12)
    for note in notes:
        screen.print(note, markup=False)


def picture_of(run: LocalRun) -> NodePicture:
    """The node as it is now, with the devices of all its drivers."""
    return node_picture(views_of(run))


def run_picture(
    node: str, before: Sequence[DriverView], after: Sequence[DriverView], results: Iterable[ClaimResult]
) -> FleetPicture:
    """The node before and after, and what became of the claims that have nothing."""
    results = tuple(results)
    shares = {_name(result): shares_of(result.allocation) for result in results if result.allocation is not None}
    waiting = [WaitingPod(_name(result), (_name(result),), (result.error,)) for result in results if result.error]
    return views_picture(
        f"Local run on {node}", node, [("before", before), ("after", after)], shares=shares, waiting=waiting
    )


def show_picture(screen: Console, title: str, picture: NodePicture) -> None:
    """Print a node under a title; nothing if there is nothing to draw."""
    if picture.layout is not None or picture.devices:
        heading(screen, title)
        show_node(screen, picture)


def heading(screen: Console, text: str) -> None:
    """Print a title."""
    screen.print()
    screen.print(Text(text, style="bold"))


def show_claims(screen: Console, results: Iterable[ClaimResult], *, verbose: bool = False) -> None:
    """Print what became of every claim, and under the table why some got nothing; CDI devices if `verbose`."""
    results = tuple(results)
    if not results:
        screen.print("\nNo claim to prepare; name files with ResourceClaims.")
        return
    heading(screen, "Claims")
    with_amounts = any(result.amounts for result in results)
    table = columns("claim", "", "request", "device", "CPUs", *(("amount",) if with_amounts else ()))
    for result in results:
        _claim_rows(table, result)
    screen.print(table)
    if verbose:
        _show_cdi_devices(screen, results)
    for result in results:
        for note in (*((result.error,) if result.error else ()), *result.notes):
            screen.print()
            screen.print(hanging(_name(result), note))


def _claim_rows(table: PlainTable, result: ClaimResult) -> None:
    name = _name(result)
    if result.error:
        requested = {one.request for one in readable_results(result.allocation)}
        table.add_row(name, Text("failed", style="red"), ", ".join(sorted(requested)), "", "")
        return
    # kubelet hears the main request's name; people want to see which alternative was taken.
    taken = [one.request for one in readable_results(result.allocation)]
    verdict = Text("prepared", style="green")
    if not result.devices:
        table.add_row(name, verdict, ", ".join(taken), "", "")
    shown: set[str] = set()
    for index, device in enumerate(result.devices):
        request = next((one for one in taken if one.partition("/")[0] == device.request), device.request)
        taken = [one for one in taken if one != request] + [request]
        first = index == 0
        table.add_row(
            name if first else "",
            verdict if first else "",
            request,
            device.device,
            _cpus(result, request, shown),
            *((_amount(result, device.device),) if result.amounts else ()),
        )


def _cpus(result: ClaimResult, request: str, shown: set[str]) -> str:
    """Return the CPUs of a request beside its first device; those of the whole claim where they are not known apart."""
    name = request if result.request_cpus else ""
    if name in shown:
        return ""
    shown.add(name)
    return result.request_cpus.get(name, "") if result.request_cpus else result.cpus or ""


def _amount(result: ClaimResult, device: str) -> str:
    held = result.amounts.get(device)
    return "" if held is None else str(Quantity.binary(held))


def _show_cdi_devices(screen: Console, results: Iterable[ClaimResult]) -> None:
    heading(screen, "CDI devices")
    for result in results:
        names = dict.fromkeys(name for device in result.devices for name in device.cdi)
        if names:
            screen.print(Text(_name(result)))
        for name in names:
            screen.print(Text(f"  {name}"), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of the machine that drivers wrote to; what it holds is empty if it is not there.

    Attributes:
        path: relative to the machine's root.
        before: what it held before the run.
        prepared: what it held with the claims prepared.
        after: what it holds at the end.
    """

    path: str
    before: str
    prepared: str
    after: str


def written_files(machine: WritableMachine, prepared: Mapping[str, str]) -> tuple[WrittenFile, ...]:
    """Return the files that were written to; `prepared` is what they held with the claims prepared."""
    after = machine.held()
    return tuple(
        WrittenFile(path, before, prepared.get(path, before), after[path]) for path, before in machine.before.items()
    )


def show_written(screen: Console, files: Iterable[WrittenFile]) -> None:
    """Print what became of each file that was written to; those in which the same happened are one row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        if not file.before == file.prepared == file.after:
            pattern = _NUMBER.sub("*", file.path)
            alike.setdefault((pattern, file.before, file.prepared, file.after), []).append(file.path)
    if not alike:
        return
    heading(screen, "Written to the machine")
    table = columns("file", "before", "with the claims", "after")
    for (pattern, *values), paths in alike.items():
        name = _ID.sub(r"\1*", paths[0]) if len(paths) == 1 else f"{pattern} ({len(paths)} files)"
        table.add_row(f"/{name}", *(value or "-" for value in values))
    screen.print(table)


def _name(result: ClaimResult) -> str:
    return f"{result.namespace}/{result.name}"
