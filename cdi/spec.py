"""The values of a CDI document (cncf-tags/container-device-interface, SPEC.md).

Field names are the specification's in snake case. `dranode.cdi.directory` writes values to files; whether a
runtime would load one is for `dranode.cdi.loader.validate` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

# The numbers that fields can hold: major, minor and timeout the one, modes and ids the other.
INT64: Final = range(-(2**63), 2**63)
UINT32: Final = range(2**32)


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    pass


class DeviceNode(_Part, frozen=True, kw_only=True):
    """A device node; missing type and numbers are read from the host's node when the container is made."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class NetDevice(_Part, frozen=True, kw_only=True):
    """A network interface that moves into the container (1.1.0)."""

    host_interface_name: str
    name: str


class Hook(_Part, frozen=True, kw_only=True):
    """An OCI hook."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class Mount(_Part, frozen=True, kw_only=True):
    """A mount; a non-empty `type` needs 0.4.0."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class IntelRdt(_Part, frozen=True, kw_only=True, rename={"clos_id": "closID"}):
    """Resource Director Technology settings (0.7.0)."""

    clos_id: str = ""
    l3_cache_schema: str = msgspec.field(default="", name="l3CacheSchema")
    mem_bw_schema: str = msgspec.field(default="", name="memBwSchema")
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = msgspec.field(default=False, name="enableMonitoring")


class ContainerEdits(_Part, frozen=True, kw_only=True):
    """What a container gets. `env` entries are `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self != ContainerEdits()


class CDIDevice(_Part, frozen=True, kw_only=True):
    """A named set of edits; `Device` alone is DRA's word."""

    name: str
    container_edits: ContainerEdits
    annotations: Mapping[str, str] = {}


class Spec(_Part, frozen=True, kw_only=True, rename={"cdi_version": "cdiVersion", "container_edits": "containerEdits"}):
    """One CDI document. `container_edits` apply to every device of the document, before the device's own."""

    cdi_version: str
    kind: str
    annotations: Mapping[str, str] = {}
    devices: tuple[CDIDevice, ...]
    container_edits: ContainerEdits = ContainerEdits()


# msgspec would learn these types when it first decodes one, and two threads that do so at once crash the process.
msgspec.json.Decoder(Spec)
