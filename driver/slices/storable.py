"""The slices that a driver wants to publish, given the fields that the API server is known to drop.

The server silently drops the fields of disabled feature gates. The driver then wants what the server has stored,
because it would otherwise update the slice forever. One lost field changes what a device is: without
`allowMultipleAllocations` a request for one CPU would be allocated the whole group. Such devices are withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from dranode.api.documents import same, same_devices
from dranode.api.resource import Device, ResourceSliceSpec
from dranode.api.slice_validation import is_list
from dranode.driver.claims.plugin import Inventory
from dranode.driver.slices.desired import desired_slices

CONSUMABLE: Final = "DRAConsumableCapacity"


class DesiredSlices(msgspec.Struct, frozen=True):
    """The slices that a driver wants on its node.

    Attributes:
        driver: the driver's name.
        node_name: the node.
        inventory: the devices that the driver has discovered.
        dropped: the feature gates whose fields the server drops.
        stored: the slices that the server stored without some of their fields, by index.
    """

    driver: str
    node_name: str
    inventory: Inventory
    dropped: frozenset[str] = frozenset()
    stored: Mapping[int, ResourceSliceSpec] = msgspec.field(default_factory=dict)

    @property
    def withdrawn(self) -> bool:
        """Return whether devices are withdrawn because the server would not let claims share them."""
        return CONSUMABLE in self.dropped and any(map(_shared, self.inventory.devices))

    @property
    def problem(self) -> str | None:
        """Return why not everything is published; None if it is."""
        if not self.withdrawn:
            return None
        count = sum(map(_shared, self.inventory.devices))
        return (
            f"the API server drops allowMultipleAllocations, so the devices of {self.driver} that several claims share "
            f"are withdrawn ({count}); turn the feature gate {CONSUMABLE} on in API server and scheduler (on from "
            "Kubernetes 1.36), or have the driver publish devices that are not shared (dranode doctor names the option)"
        )

    def specs(self, published: Mapping[int, ResourceSliceSpec] | None = None) -> tuple[ResourceSliceSpec, ...]:
        """Return the slices to publish if these are published, by index.

        Raises:
            UsageError: the API does not allow the name of the driver or of the node.
        """
        inventory = self.inventory
        if self.withdrawn:
            inventory = replace(inventory, devices=tuple(device for device in inventory.devices if not _shared(device)))
        specs = desired_slices(self.driver, self.node_name, inventory, published)
        return tuple(
            msgspec.structs.replace(self.stored.get(index, spec), pool=spec.pool) for index, spec in enumerate(specs)
        )

    def after_drop(self, index: int, returned: ResourceSliceSpec, gates: tuple[str, ...]) -> DesiredSlices:
        """Return the desired slices after the server dropped fields of these gates from slice number `index`."""
        wanted = replace(self, dropped=self.dropped | frozenset(gates))
        # Without the withdrawn devices the slices have other contents, so `stored` no longer applies.
        return replace(wanted, stored={} if wanted.withdrawn else {**self.stored, index: returned})

    def again(self) -> DesiredSlices:
        """Return the desired slices of a server of which nothing is known; its feature gates may have changed."""
        return DesiredSlices(self.driver, self.node_name, self.inventory)

    def of(self, inventory: Inventory) -> DesiredSlices:
        """Return the desired slices for another inventory; devices that must not be published stay withdrawn."""
        # Other dropped gates are found out again, but devices must never be shared by mistake in between.
        return DesiredSlices(self.driver, self.node_name, inventory, self.dropped & {CONSUMABLE})


def _shared(device: object) -> bool:
    return bool(getattr(device, "allow_multiple_allocations", False))


# Finds the fields that the API server dropped from a ResourceSlice because their feature gates are off: the publisher
# compares the server's answer with what it sent.


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
    ("DRAPartitionableDevices", lambda spec: len(spec.shared_counters) + (spec.per_device_node_selection is not None)),
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
        # A device that is missing was not stripped of a field; the comparison below finds it.
        if device.name in stored and amount(device) > amount(stored[device.name])
    }
    if gates:
        return tuple(sorted(gates))
    unchanged = (
        same_devices(sent.devices, returned.devices)
        and same(sent.shared_counters, returned.shared_counters)
        and sent.per_device_node_selection == returned.per_device_node_selection
        and sent.partition_type_attribute == returned.partition_type_attribute
    )
    return () if unchanged else (UNKNOWN,)
