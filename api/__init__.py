"""The documents of `resource.k8s.io/v1` that authors of drivers use, and the values in them.

    from dranode.api import Device, Quantity

`dranode.driver` has the interface for drivers. Only the names below are stable; the modules of this package may change.
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
