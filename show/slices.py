"""The table of ResourceSlices that `slices`, `local` and `demo` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dranode.api.errors import number_of
from dranode.api.resource import Device, DeviceAttribute, DeviceCapacity, ResourceSlice
from dranode.show.terminal import columns

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
