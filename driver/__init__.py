"""The names that a driver's author imports: `from dranode.driver import Plugin, Device, ...`, and nothing deeper.

A name's module is loaded when the name is asked for, because `serve` listens before it loads what decides, and every
module below passes through this one. docs/drivers.md is the page about it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dranode.cdi.spec import ContainerEdits, DeviceNode, Hook, Mount, Spec
    from dranode.driver.core.api.cpuset import CPUSet
    from dranode.driver.core.api.documents import decode, encode
    from dranode.driver.core.api.errors import (
        ClaimConflictError,
        ClaimError,
        DocumentError,
        DranodeError,
        MachineError,
        UsageError,
    )
    from dranode.driver.core.api.names import named_value
    from dranode.driver.core.api.page_sizes import page_size_name
    from dranode.driver.core.api.quantity import Quantity
    from dranode.driver.core.api.resource import (
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
    from dranode.driver.core.claims.configs import Config
    from dranode.driver.core.claims.disturbance import Disturbance
    from dranode.driver.core.claims.grant import AllocatedClaim, AllocatedResult, ClaimGrant, Grant
    from dranode.driver.core.claims.hardware_report import HardwareProblem, HardwareReadings
    from dranode.driver.core.claims.health import DeviceHealth, Health, Impairment
    from dranode.driver.core.claims.held import ClaimRef, Held, HeldDevice, Holding
    from dranode.driver.core.claims.hooks import Configures, Notes, Recovers, Tunes
    from dranode.driver.core.claims.inventory import Inventory
    from dranode.driver.core.claims.layout import Box, Layout
    from dranode.driver.core.claims.options import Option
    from dranode.driver.core.claims.plugin import Plugin, Stop
    from dranode.driver.core.claims.record import Record
    from dranode.driver.core.pinning.pins import Pins
    from dranode.driver.core.pinning.pods_cgroup import PodsCgroup
    from dranode.driver.core.pinning.snapshot import HeldClaim, HeldSnapshot, Part
    from dranode.driver.machine.forms import open_machine
    from dranode.driver.machine.kubepods import pods_cgroup_changes, read_pods_cgroup
    from dranode.driver.machine.numa import missing_nodes, node_cpus
    from dranode.driver.machine.pci import numa_node, pcie_root
    from dranode.driver.machine.root import Root, read_text
    from dranode.driver.machine.scratch import ScratchMachine
    from dranode.driver.testing import check_plugin

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
    "check_plugin",
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

# Module -> the names that it gives the seam; tests compare it with the imports above, which type checkers read.
_SEAM: Final = {
    "dranode.cdi.spec": ("ContainerEdits", "DeviceNode", "Hook", "Mount", "Spec"),
    "dranode.driver.core.api.cpuset": ("CPUSet",),
    "dranode.driver.core.api.documents": ("decode", "encode"),
    "dranode.driver.core.api.errors": (
        "ClaimConflictError",
        "ClaimError",
        "DocumentError",
        "DranodeError",
        "MachineError",
        "UsageError",
    ),
    "dranode.driver.core.api.names": ("named_value",),
    "dranode.driver.core.api.page_sizes": ("page_size_name",),
    "dranode.driver.core.api.quantity": ("Quantity",),
    "dranode.driver.core.api.resource": (
        "CapacityRequestPolicy",
        "CapacityRequestPolicyRange",
        "Counter",
        "CounterSet",
        "Device",
        "DeviceAttribute",
        "DeviceCapacity",
        "DeviceCounterConsumption",
        "DeviceTaint",
        "NodeAllocatableMapping",
        "NodeAllocatableResource",
    ),
    "dranode.driver.core.claims.configs": ("Config",),
    "dranode.driver.core.claims.disturbance": ("Disturbance",),
    "dranode.driver.core.claims.grant": ("AllocatedClaim", "AllocatedResult", "ClaimGrant", "Grant"),
    "dranode.driver.core.claims.hardware_report": ("HardwareProblem", "HardwareReadings"),
    "dranode.driver.core.claims.health": ("DeviceHealth", "Health", "Impairment"),
    "dranode.driver.core.claims.held": ("ClaimRef", "Held", "HeldDevice", "Holding"),
    "dranode.driver.core.claims.hooks": ("Configures", "Notes", "Recovers", "Tunes"),
    "dranode.driver.core.claims.inventory": ("Inventory",),
    "dranode.driver.core.claims.options": ("Option",),
    "dranode.driver.core.claims.layout": ("Box", "Layout"),
    "dranode.driver.core.claims.plugin": ("Plugin", "Stop"),
    "dranode.driver.core.claims.record": ("Record",),
    "dranode.driver.core.pinning.pins": ("Pins",),
    "dranode.driver.core.pinning.pods_cgroup": ("PodsCgroup",),
    "dranode.driver.core.pinning.snapshot": ("HeldClaim", "HeldSnapshot", "Part"),
    "dranode.driver.machine.forms": ("open_machine",),
    "dranode.driver.machine.kubepods": ("pods_cgroup_changes", "read_pods_cgroup"),
    "dranode.driver.machine.numa": ("missing_nodes", "node_cpus"),
    "dranode.driver.machine.pci": ("numa_node", "pcie_root"),
    "dranode.driver.machine.root": ("Root", "read_text"),
    "dranode.driver.machine.scratch": ("ScratchMachine",),
    "dranode.driver.testing": ("check_plugin",),
}
_MODULES: Final = {name: module for module, names in _SEAM.items() for name in names}


def __getattr__(name: str) -> Any:
    """A name of the seam, loaded when it is first asked for (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return what is there and what would be loaded."""
    return sorted({*globals(), *__all__})
