"""The devices that the driver publishes for GPUs: attributes, capacity, sharing, shared counters, taints.

A divided GPU and its parts draw on one counter set (KEP-4815): a part takes one `parts`, and the whole GPU takes all of
them, so the scheduler allocates either the whole GPU or parts of it. An undivided GPU needs no counters.

With sharing, every device may be allocated several times (KEP-5075). Each allocation takes `shares`, and `memory` if
the GPU's memory is known. The default is one share, and the part of the memory that goes with one share.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from dranode.api.names import qualified
from dranode.api.quantity import Quantity
from dranode.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    PlainAttribute,
)
from dranode.api.semver import semver_from_numbers
from dranode.gpu.inventory import GPU, GPUInventory

SHARES: Final = 10
"""The number of claims that can share a GPU if each asks for the minimum."""

MAX_TEXT: Final = 64  # DeviceAttributeMaxValueLength, in bytes

_binary: Final = Quantity.binary
_MI: Final = 1 << 20
_STANDARD_ADDRESS: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_PARTS: Final = "parts"

Taints = Mapping[str, tuple[DeviceTaint, ...]]


def _text(value: str | None) -> str | None:
    """Return a text, cut to the length that an attribute may have."""
    return value.encode()[:MAX_TEXT].decode(errors="ignore") if value else None


def _version(value: str | None) -> DeviceAttribute | None:
    version = None if value is None else semver_from_numbers(value)
    return None if version is None else DeviceAttribute(version=version)


def _pci_id(value: int | None) -> str | None:
    return None if value is None else f"0x{value:04x}"


# The published attributes by name; None leaves an attribute out. Names without a domain are `dra.gpu/...`. linkSpeed is
# in MT/s because PCIe 1.0's 2.5 GT/s is not a whole number. pciBusID allows domains of four digits only.
_ATTRIBUTES: Final[Mapping[str, Callable[[GPU], PlainAttribute | None]]] = {
    "type": lambda gpu: _text(gpu.kind),
    "vendor": lambda gpu: _text(gpu.vendor),
    "model": lambda gpu: _text(gpu.model),
    "uuid": lambda gpu: _text(gpu.uuid),
    "pciVendor": lambda gpu: _pci_id(gpu.vendor_id),
    "pciDevice": lambda gpu: _pci_id(gpu.device_id),
    "pciAddress": lambda gpu: _text(gpu.address),
    "driver": lambda gpu: _text(gpu.driver),
    "driverVersion": lambda gpu: _version(gpu.driver_version),
    "cudaComputeCapability": lambda gpu: _version(gpu.compute_capability),
    "linkSpeed": lambda gpu: gpu.link_speed,
    "linkWidth": lambda gpu: gpu.link_width,
    "memoryNode": lambda gpu: gpu.memory_node,
    "parent": lambda gpu: _text(gpu.parent_name),
    "partition": lambda gpu: gpu.partition,
    "partitionMode": lambda gpu: _text(gpu.partition_mode),
    "resource.kubernetes.io/pciBusID": lambda gpu: (
        _text(gpu.address) if _STANDARD_ADDRESS.fullmatch(gpu.address) else None
    ),
    "resource.kubernetes.io/pcieRoot": lambda gpu: _text(gpu.pcie_root),
    "resource.kubernetes.io/numaNode": lambda gpu: gpu.numa_node,
}


def attribute_names() -> frozenset[str]:
    """Return the names of all attributes that a GPU may have, each with its domain."""
    return frozenset(qualified(name, "dra.gpu") for name in _ATTRIBUTES)


def attributes(gpu: GPU) -> dict[str, PlainAttribute]:
    """Return the attributes of one GPU that are known and that Kubernetes accepts."""
    values = {name: attribute(gpu) for name, attribute in _ATTRIBUTES.items()}
    return {name: value for name, value in values.items() if value is not None}


def gpu_devices(inventory: GPUInventory, *, shared: bool, taints: Taints | None = None) -> tuple[Device, ...]:
    """Return the devices in the order in which the scheduler should try them: undivided GPUs, parts, divided GPUs.

    A GPU that no kernel driver serves is not a device.
    """
    children = inventory.children
    served = (gpu for gpu in inventory.gpus if not gpu.unserved)
    ranked = sorted(served, key=lambda gpu: 2 if gpu.name in children else 1 if gpu.parent_name in children else 0)
    return tuple(
        Device(
            name=gpu.name,
            attributes=attributes(gpu),
            capacity=_shared_capacity(gpu) if shared else _capacity(gpu),
            consumes_counters=_consumption(gpu, inventory),
            taints=(taints or {}).get(gpu.name, ()),
            allow_multiple_allocations=True if shared else None,
        )
        for gpu in ranked
    )


def counters(inventory: GPUInventory) -> tuple[CounterSet, ...]:
    """Return one counter set for every divided GPU, with the name of the GPU."""
    return tuple(CounterSet(name=name, counters={_PARTS: len(parts)}) for name, parts in inventory.children.items())


def _consumption(gpu: GPU, inventory: GPUInventory) -> tuple[DeviceCounterConsumption, ...]:
    parts = inventory.children.get(gpu.name)
    if parts is not None:
        return (DeviceCounterConsumption(counter_set=gpu.name, counters={_PARTS: len(parts)}),)
    if gpu.parent_name is not None and gpu.parent_name in inventory.children:
        return (DeviceCounterConsumption(counter_set=gpu.parent_name, counters={_PARTS: 1}),)
    return ()


def _capacity(gpu: GPU) -> dict[str, Quantity]:
    return {} if gpu.memory is None else {"memory": _binary(gpu.memory)}


def _shared_capacity(gpu: GPU) -> dict[str, DeviceCapacity]:
    """Return capacities of shares in steps of 1, and of memory in steps of 1Mi; the default is one share of each."""
    capacity = {"shares": DeviceCapacity(value=Quantity(SHARES), request_policy=_policy(default=1, step=1))}
    # The API requires that minimum plus step fit into the value, so memory below 1Mi per share is not divided.
    if gpu.memory is not None and gpu.memory >= SHARES * _MI:
        part = gpu.memory // SHARES // _MI * _MI
        capacity["memory"] = DeviceCapacity(value=_binary(gpu.memory), request_policy=_policy(default=part, step=_MI))
    return capacity


def _policy(*, default: int, step: int) -> CapacityRequestPolicy:
    return CapacityRequestPolicy(
        default=_binary(default), valid_range=CapacityRequestPolicyRange(min=_binary(step), step=_binary(step))
    )
