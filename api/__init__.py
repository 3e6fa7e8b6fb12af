"""The documents of `resource.k8s.io/v1` that a driver's author writes and reads, and the words in them.

    from dranode.api import Device, Quantity

The seam itself is `dranode.driver`. What else lies below this package is not promised to stay.
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
