"""The checksums of kubelet's state files, with which kubelet checks them when it starts.

Sources: `pkg/kubelet/checkpointmanager/checksum`, `pkg/util/hash`, and `checkpoint.go` of `cm/cpumanager/state`,
`cm/memorymanager/state` and `allocation/state` of Kubernetes 1.34 to 1.37. The checksum is FNV-1a of the text that Go's
spew prints for the checkpoint: fields of a structure with names and types, members of maps and lists without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec


class _Structure(msgspec.Struct, frozen=True):
    """A structure of Go: what spew prints before it, and each field's name, key in JSON, type and form."""

    before: str
    fields: tuple[tuple[str, str, str, _Form], ...]


class _Map(msgspec.Struct, frozen=True):
    """A map of Go: the form of its values, and how its keys are sorted."""

    values: _Form
    order: Callable[[str], Any] = str


class _List(msgspec.Struct, frozen=True):
    """A slice of Go: the form of its items."""

    items: _Form


# None is a number or a string.
_Form: TypeAlias = _Structure | _Map | _List | None

_TABLE: Final = _Structure(
    "<*>",
    (
        ("TotalMemSize", "total", "uint64", None),
        ("SystemReserved", "systemReserved", "uint64", None),
        ("Allocatable", "allocatable", "uint64", None),
        ("Reserved", "reserved", "uint64", None),
        ("Free", "free", "uint64", None),
    ),
)
_NODE: Final = _Structure(
    "<*>",
    (
        ("NumberOfAssignments", "numberOfAssignments", "int", None),
        ("MemoryMap", "memoryMap", "map[v1.ResourceName]*state.MemoryTable", _Map(_TABLE)),
        ("Cells", "cells", "[]int", _List(None)),
    ),
)
_BLOCK: Final = _Structure(
    "",
    (
        ("NUMAAffinity", "numaAffinity", "[]int", _List(None)),
        ("Type", "type", "v1.ResourceName", None),
        ("Size", "size", "uint64", None),
    ),
)
_CPU: Final = _Structure(
    "(*state.CPUManagerCheckpoint)",
    (
        ("PolicyName", "policyName", "string", None),
        ("DefaultCPUSet", "defaultCpuSet", "string", None),
        ("Entries", "entries", "map[string]map[string]string", _Map(_Map(None))),
    ),
)
_MEMORY: Final = _Structure(
    "(*state.MemoryManagerCheckpoint)",
    (
        ("PolicyName", "policyName", "string", None),
        ("MachineState", "machineState", "state.NUMANodeMap", _Map(_NODE, int)),
        ("Entries", "entries", "state.ContainerMemoryAssignments", _Map(_Map(_List(_BLOCK)))),
    ),
)
# With the feature gate PodLevelResourceManagers a state has another field.
_POD_ENTRIES: Final = {_CPU.before: "state.PodCPUAssignments", _MEMORY.before: "state.PodMemoryAssignments"}


def has_checksum_of_data(checkpoint: Mapping[str, Any], key: str = "checksum") -> bool:
    """Return whether a checkpoint with its content as text in `data` has the right checksum."""
    return bool(checkpoint[key] == _fnv(f"(string){checkpoint['data']}"))


def has_checksum(state: Mapping[str, Any]) -> bool:
    """Return whether the state of kubelet's CPU manager or memory manager has the right checksum.

    Raises:
        ValueError, TypeError, AttributeError, LookupError: it does not have the form of such a state.
    """
    # kubelet 1.37 writes the state also as text.
    if "dataChecksum" in state:
        return has_checksum_of_data(state, "dataChecksum")
    # kubelet accepts a state without a checksum. What it prints for pods is not known here.
    if not state.get("checksum") or state.get("podEntries"):
        return True
    form = _CPU if "defaultCpuSet" in state else _MEMORY
    text = _printed({"entries": {}, "machineState": {}, **state}, form).removesuffix("}")
    fields = ("", f" PodEntries:({_POD_ENTRIES[form.before]})map[]")
    return state["checksum"] in [_fnv(f"{text}{field} Checksum:(checksum.Checksum)0}}") for field in fields]


def _printed(value: Any, form: _Form) -> str:
    if form is None:
        return str(value)
    if value is None:
        return "<nil>"
    match form:
        case _List(items=items):
            return f"[{' '.join(_printed(item, items) for item in value)}]"
        case _Map(values=values, order=order):
            return f"map[{' '.join(f'{key}:{_printed(value[key], values)}' for key in sorted(value, key=order))}]"
    fields = (f"{name}:({kind}){_printed(value.get(key), inner)}" for name, key, kind, inner in form.fields)
    return f"{form.before}{{{' '.join(fields)}}}"


def _fnv(text: str) -> int:
    """Return the 32-bit FNV-1a hash of a text."""
    value = 0x811C9DC5
    for byte in text.encode(errors="replace"):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
