"""The documents of `resource.k8s.io/v1` that a driver's author writes and reads, and the values in them.

    from dranode.api import Device, Quantity

The seam for drivers is `dranode.driver`. The modules of this package may change; only the names below are promised.
"""

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode, encode
from dranode.api.errors import DocumentError
from dranode.api.names import named_value
from dranode.api.quantity import Quantity, page_size_name
from dranode.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceRequestAllocationResult,
    DeviceTaint,
    NodeAllocatableMapping,
    NodeAllocatableResource,
)

__all__ = [
    "CPUSet",
    "CapacityRequestPolicy",
    "CapacityRequestPolicyRange",
    "Counter",
    "CounterSet",
    "Device",
    "DeviceAttribute",
    "DeviceCapacity",
    "DeviceCounterConsumption",
    "DeviceRequestAllocationResult",
    "DeviceTaint",
    "DocumentError",
    "NodeAllocatableMapping",
    "NodeAllocatableResource",
    "Quantity",
    "decode",
    "encode",
    "named_value",
    "page_size_name",
]
