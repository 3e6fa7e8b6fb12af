"""`dranode topology`: the machine, and who holds which CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from dranode.cpu.draw import picture
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.driver.cli.machine_option import machine_option
from dranode.driver.cli.output import console, emit, output_option
from dranode.driver.core.cpuset import CPUSet
from dranode.driver.machine.root import Root


@click.command
@machine_option
@output_option
def command(root: Root, output: str) -> None:
    """Show the machine's CPUs, and who holds which.

    \b
    Example:
      dranode topology
      dranode topology --machine sockets=2,numa=4,l3=2,cores=4,threads=2
      dranode topology --machine capture.tar.bz2 -o json
    """
    topology = read_topology(root)
    holders = read_holders()
    if not emit(topology_document(topology, holders), output):
        show(topology, holders)


def read_holders() -> Mapping[str, CPUSet]:
    """What each claim on record holds, by `<namespace>/<claim>`."""
    return {}


def topology_document(topology: Topology, holders: Mapping[str, CPUSet]) -> dict[str, Any]:
    """The machine as a plain document; CPU sets are cpu-lists, lists are sorted by first CPU."""
    return {
        "cpus": str(topology.online),
        "offline": str(topology.offline),
        "isolated": str(topology.isolated),
        "smt": topology.smt,
        "cores": [str(cpus) for cpus in topology.cores],
        "packages": [str(cpus) for cpus in topology.packages.values()],
        "l3": [str(cpus) for cpus in topology.l3],
        "numa": {str(node): str(cpus) for node, cpus in topology.numa.items()},
        "core_types": {name: str(cpus) for name, cpus in topology.core_types.items()},
        "holders": {claim: str(cpus) for claim, cpus in holders.items()},
    }


def show(topology: Topology, holders: Mapping[str, CPUSet]) -> None:
    """Draw the machine on the terminal."""
    from rich.text import Text  # noqa: PLC0415 - people's output only

    screen = console()
    for line in picture(topology, holders, screen.width):
        screen.print(Text.assemble(*line), no_wrap=True, overflow="ignore", crop=False)
