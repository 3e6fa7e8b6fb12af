"""The Container Device Interface (CDI): specs as values, and how to read, validate, write and watch them.

The package needs no other part of this project. See docs/cdi.md.
"""

from dranode.cdi.annotations import annotated_devices, annotation
from dranode.cdi.directory import encode_spec, read_spec, remove_spec, spec_files, write_spec
from dranode.cdi.errors import CDIError
from dranode.cdi.names import QualifiedName, parse_qualified_name, qualified_name, spec_file_name
from dranode.cdi.registry import DIRECTORIES, FoundDevice, Registry, read_registry, watch_registry
from dranode.cdi.rules import SpecVerdict, validate
from dranode.cdi.spec import CDIDevice, ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec
from dranode.cdi.version import minimum_version, with_minimum_version

__all__ = [
    "DIRECTORIES",
    "CDIDevice",
    "CDIError",
    "ContainerEdits",
    "DeviceNode",
    "FoundDevice",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "QualifiedName",
    "Registry",
    "Spec",
    "SpecVerdict",
    "annotated_devices",
    "annotation",
    "encode_spec",
    "minimum_version",
    "parse_qualified_name",
    "qualified_name",
    "read_registry",
    "read_spec",
    "remove_spec",
    "spec_file_name",
    "spec_files",
    "validate",
    "watch_registry",
    "with_minimum_version",
    "write_spec",
]
