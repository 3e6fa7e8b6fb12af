"""Finds the fields that the API server dropped from a ResourceSlice because their feature gates are off.

The server drops the fields of a disabled gate silently. The publisher compares its answer with what it sent, names the
gate, and publishes what the server stored from then on, because it would otherwise update the slice for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dranode.api.documents import same, same_devices
from dranode.api.resource import Device, ResourceSliceSpec
from dranode.driver.slices.limits import is_list

UNKNOWN: Final = "unknown"

# Feature gates of Kubernetes 1.37, each with a function that counts the values of a device that depend on the gate.
_OF_DEVICE: Final[tuple[tuple[str, Callable[[Device], int]], ...]] = (
    ("DRADeviceTaints", lambda device: len(device.taints)),
    ("DRAPartitionableDevices", lambda device: len(device.consumes_counters)),
    (
        "DRADeviceBindingConditions",
        lambda device: len(device.binding_conditions) + len(device.binding_failure_conditions),
    ),
    (
        "DRAConsumableCapacity",
        lambda device: (
            (device.allow_multiple_allocations is not None)
            + sum(capacity.request_policy is not None for capacity in device.capacity.values())
        ),
    ),
    ("DRAListTypeAttributes", lambda device: sum(map(is_list, device.attributes.values()))),
    ("DRANodeAllocatableResources", lambda device: len(device.node_allocatable_resources)),
    (
        "DRADeviceCompatibilityGroups",
        lambda device: sum(len(consumption.compatibility_groups) for consumption in device.consumes_counters),
    ),
)
_OF_SLICE: Final[tuple[tuple[str, Callable[[ResourceSliceSpec], int]], ...]] = (
    (
        "DRAPartitionableDevices",
        lambda spec: len(spec.shared_counters) + (spec.per_device_node_selection is not None),
    ),
    ("DRAPartitionableDevicesType", lambda spec: spec.partition_type_attribute is not None),
    ("DRAOptionalNodeOperations", lambda spec: len(spec.skip_node_operations)),
)


def dropped_fields(sent: ResourceSliceSpec, returned: ResourceSliceSpec) -> tuple[str, ...]:
    """Return the gates whose fields the server seems to have dropped; `("unknown",)` if it changed something else.

    The answer is empty if the server stored what was sent; the times that it adds to taints do not matter.
    """
    stored = {device.name: device for device in returned.devices}
    gates = {gate for gate, amount in _OF_SLICE if amount(sent) > amount(returned)}
    gates |= {
        gate
        for device in sent.devices
        for gate, amount in _OF_DEVICE
        if device.name in stored and amount(device) > amount(stored[device.name])
    }
    if gates:
        return tuple(sorted(gates))
    whole = (
        same_devices(sent.devices, returned.devices)
        and same(sent.shared_counters, returned.shared_counters)
        and sent.per_device_node_selection == returned.per_device_node_selection
        and sent.partition_type_attribute == returned.partition_type_attribute
    )
    return () if whole else (UNKNOWN,)
