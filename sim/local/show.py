"""The local run for people: the published devices, the result of every claim, and the node before and after."""

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
# A pod's UID or a container's ID, of which the beginning is enough to recognize it.
_ID: Final = re.compile("([0-9a-f]{8})[0-9a-f_-]{24,}")


def views_of(run: LocalRun) -> tuple[DriverView, ...]:
    """Return a view of each driver of the node."""
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
    """Return one sentence for everything that the node's drivers do not publish on purpose."""
    return tuple(
        f"{driver}: {note}" for driver, service in run.services.items() for note in service.node.inventory.kept_back
    )


def show_published(screen: Console, slices: Iterable[ResourceSlice], notes: Iterable[str]) -> None:
    """Print the node's first devices, and the notes on those that are not published."""
    show_slices(screen, slices, most=12)
    for note in notes:
        screen.print(note, markup=False)


def picture_of(run: LocalRun) -> NodePicture:
    """Return a picture of the node with the devices of all its drivers."""
    return node_picture(views_of(run))


def run_picture(
    node: str, before: Sequence[DriverView], after: Sequence[DriverView], results: Iterable[ClaimResult]
) -> FleetPicture:
    """Return a picture of the node before and after, with the claims that failed."""
    results = tuple(results)
    shares = {_name(result): shares_of(result.allocation) for result in results if result.allocation is not None}
    waiting = [WaitingPod(_name(result), (_name(result),), (result.error,)) for result in results if result.error]
    return views_picture(
        f"Local run on {node}", node, [("before", before), ("after", after)], shares=shares, waiting=waiting
    )


def show_picture(screen: Console, title: str, picture: NodePicture) -> None:
    """Print a node under a title, unless there is nothing to draw."""
    if picture.layout is not None or picture.devices:
        heading(screen, title)
        show_node(screen, picture)


def heading(screen: Console, text: str) -> None:
    """Print a title."""
    screen.print()
    screen.print(Text(text, style="bold"))


def show_claims(screen: Console, results: Iterable[ClaimResult], *, verbose: bool = False) -> None:
    """Print the result of every claim, and below the table why some failed; with `verbose`, also CDI devices."""
    results = tuple(results)
    if not results:
        screen.print("\nNo claim to prepare; pass files with ResourceClaims.")
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
        requested = {device.request for device in readable_results(result.allocation)}
        table.add_row(name, Text("failed", style="red"), ", ".join(sorted(requested)), "", "")
        return
    # kubelet only learns the main request's name, but people want to see the chosen alternative.
    requests = [allocated.request for allocated in readable_results(result.allocation)]
    verdict = Text("prepared", style="green")
    if not result.devices:
        table.add_row(name, verdict, ", ".join(requests), "", "")
    shown: set[str] = set()
    for index, device in enumerate(result.devices):
        request = next((name for name in requests if name.partition("/")[0] == device.request), device.request)
        requests = [name for name in requests if name != request] + [request]
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
    """Return the CPUs of a request for its first device; those of the claim if they are not known per request."""
    name = request if result.request_cpus else ""
    if name in shown:
        return ""
    shown.add(name)
    return result.request_cpus.get(name, "") if result.request_cpus else result.cpus or ""


def _amount(result: ClaimResult, device: str) -> str:
    amount = result.amounts.get(device)
    return "" if amount is None else str(Quantity.binary(amount))


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
    """A file of the machine that drivers wrote to; its content is empty if it does not exist.

    Attributes:
        path: relative to the machine's root.
        before: its content before the run.
        prepared: its content with the claims prepared.
        after: its content at the end.
    """

    path: str
    before: str
    prepared: str
    after: str


def written_files(machine: WritableMachine, prepared: Mapping[str, str]) -> tuple[WrittenFile, ...]:
    """Return the written files; `prepared` is their content with the claims prepared."""
    after = machine.held()
    return tuple(
        WrittenFile(path, before, prepared.get(path, before), after[path]) for path, before in machine.before.items()
    )


def show_written(screen: Console, files: Iterable[WrittenFile]) -> None:
    """Print the content of each written file; files with the same changes share a row."""
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
