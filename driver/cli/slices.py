"""`dranode slices`: what this machine would publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dranode.driver.cli.machine_option import machine_option
from dranode.driver.cli.options import driver_options
from dranode.driver.cli.output import console, emit, output_option
from dranode.driver.core.documents import encode
from dranode.driver.core.slice_plan import complete_slice
from dranode.driver.core.slices import desired_slices, publishable
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_plugins

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dranode.driver.core.resource import Device, DeviceAttribute, DeviceCapacity, ResourceSlice


@click.command("slices", short_help="The ResourceSlices that this machine would publish.")
@machine_option
@driver_options
@output_option
def command(root: Root, drivers: tuple[str, ...], node_name: str, output: str, **options: Any) -> None:
    """The ResourceSlices that this machine would publish; what the API would refuse is left out and named.

    \b
    Example:
      dranode slices --machine sockets=2,numa=2,l3=4,cores=4,threads=2 --group-by socket
      dranode slices --driver cpu --driver gpu -o yaml
    """
    slices: list[ResourceSlice] = []
    for plugin in load_plugins(drivers, root, {**options, "node_name": node_name}):
        inventory = publishable(plugin.discover())
        for warning in inventory.warnings:
            click.echo(f"dranode: {plugin.driver}: {warning}", err=True)
        specs = desired_slices(plugin.driver, node_name, inventory)
        slices += [complete_slice(spec, index, len(specs)) for index, spec in enumerate(specs)]
    if not emit(encode(slices), output):
        _draw(slices)


def _draw(slices: Iterable[ResourceSlice]) -> None:
    from rich.table import Table

    for one in slices:
        pool = one.spec.pool
        table = Table(
            "device",
            "capacity",
            "attributes",
            title=f"{one.metadata.generate_name}* of pool {pool.name} ({pool.resource_slice_count} slices)",
            title_justify="left",
        )
        for device in one.spec.devices:
            table.add_row(device.name, _capacities(device), _attributes(device))
        for counters in one.spec.shared_counters:
            amounts = ", ".join(f"{name}={counter.value}" for name, counter in counters.counters.items())
            table.add_row(counters.name, amounts, "counters that devices share")
        if not (one.spec.devices or one.spec.shared_counters):
            table.add_row("none", "", "an empty slice shows that the driver is alive")
        console().print(table)


def _capacities(device: Device) -> str:
    return "\n".join(f"{name}={_capacity(capacity)}" for name, capacity in device.capacity.items())


def _capacity(capacity: DeviceCapacity) -> str:
    policy = capacity.request_policy
    if policy is None:
        return f"{capacity.value}"
    if policy.valid_range is not None:
        return f"{capacity.value} (from {policy.valid_range.min} in steps of {policy.valid_range.step or 'any size'})"
    return f"{capacity.value} (only {', '.join(map(str, policy.valid_values))})"


def _attributes(device: Device) -> str:
    shown = [f"{name}={_value(attribute)}" for name, attribute in device.attributes.items()]
    shown += [f"taint {taint.key}={taint.value}:{taint.effect}" for taint in device.taints]
    return ", ".join(shown)


def _value(attribute: DeviceAttribute) -> str:
    values = (getattr(attribute, field) for field in attribute.__struct_fields__)
    value = next(value for value in values if value is not None)
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
