"""`dranode demo`: the driver at work on a made-up server, in one command."""

from importlib import resources
from pathlib import Path
from typing import Final

import click

from dranode.driver.plugins import load_plugins
from dranode.show.output import console, reporting
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.workload import read_workload
from dranode.sim.local.run import local_run
from dranode.sim.local.show import heading, kept_back, picture_of, show_claims, show_picture, show_published
from dranode.sim.machines.forms import open_machine

MACHINE: Final = "sockets=2,numa=4,cores=4,threads=2"
# The demo shows one claim that cannot fit; anything else that fails is a failure of the demo.
_CANNOT_FIT: Final = "too-large"


@click.command(short_help="Watch four claims on a made-up server.")
@click.option("-v", "--verbose", is_flag=True, help="Show the CDI devices of every claim too.")
def command(*, verbose: bool) -> None:
    """Show a DRA node driver at work, without a cluster, root or hardware.

    A server with 2 sockets, 8 NUMA nodes and 64 CPUs publishes its devices. Three of four claims are allocated,
    prepared over kubelet's gRPC API and unprepared again. The fourth cannot fit, and the demo shows why.

    \b
    Example:
      dranode demo
    """
    from dranode.driver.machine.yaml_files import load_documents

    screen = console()
    with resources.as_file(resources.files("dranode.sim.cli") / "demo.yaml") as claims:
        text = Path(claims).read_text(encoding="utf-8")
        workload = read_workload(load_documents([claims]), Features())
    plugins = load_plugins(["cpu"], open_machine(MACHINE), {})
    screen.print(f"dranode local --machine {MACHINE} demo.yaml", style="bold")
    screen.print(f"\n{text}", end="", markup=False)
    with reporting(screen) as progress, local_run(plugins, "demo-node", None, Features(), progress) as run:
        show_published(screen, run.slices(), kept_back(run))
        show_picture(screen, "Before", picture_of(run))
        results = run.run(workload, progress)
        show_claims(screen, results, verbose=verbose)
        show_picture(screen, "With the claims prepared", picture_of(run))
        unprepared = not run.unprepare()
    failed = [result.name for result in results if result.error]
    heading(screen, "All claims are unprepared; nothing is left." if unprepared else "Some claims are still on record.")
    if failed != [_CANNOT_FIT] or not unprepared:
        screen.print(f"The demo expected only {_CANNOT_FIT} to fail, but these failed: {', '.join(failed) or 'none'}.")
        raise click.exceptions.Exit(1)
