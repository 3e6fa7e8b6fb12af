"""The names that a driver's author imports: `from dranode.driver import Plugin, Device, ...`, and nothing deeper.

docs/drivers.md is the page about it; `dranode.driver.testing` has the contract test.
"""

from dranode.api.cpuset import CPUSet
from dranode.api.documents import decode, encode
from dranode.api.errors import (
    ClaimConflictError,
    ClaimError,
    DocumentError,
    DranodeError,
    MachineError,
    UsageError,
)
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
    DeviceTaint,
    NodeAllocatableMapping,
    NodeAllocatableResource,
)
from dranode.cdi.spec import ContainerEdits, DeviceNode, Hook, Mount, Spec
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, Config, Grant
from dranode.driver.claims.held import ClaimRef, Held, HeldDevice, Holding
from dranode.driver.claims.hooks import Configures, Disturbance, Notes, Recovers, Tunes
from dranode.driver.claims.inventory import Inventory
from dranode.driver.claims.options import Option
from dranode.driver.claims.plugin import (
    Box,
    DeviceHealth,
    HardwareProblem,
    HardwareReadings,
    Health,
    Impairment,
    Layout,
    Plugin,
    Stop,
)
from dranode.driver.claims.record import Record
from dranode.driver.machine.forms import open_machine
from dranode.driver.machine.kubepods import pods_cgroup_changes, read_pods_cgroup
from dranode.driver.machine.numa import missing_nodes, node_cpus
from dranode.driver.machine.pci import numa_node, pcie_root
from dranode.driver.machine.root import Root, read_text
from dranode.driver.machine.scratch import ScratchMachine
from dranode.driver.pinning.pods_cgroup import PodsCgroup
from dranode.driver.pinning.snapshot import HeldClaim, HeldSnapshot, Part, Pins

__all__ = [
    "AllocatedClaim",
    "AllocatedResult",
    "Box",
    "CPUSet",
    "CapacityRequestPolicy",
    "CapacityRequestPolicyRange",
    "ClaimConflictError",
    "ClaimError",
    "ClaimGrant",
    "ClaimRef",
    "Config",
    "Configures",
    "ContainerEdits",
    "Counter",
    "CounterSet",
    "Device",
    "DeviceAttribute",
    "DeviceCapacity",
    "DeviceCounterConsumption",
    "DeviceHealth",
    "DeviceNode",
    "DeviceTaint",
    "Disturbance",
    "DocumentError",
    "DranodeError",
    "Grant",
    "HardwareProblem",
    "HardwareReadings",
    "Health",
    "Held",
    "HeldClaim",
    "HeldDevice",
    "HeldSnapshot",
    "Holding",
    "Hook",
    "Impairment",
    "Inventory",
    "Layout",
    "MachineError",
    "Mount",
    "NodeAllocatableMapping",
    "NodeAllocatableResource",
    "Notes",
    "Option",
    "Part",
    "Pins",
    "Plugin",
    "PodsCgroup",
    "Quantity",
    "Record",
    "Recovers",
    "Root",
    "ScratchMachine",
    "Spec",
    "Stop",
    "Tunes",
    "UsageError",
    "decode",
    "encode",
    "missing_nodes",
    "named_value",
    "node_cpus",
    "numa_node",
    "open_machine",
    "page_size_name",
    "pcie_root",
    "pods_cgroup_changes",
    "read_pods_cgroup",
    "read_text",
]
