"""`dranode topology`: the machine, and who holds which CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from dranode.api.cpuset import CPUSet
from dranode.api.errors import LedgerError, UsageError
from dranode.cpu.plugin import CPUPlugin
from dranode.cpu.sysfs import read_topology
from dranode.cpu.topology import Topology
from dranode.driver.cli.options import machine_option
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_installed
from dranode.show.ledger_reading import read_ledger
from dranode.show.output import console, emit, output_option, picture_options, write_pictures
from dranode.show.picture.node import node_picture
from dranode.show.terminal import show_node
from dranode.show.views import driver_views, machine_picture, records_root
from dranode.tools.cli.links import readings_document, show_links, show_readings

_CPUS: Final = "sys/devices/system/cpu"
_OF_CPUS: Final = ("cpus", "offline", "isolated", "nohz_full", "smt", "cores", "packages", "l3", "numa", "core_types")


@click.command(short_help="The CPUs and devices of a machine in their NUMA nodes, and who holds which.")
@machine_option
@click.option(
    "--kubelet-root",
    envvar="DRANODE_KUBELET_ROOT",
    metavar="DIR",
    help="Whose records say who holds what (default /var/lib/kubelet, on the host).",
)
@click.option(
    "--links",
    is_flag=True,
    help="Show how near GPUs, NICs, CPUs and memory are to each other.",
)
@picture_options
@output_option
def command(
    root: Root, kubelet_root: str | None, output: str, html: str | None, svg: str | None, *, links: bool
) -> None:
    """Show the machine's CPUs and devices in their NUMA nodes, and who holds which.

    With --links, the devices are those that installed drivers would publish, and all network controllers. Links beside
    PCIe, such as NVLink, are not looked at.

    \b
    Example:
      dranode topology
      dranode topology --machine sockets=2,numa=4,l3=2,cores=4,threads=2
      dranode topology --machine capture.tar.bz2 -o json
      dranode topology --svg node.svg
      dranode topology --links
    """
    if links:
        if html or svg or kubelet_root:
            raise UsageError("--links shows a table; leave out --html, --svg and --kubelet-root")
        show_links(root, output)
        return
    # A machine may be made up of other devices alone; one whose CPUs cannot be read is an error.
    topology = read_topology(root) if root.exists(_CPUS) else None
    holders = read_holders(root, kubelet_root)
    views = driver_views(load_installed(root), records_root(root, kubelet_root))
    emit(topology_document(topology, holders) | {"readings": readings_document(views.readings)}, output)
    # A table has what is odd about the CPUs in its heading.
    odd = topology.warnings if topology is not None and output != "table" else ()
    for sentence in (*views.unseen, *views.warnings, *odd):
        click.echo(f"dranode: {sentence}", err=True)
    write_pictures(html, svg, lambda: machine_picture("Node", root, views))
    if output == "table":
        picture = node_picture(views.drivers)
        show_node(console(), picture, marked=bool(picture.claims))
        show_readings(console(), [each for theirs in views.readings.values() for each in theirs])


def read_holders(root: Root, kubelet_root: str | None) -> Mapping[str, CPUSet]:
    """Return what each claim on record holds, by `<namespace>/<claim>`; nothing for a machine that is not this one.

    A ledger at the default kubelet root that cannot be read is a warning on stderr and no holders.

    Raises:
        LedgerError: the ledger of the kubelet root that was asked for cannot be read.
    """
    folder = records_root(root, kubelet_root)
    if folder is None:
        return {}
    try:
        records = read_ledger(folder / "plugins" / CPUPlugin.driver / "ledger.db").records
    except LedgerError as error:
        # A user who only looks at the machine need not be root.
        if kubelet_root is not None:
            raise
        click.echo(f"dranode: who holds what is not known: {error}", err=True)
        return {}
    return {str(record.ref): record.held for record in records if record.held}


def topology_document(topology: Topology | None, holders: Mapping[str, CPUSet]) -> dict[str, Any]:
    """The machine as `topology -o json` prints it, with the holders by `<namespace>/<claim>`.

    CPU sets are cpu-lists (cpuset(7), list format), lists are sorted by first CPU. Of a machine that has no CPU folder
    all but the holders is null.
    """
    of_claims = {claim: str(cpus) for claim, cpus in holders.items()}
    if topology is None:
        return {**dict.fromkeys(_OF_CPUS), "holders": of_claims}
    return {
        "cpus": str(topology.online),
        "offline": str(topology.offline),
        "isolated": str(topology.isolated),
        "nohz_full": str(topology.nohz_full),
        "smt": topology.smt,
        "cores": [str(cpus) for cpus in topology.cores],
        "packages": [str(cpus) for cpus in topology.packages.values()],
        "l3": [str(cpus) for cpus in topology.l3],
        "numa": {str(node): str(cpus) for node, cpus in topology.numa.items()},
        "core_types": {name: str(cpus) for name, cpus in topology.core_types.items()},
        "holders": of_claims,
    }
