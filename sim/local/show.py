"""The local run for people: what was published, what every claim got, the node before and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dranode.driver.cli.terminal import columns
from dranode.driver.core.claims.allocation import readable_results
from dranode.driver.core.claims.plugin import PictureLine
from dranode.sim.local.run import ClaimResult, LocalRun

Picture = Sequence[PictureLine]


def pictures(run: LocalRun, width: int) -> tuple[Picture, ...]:
    """The node as each driver draws it now; drivers that draw nothing are left out."""
    drawn = (
        service.plugin.picture(service.node.inventory, (record.holding for record in service.node.records()), width)
        for service in run.services.values()
    )
    return tuple(picture for picture in drawn if picture)


def show_pictures(screen: Console, title: str, drawn: Iterable[Picture]) -> None:
    """Print pictures under a title."""
    for picture in drawn:
        heading(screen, title)
        for line in picture:
            screen.print(Text.assemble(*line), no_wrap=True, overflow="ignore", crop=False)


def heading(screen: Console, text: str) -> None:
    """Print a title."""
    screen.print()
    screen.print(Text(text, style="bold"))


def show_claims(screen: Console, results: Iterable[ClaimResult]) -> None:
    """Print what became of every claim, and under the table why some got nothing."""
    results = tuple(results)
    if not results:
        screen.print("\nNo claim to prepare; name files with ResourceClaims.")
        return
    heading(screen, "Claims")
    table = columns("claim", "", "request", "device", "CPUs", "CDI device")
    for result in results:
        _claim_rows(table, result)
    screen.print(table)
    for result in results:
        for note in (*((result.error,) if result.error else ()), *result.notes):
            screen.print(Text.assemble("\n", (f"{result.namespace}/{result.name}", "bold"), ": ", note))


def _claim_rows(table: Table, result: ClaimResult) -> None:
    name = f"{result.namespace}/{result.name}"
    if result.error:
        requested = {one.request for one in readable_results(result.allocation)}
        table.add_row(name, Text("failed", style="red"), ", ".join(sorted(requested)), "", "", "")
        return
    # kubelet hears the main request's name; people want to see which alternative was taken.
    taken = [one.request for one in readable_results(result.allocation)]
    verdict = Text("prepared", style="green")
    if not result.devices:
        table.add_row(name, verdict, ", ".join(taken), "", "", "")
    shown: tuple[str, ...] = ()
    for index, device in enumerate(result.devices):
        request = next((one for one in taken if one.partition("/")[0] == device.request), device.request)
        taken = [one for one in taken if one != request] + [request]
        first = index == 0
        table.add_row(
            name if first else "",
            verdict if first else "",
            request,
            device.device,
            (result.cpus or "") if first else "",
            ", ".join(device.cdi) if device.cdi != shown else "",
        )
        shown = device.cdi
