"""`dranode slices`: shows the ResourceSlices that this machine would publish."""

from typing import Any

import click

from dranode.api.documents import encode
from dranode.api.resource import ResourceSlice
from dranode.driver.claims.plugin import Health
from dranode.driver.cli.options import DriverCommand, driver_options, machine_option
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_plugins
from dranode.driver.slices.desired import desired_slices, tainted
from dranode.driver.slices.plan import complete_slice
from dranode.driver.slices.publishable import publishable
from dranode.show.output import console, emit, output_option, report_oddities
from dranode.show.terminal import show_slices


@click.command("slices", cls=DriverCommand, short_help="Show the ResourceSlices that this machine would publish.")
@machine_option
@driver_options
@output_option
def command(root: Root, drivers: tuple[str, ...], node_name: str, output: str, **options: Any) -> None:
    """Show the ResourceSlices that this machine would publish, and what is left out because the API would reject it.

    -o yaml and -o json print a List, which other commands and kubectl accept.

    \b
    Example:
      dranode slices --machine sockets=2,numa=2,l3=4,cores=4,threads=2
      dranode slices --node-name worker --device-taints -o yaml
    """
    slices: list[ResourceSlice] = []
    notes: list[str] = []
    for plugin in load_plugins(drivers, root, {**options, "node_name": node_name}):
        inventory = publishable(plugin.discover())
        health = tuple(plugin.health(inventory))
        if options["device_taints"]:
            inventory = tainted(plugin.driver, inventory, health)
        report_oddities(plugin.driver, inventory.warnings)
        specs = desired_slices(plugin.driver, node_name, inventory)
        notes += (f"{plugin.driver}: {note}" for note in inventory.kept_back)
        notes += (
            f"{plugin.driver}: {device.device} is unhealthy: {device.message}"
            for device in health
            if device.health is Health.UNHEALTHY
        )
        slices += [complete_slice(spec, index, len(specs)) for index, spec in enumerate(specs)]
    if not emit({"apiVersion": "v1", "kind": "List", "items": encode(slices)}, output):
        screen = console()
        show_slices(screen, slices)
        for note in notes:
            screen.print(note)
