"""Checks a device or a ResourceSlice by the API server's rules before it is sent.

Source: validation of `resource.k8s.io/v1` (pkg/apis/resource/validation, KEP-4381, 4815, 5055, 5075, 5517). For one
device that breaks a rule, the server would reject the whole slice, so `sanitize` removes the offending part and names
it. An attribute only describes a device, so it is left out alone. Anything else is an obligation (a taint, a counter, a
policy), so the whole device is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from dranode.api.capacity_policy import policy_problems
from dranode.api.documents import is_time
from dranode.api.names import (
    is_dns_label,
    is_dns_subdomain,
    is_label_name,
    is_label_value,
    is_qualified_name,
)
from dranode.api.resource import (
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCounterConsumption,
    DeviceTaint,
    NodeAllocatableResource,
    ResourceSliceSpec,
)
from dranode.api.semver import is_semver

# The limits of k8s.io/api/resource/v1 (types.go of 1.37), with their names there.
MAX_DEVICES: Final = 128  # ResourceSliceMaxDevices
# Devices with taints, counters or list attributes are large, and the API allows half as many of them in a slice.
MAX_LARGE_DEVICES: Final = 64  # ResourceSliceMaxDevicesWithAdvancedFeatures
MAX_COUNTER_SETS: Final = 8  # ResourceSliceMaxCounterSets
MAX_COUNTERS: Final = 32  # ResourceSliceMaxCountersPerCounterSet
MAX_CONSUMPTIONS: Final = 2  # ResourceSliceMaxDeviceCounterConsumptionsPerDevice
MAX_GROUPS: Final = 2  # DeviceCompatibilityGroupsMaxSize
MAX_ENTRIES: Final = 32  # ResourceSliceMaxAttributesAndCapacitiesPerDevice
MAX_VALUES: Final = 48  # ResourceSliceMaxAttributeValuesPerDevice
MAX_TAINTS: Final = 16  # DeviceTaintsMaxLength
MAX_CONDITIONS: Final = 4  # BindingConditionsMaxSize, BindingFailureConditionsMaxSize
MAX_STRING: Final = 64  # DeviceAttributeMaxValueLength

_EFFECTS: Final = frozenset({"None", "NoSchedule", "NoExecute"})
_NODE_RESOURCE: Final = r"cpu|memory|ephemeral-storage|hugepages-\S+"


def is_large(device: Device) -> bool:
    """Return whether the device is large, so that its slice may have only half as many devices."""
    return bool(device.taints or device.consumes_counters) or any(
        is_list(attribute) for attribute in device.attributes.values()
    )


def is_list(attribute: DeviceAttribute) -> bool:
    """Return whether the attribute has a list type (DRAListTypeAttributes)."""
    return _list_of(attribute) is not None


def sanitize(device: Device) -> tuple[Device | None, tuple[str, ...]]:
    """Remove from a device what the API server would reject, and return a sentence for each removal.

    The device is None if it cannot be published at all.
    """
    problems = [*_device_problems(device)]
    if problems:
        return None, tuple(f'device "{device.name}" is left out: {problem}' for problem in problems)
    kept: dict[str, DeviceAttribute] = {}
    for name, attribute in device.attributes.items():
        problem = attribute_problem(name, attribute)
        if problem is None:
            kept[name] = attribute
        else:
            problems.append(f'attribute "{name}" of device "{device.name}" is left out: {problem}')
    problems += [
        f'attribute "{name}" of device "{device.name}" is left out: {problem}'
        for name, problem in _surplus(kept, len(device.capacity))
    ]
    return (msgspec.structs.replace(device, attributes=kept) if problems else device), tuple(problems)


def counter_set_problems(counters: CounterSet) -> tuple[str, ...]:
    """Return a sentence for each reason why the API server would reject the counter set."""
    problems = _counters(counters.name, counters.counters)
    return tuple(f'counter set "{counters.name}" is left out: it {problem}' for problem in problems)


def attribute_problem(name: str, attribute: DeviceAttribute) -> str | None:
    """Return why the API server would reject the attribute, or None."""
    if not is_qualified_name(name):
        return "its name is not [<DNS subdomain of 63>/]<C identifier of 32>"
    values = {field: value for field in attribute.__struct_fields__ if (value := getattr(attribute, field)) is not None}
    if len(values) != 1:
        return f"it has {len(values)} values of different types, but may have only one"
    ((field, value),) = values.items()
    if isinstance(value, tuple):
        if not value:
            return "its list is empty"
        return next((problem for item in value if (problem := _VALUE_PROBLEM[field](item))), None)
    return _VALUE_PROBLEM[field](value)


def _int_problem(value: int) -> str | None:
    return None if -(1 << 63) <= value < 1 << 63 else f"{value} does not fit in 64 bits"


def _bool_problem(value: bool) -> str | None:  # noqa: FBT001 - one of the table's checks
    del value
    return None


def _string_problem(value: str) -> str | None:
    # The API counts bytes, not characters.
    size = len(value.encode("utf-8", "surrogatepass"))
    return None if size <= MAX_STRING else f'"{value}" has {size} bytes, more than {MAX_STRING}'


def _version_problem(value: str) -> str | None:
    if not is_semver(value):
        return f'"{value}" is not a semantic version 2.0.0 such as 1.2.3'
    return _string_problem(value)


_VALUE_PROBLEM: Final[Mapping[str, Callable[..., str | None]]] = {
    "int_": _int_problem,
    "ints": _int_problem,
    "bool_": _bool_problem,
    "bools": _bool_problem,
    "string": _string_problem,
    "strings": _string_problem,
    "version": _version_problem,
    "versions": _version_problem,
}


def _list_of(attribute: DeviceAttribute) -> tuple[object, ...] | None:
    lists = (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    return next((values for values in lists if values is not None), None)


def _surplus(kept: dict[str, DeviceAttribute], capacities: int) -> Iterator[tuple[str, str]]:
    """Remove attributes from `kept` until the limits on values (longest list first) and entries (last first) hold."""
    # Capacities are never removed: kube-scheduler counts with them.
    sizes = {name: len(_list_of(attribute) or (attribute,)) for name, attribute in kept.items()}
    while (total := sum(sizes.values())) > MAX_VALUES and kept:
        name = max(sizes, key=lambda name: (sizes[name], list(sizes).index(name)))
        del kept[name], sizes[name]
        yield name, f"the device has {total} attribute values, more than {MAX_VALUES}"
    while (total := len(kept) + capacities) > MAX_ENTRIES:
        name = next(reversed(kept))
        del kept[name]
        yield name, f"the device has {total} attributes and capacities, more than {MAX_ENTRIES}"


def frame_problems(spec: ResourceSliceSpec) -> Iterator[str]:
    """Yield the errors of a slice in its names, pool and node, not in its devices and counters."""
    if not is_dns_subdomain(spec.driver, 63):
        yield f'the driver\'s name "{spec.driver}" is not a DNS subdomain of at most 63 characters'
    pool = spec.pool
    if len(pool.name) > 253 or not all(map(is_dns_subdomain, pool.name.split("/"))):  # noqa: PLR2004 - API's limit
        yield f'the pool\'s name "{pool.name}" is not one or more DNS subdomains joined by "/", 253 characters in all'
    if pool.generation < 0 or pool.resource_slice_count < 1:
        yield f"generation {pool.generation} and {pool.resource_slice_count} slices cannot be a pool"
    places = (spec.node_name, spec.node_selector, spec.all_nodes, spec.per_device_node_selection)
    if sum(place is not None for place in places) != 1:
        yield "a slice has exactly one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection"
    own = spec.per_device_node_selection is True
    for device in spec.devices:
        places = (device.node_name, device.node_selector, device.all_nodes, None)
        if sum(place is not None for place in places) != int(own):
            yield f'device "{device.name}" {"needs one node selection of its own" if own else "has its own nodes"}'


def _device_problems(device: Device) -> Iterator[str]:
    """Yield the errors that cannot be removed without changing what the device promises."""
    if not is_dns_label(device.name):
        yield "its name is not a DNS label of at most 63 characters"
    if len(device.capacity) > MAX_ENTRIES:
        yield f"{len(device.capacity)} capacities are more than {MAX_ENTRIES}"
    for name, capacity in device.capacity.items():
        if not is_qualified_name(name):
            yield f'the capacity "{name}" is not called [<DNS subdomain of 63>/]<C identifier of 32>'
        if capacity.request_policy is not None:
            # Without it kube-scheduler allocates the device as a whole, so a policy for parts of it has no meaning.
            if device.allow_multiple_allocations is not True:
                yield f'the capacity "{name}" has a requestPolicy, which needs allowMultipleAllocations'
            for problem in policy_problems(capacity.value, capacity.request_policy):
                yield f'the requestPolicy of capacity "{name}" {problem}'
    yield from _consumption_problems(device.consumes_counters)
    yield from _taint_problems(device.taints)
    yield from _condition_problems(device)
    for name, resource in device.node_allocatable_resources.items():
        yield from _node_resource_problems(device, name, resource)


def _consumption_problems(consumptions: tuple[DeviceCounterConsumption, ...]) -> Iterator[str]:
    if len(consumptions) > MAX_CONSUMPTIONS:
        yield f"it draws on {len(consumptions)} counter sets, more than {MAX_CONSUMPTIONS}"
    for name in sorted(_twice([consumption.counter_set for consumption in consumptions])):
        yield f'it names the counter set "{name}" twice'
    for consumption in consumptions:
        for problem in _counters(consumption.counter_set, consumption.counters):
            yield f'the counter set "{consumption.counter_set}" that it draws on {problem}'
        if len(consumption.compatibility_groups) > MAX_GROUPS:
            yield f"{len(consumption.compatibility_groups)} compatibility groups are more than {MAX_GROUPS}"


def _counters(name: str, counters: Mapping[str, object]) -> Iterator[str]:
    """Yield the errors of a counter set or of a consumption; each continues a sentence after the set's name."""
    if not is_dns_label(name):
        yield "has a name that is not a DNS label"
    if not 1 <= len(counters) <= MAX_COUNTERS:
        yield f"has {len(counters)} counters instead of 1 to {MAX_COUNTERS}"
    for counter in counters:
        if not is_dns_label(counter):
            yield f'has a counter "{counter}", which is not a DNS label'


def _taint_problems(taints: tuple[DeviceTaint, ...]) -> Iterator[str]:
    if len(taints) > MAX_TAINTS:
        yield f"{len(taints)} taints are more than {MAX_TAINTS}"
    for taint in taints:
        if not is_label_name(taint.key):
            yield f'the taint key "{taint.key}" is not a label name'
        if not is_label_value(taint.value):
            yield f'the value "{taint.value}" of taint "{taint.key}" is not a label value'
        if taint.effect not in _EFFECTS:
            yield f'the effect "{taint.effect}" of taint "{taint.key}" is not one of {", ".join(sorted(_EFFECTS))}'
        if taint.time_added is not None and not is_time(taint.time_added):
            yield f'timeAdded "{taint.time_added}" of taint "{taint.key}" is not an RFC 3339 time'


def _condition_problems(device: Device) -> Iterator[str]:
    binding, failure = device.binding_conditions, device.binding_failure_conditions
    if bool(binding) != bool(failure):
        yield "bindingConditions and bindingFailureConditions come together or not at all"
    for conditions in (binding, failure):
        if len(conditions) > MAX_CONDITIONS:
            yield f"{len(conditions)} binding conditions are more than {MAX_CONDITIONS}"
    for name in sorted(_twice([*binding, *failure])):
        yield f'the binding condition "{name}" is listed twice'
    for name in (*binding, *failure):
        if not is_label_name(name):
            yield f'the binding condition "{name}" is not a label name'


def _node_resource_problems(device: Device, name: str, resource: NodeAllocatableResource) -> Iterator[str]:
    if re.fullmatch(_NODE_RESOURCE, name, re.ASCII) is None:
        yield f'"{name}" is not a node-allocatable resource'
    mapping, overhead = resource.mapping, resource.overhead
    if mapping is None and not overhead:
        yield f'the node-allocatable resource "{name}" has neither mapping nor overhead'
    if mapping is not None:
        by_capacity = mapping.capacity_key is not None
        # The amount is the multiplier times either the number of devices or a consumed capacity.
        if by_capacity == (mapping.device_multiplier is not None):
            yield f'the mapping of "{name}" needs either capacityKey or deviceMultiplier'
        if by_capacity and mapping.capacity_key not in device.capacity:
            yield f'the mapping of "{name}" names the capacity "{mapping.capacity_key}", which the device lacks'
        multiplier = mapping.capacity_multiplier if by_capacity else mapping.device_multiplier
        if multiplier is None or multiplier.value <= 0:
            yield f'the multiplier of "{name}" is not a positive quantity'
    for key, amount in (overhead or {}).items():
        if key not in ("perPod", "perContainer") or amount.value < 0:
            yield f'the overhead "{key}" of "{name}" is neither perPod nor perContainer of 0 or more'


def _twice(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name, times in Counter(names).items() if times > 1)
