"""`dranode machine`: captures, copies and shows a machine's files."""

import socket
from pathlib import Path
from typing import Any, Final

import click

from dranode.api.errors import number_of
from dranode.driver.cli.options import machine_option
from dranode.driver.machine.root import Root
from dranode.show.output import console, emit, output_option
from dranode.show.terminal import columns
from dranode.sim.machines.scratch import ScratchMachine
from dranode.tools.readers.capture import record, summarize, write_archive

_MOST_NAMED: Final = 5


@click.group
def command() -> None:
    """Capture a machine's files, show them, and create a machine that drivers may write to."""


@command.command(short_help="Save the files that drivers read in an archive.")
@machine_option
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The archive: .tar, .tar.gz or .tar.bz2 (default: the host's name, .tar.gz).",
)
def capture(root: Root, path: Path | None) -> None:
    """Save the files that drivers read in an archive that --machine accepts.

    Does not need root; files that only root may read are named and left out. The archive contains serial numbers and
    UUIDs of GPUs, but no processes, logs or command lines.

    \b
    Example:
      dranode machine capture -o node7.tar.gz
      dranode topology --machine node7.tar.gz
    """
    place = path or Path(f"{socket.gethostname() or 'machine'}.tar.gz")
    recording = record(root)
    write_archive(recording, place)
    size = place.stat().st_size
    click.echo(
        f"{place}: {number_of(len(recording.files), 'file')}, {number_of(len(recording.links), 'link')}, "
        f"{number_of(len(recording.devices), 'device node')}, {size / 1024:.0f} KiB"
    )
    for name in sorted(recording.left_out)[:_MOST_NAMED]:
        click.echo(f"left out /{name}: {recording.left_out[name]}", err=True)
    if len(recording.left_out) > _MOST_NAMED:
        click.echo(f"left out {len(recording.left_out) - _MOST_NAMED} more", err=True)


@command.command(short_help="Write a made-up machine to a new folder.")
@machine_option
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def copy(root: Root, folder: Path) -> None:
    """Write a made-up machine to the new folder DIR, for --machine scratch:DIR, which drivers may write to.

    Copy a machine that is a folder with cp -r, and unpack an archive of `dranode machine capture` with tar.

    \b
    Example:
      dranode machine copy --machine sockets=2,cores=8,gpus=4 server
      dranode local --machine scratch:server --drivers cpu,gpu claims.yaml
    """
    ScratchMachine.copy(root, folder)
    click.echo(f"{folder}: use it as --machine scratch:{folder}, which drivers may write to")


@command.command("show", short_help="Show what a machine's files contain.")
@machine_option
@output_option
def show_machine(root: Root, output: str) -> None:
    """Show what a machine's files contain, in the kernel's own terms; `dranode topology` draws the CPUs.

    \b
    Example:
      dranode machine show --machine node7.tar.gz
    """
    summary = summarize(root)
    if not emit(summary, output):
        _tables(summary)


def _tables(summary: dict[str, Any]) -> None:
    screen = console()
    facts = columns("machine", "")
    rows = {
        "CPUs online": summary["cpus"],
        "CPUs present": summary["present"],
        "CPU folders": summary["cpuFolders"],
        "CPUs isolated": summary["isolated"],
        "SMT control": summary["smt"],
        "NUMA nodes": summary["numa"],
        "with memory": summary["memory"],
        "PCI devices": summary["pci"],
    }
    for name, value in rows.items():
        facts.add_row(name, "unknown" if value is None else str(value) or "none")
    screen.print(facts)
    if summary["accelerators"]:
        screen.print("\nGPUs and accelerators", style="bold")
        table = columns("PCI address", "vendor", "device", "class", "NUMA node", "driver")
        for accelerator in summary["accelerators"]:
            table.add_row(*("-" if value is None else value for value in accelerator.values()))
        screen.print(table)
    if summary["nodes"]:
        screen.print("\nDevice nodes", style="bold")
        table = columns("device node", "number")
        for path, number in summary["nodes"].items():
            table.add_row(path, number)
        screen.print(table)
