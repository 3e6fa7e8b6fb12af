"""`dranode slices`: show the ResourceSlices that this machine would publish; `local` and `demo` print its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from dranode.driver.cli.options import DriverCommand, driver_options, machine_option
from dranode.driver.cli.output import console, emit, output_option, report_oddities
from dranode.driver.cli.terminal import columns
from dranode.driver.core.api.documents import encode
from dranode.driver.core.api.resource import Device, DeviceAttribute, DeviceCapacity, ResourceSlice
from dranode.driver.core.api.sentence import number_of
from dranode.driver.core.slices.desired import desired_slices, publishable
from dranode.driver.core.slices.plan import complete_slice
from dranode.driver.machine.root import Root
from dranode.driver.plugins import load_plugins

if TYPE_CHECKING:
    from rich.console import Console


def show_slices(screen: Console, slices: Iterable[ResourceSlice], *, most: int | None = None) -> None:
    """Print the number of slices and devices, and a row for each of the first `most` devices."""
    slices = tuple(slices)
    devices = [(published.spec.driver, device) for published in slices for device in published.spec.devices]
    screen.print(f"{number_of(len(devices), 'device')} in {number_of(len(slices), 'ResourceSlice')}", style="bold")
    table = columns("driver", "device", "capacity", "attributes")
    for driver, device in devices[:most]:
        # Names of hardware may have brackets, which rich would read as markup.
        table.add_row(driver, device.name, _capacities(device), " ".join(_attributes(device)))
    for published in slices:
        for counters in published.spec.shared_counters:
            amounts = " ".join(f"{name} {counter.value}" for name, counter in counters.counters.items())
            table.add_row(published.spec.driver, counters.name, amounts, "counters that devices share")
        if not (published.spec.devices or published.spec.shared_counters):
            table.add_row(published.spec.driver, "none", "", "an empty slice shows that the driver is alive")
    screen.print(table)
    rest = Counter(driver for driver, _ in devices[len(devices) if most is None else most :])
    for driver, count in sorted(rest.items()):
        screen.print(f"... and {count} more of {driver}; `dranode slices` shows them all")


def _capacities(device: Device) -> str:
    return "\n".join(f"{_short(name)} {_capacity(capacity)}" for name, capacity in device.capacity.items())


def _capacity(capacity: DeviceCapacity) -> str:
    policy = capacity.request_policy
    if policy is None:
        return f"{capacity.value}"
    if policy.valid_range is not None:
        return f"{capacity.value} (from {policy.valid_range.min} in steps of {policy.valid_range.step or 'any size'})"
    return f"{capacity.value} (only {', '.join(map(str, policy.valid_values))})"


def _attributes(device: Device) -> Iterator[str]:
    for name, attribute in device.attributes.items():
        yield f"{_short(name)}={_value(attribute)}"
    for taint in device.taints:
        yield f"taint {taint.key}={taint.value}:{taint.effect}"


def _value(attribute: DeviceAttribute) -> str:
    values = (getattr(attribute, field) for field in attribute.__struct_fields__)
    value = next(value for value in values if value is not None)
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _short(name: str) -> str:
    """Return an attribute's or capacity's name without its domain, which is the driver's or a standard one."""
    return name.rpartition("/")[2]


@click.command("slices", cls=DriverCommand, short_help="The ResourceSlices that this machine would publish.")
@machine_option
@driver_options
@output_option
def command(root: Root, drivers: tuple[str, ...], node_name: str, output: str, **options: Any) -> None:
    """The ResourceSlices that this machine would publish; what the API would refuse is left out and named.

    -o yaml and -o json are a List, as other commands and kubectl take it.

    \b
    Example:
      dranode slices --machine sockets=2,numa=2,l3=4,cores=4,threads=2
      dranode slices --node-name worker --device-taints -o yaml
    """
    slices: list[ResourceSlice] = []
    notes: list[str] = []
    for plugin in load_plugins(drivers, root, {**options, "node_name": node_name}):
        inventory = publishable(plugin.discover())
        report_oddities(plugin.driver, inventory.warnings)
        specs = desired_slices(plugin.driver, node_name, inventory)
        notes += (f"{plugin.driver}: {note}" for note in inventory.notes)
        slices += [complete_slice(spec, index, len(specs)) for index, spec in enumerate(specs)]
    if not emit({"apiVersion": "v1", "kind": "List", "items": encode(slices)}, output):
        screen = console()
        show_slices(screen, slices)
        for note in notes:
            screen.print(note)
