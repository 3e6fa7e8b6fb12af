"""Leaves out of an inventory what the API server would reject, and says what and why.

The API server rejects a whole slice for one device that breaks a rule (`dranode.api.slice_validation`). An attribute
only describes a device, so it is left out alone. Anything else is an obligation (a taint, a counter, a policy), so the
whole device is left out.
"""

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from dranode.api.field_errors import FieldError
from dranode.api.resource import CounterSet, Device, DeviceAttribute
from dranode.api.slice_validation import (
    MAX_ENTRIES,
    MAX_VALUES,
    attribute_errors,
    counter_set_errors,
    device_errors,
    value_count,
)
from dranode.driver.claims.plugin import Inventory


def publishable(inventory: Inventory) -> Inventory:
    """Return the inventory without what the API server would reject; a warning names everything that is left out."""
    problems: list[str] = []
    counters: list[CounterSet] = []
    for counter_set in inventory.counters:
        refusals = [_sentence(error) for error in counter_set_errors(counter_set, "")]
        if counter_set.name in {kept.name for kept in counters}:
            refusals = ["another one has that name"]
        problems += [f'counter set "{counter_set.name}" is left out: {refusal}' for refusal in refusals]
        if not refusals:
            counters.append(counter_set)
    devices: list[Device] = []
    names: Counter[str] = Counter()
    # Only the counter sets that are kept: a device that consumes counters of another one is left out below.
    known = {counter_set.name: frozenset(counter_set.counters) for counter_set in counters}
    for device in inventory.devices:
        names[device.name] += 1
        if names[device.name] > 1:
            problems.append(f'device "{device.name}" is left out: another one has that name')
            continue
        unknown = [
            f"{consumption.counter_set}/{name}"
            for consumption in device.consumes_counters
            for name in consumption.counters
            if name not in known.get(consumption.counter_set, ())
        ]
        if unknown:
            problems.append(f'device "{device.name}" is left out: it consumes unknown counters {", ".join(unknown)}')
            continue
        kept, removals = sanitize(device)
        problems += removals
        if kept is not None:
            devices.append(kept)
    if not problems:
        return inventory
    return replace(
        inventory, devices=tuple(devices), counters=tuple(counters), warnings=(*inventory.warnings, *problems)
    )


def sanitize(device: Device) -> tuple[Device | None, tuple[str, ...]]:
    """Remove from a device what the API server would reject, and return a sentence for each removal.

    The device is None if it cannot be published at all.
    """
    removed: dict[str, str] = {}
    for name, attribute in device.attributes.items():
        for error in attribute_errors(name, attribute, ""):
            # The first error is enough, since the attribute is left out anyway.
            removed.setdefault(name, error.message)
    kept = {name: attribute for name, attribute in device.attributes.items() if name not in removed}
    removed.update(_surplus(kept, len(device.capacity)))
    if removed:
        device = replace(device, attributes=kept)
    # Checked after the removals, so that only errors of the rest count.
    refusals = [_sentence(error) for error in device_errors(device, "")]
    if refusals:
        return None, tuple(f'device "{device.name}" is left out: {refusal}' for refusal in refusals)
    return device, tuple(
        f'attribute "{name}" of device "{device.name}" is left out: {problem}' for name, problem in removed.items()
    )


def _sentence(error: FieldError) -> str:
    field = error.path.removeprefix(".")
    return f"{field}: {error.message}" if field else error.message


def _surplus(kept: dict[str, DeviceAttribute], capacities: int) -> Iterator[tuple[str, str]]:
    """Remove attributes from `kept` until the limits on values (longest list first) and entries (last first) hold."""
    # Capacities are never removed: kube-scheduler counts with them.
    sizes = {name: value_count(attribute) for name, attribute in kept.items()}
    while (total := sum(sizes.values())) > MAX_VALUES:
        name = max(sizes, key=lambda name: (sizes[name], list(sizes).index(name)))
        del kept[name], sizes[name]
        yield name, f"the device has {total} attribute values, more than {MAX_VALUES}"
    while (total := len(kept) + capacities) > MAX_ENTRIES and kept:
        name = next(reversed(kept))
        del kept[name]
        yield name, f"the device has {total} attributes and capacities, more than {MAX_ENTRIES}"
