"""The seam: the names that a driver's author imports with `from dranode.driver import Plugin, ...`.

`dranode.api` has the documents of the API, `dranode.driver.testing` the contract test, and docs/drivers.md explains
how to write a driver. Nothing deeper is promised to stay.
"""

from dranode.api.errors import ClaimConflictError, ClaimError, DranodeError, MachineError, UsageError

# What `discover` returns, which drivers imported from here before `dranode.api` had names.
from dranode.api.resource import Device, DeviceAttribute
from dranode.cdi.spec import ContainerEdits, DeviceNode, Hook, Mount, Spec
from dranode.driver.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, Config, Grant
from dranode.driver.claims.held import ClaimRef, Held, HeldDevice, Holding
from dranode.driver.claims.hooks import (
    Box,
    Configures,
    Disturbance,
    HardwareProblem,
    HardwareReadings,
    Layout,
    Notes,
    Recovers,
    Reports,
    Tunes,
)
from dranode.driver.claims.options import Option
from dranode.driver.claims.plugin import DeviceHealth, Health, Impairment, Inventory, Plugin, Stop
from dranode.driver.claims.record import Record
from dranode.driver.machine.kubepods import find_pods_cgroups, pods_cgroup_changes, read_pods_cgroup
from dranode.driver.machine.numa import missing_nodes, node_cpus
from dranode.driver.machine.pci import numa_node, pcie_root
from dranode.driver.machine.root import Root, read_text
from dranode.driver.pinning.pods_cgroup import PodsCgroup
from dranode.driver.pinning.snapshot import Part, PinnedClaim, Pins, PinSnapshot

__all__ = [
    "AllocatedClaim",
    "AllocatedResult",
    "Box",
    "ClaimConflictError",
    "ClaimError",
    "ClaimGrant",
    "ClaimRef",
    "Config",
    "Configures",
    "ContainerEdits",
    "Device",
    "DeviceAttribute",
    "DeviceHealth",
    "DeviceNode",
    "Disturbance",
    "DranodeError",
    "Grant",
    "HardwareProblem",
    "HardwareReadings",
    "Health",
    "Held",
    "HeldDevice",
    "Holding",
    "Hook",
    "Impairment",
    "Inventory",
    "Layout",
    "MachineError",
    "Mount",
    "Notes",
    "Option",
    "Part",
    "PinSnapshot",
    "PinnedClaim",
    "Pins",
    "Plugin",
    "PodsCgroup",
    "Record",
    "Recovers",
    "Reports",
    "Root",
    "Spec",
    "Stop",
    "Tunes",
    "UsageError",
    "find_pods_cgroups",
    "missing_nodes",
    "node_cpus",
    "numa_node",
    "pcie_root",
    "pods_cgroup_changes",
    "read_pods_cgroup",
    "read_text",
]
