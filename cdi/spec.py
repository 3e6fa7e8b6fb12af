"""The values of a CDI document (cncf-tags/container-device-interface, SPEC.md).

Field names are those of the specification in snake case. `dranode.cdi.directory` writes the values to files, and
`dranode.cdi.document` says whether a runtime would load a file.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

# Ranges of number fields: major, minor and timeout are 64-bit and signed; modes and ids are 32-bit and unsigned.
INT64: Final = range(-(2**63), 2**63)
UINT32: Final = range(2**32)


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    pass


class DeviceNode(_Part, frozen=True, kw_only=True):
    """A device node. The runtime takes a missing type and missing numbers from the host's node of that path."""

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
    """The changes that a spec makes to a container. `env` entries are `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    # An empty set of edits is valid for a spec, but not for a device.
    def __bool__(self) -> bool:
        return self != _NO_EDITS


_NO_EDITS: Final = ContainerEdits()


class CDIDevice(_Part, frozen=True, kw_only=True):
    """A named set of edits. It is not called `Device`, because DRA has a type of that name."""

    name: str
    container_edits: ContainerEdits
    annotations: Mapping[str, str] = {}


class Spec(_Part, frozen=True, kw_only=True, rename={"cdi_version": "cdiVersion", "container_edits": "containerEdits"}):
    """One CDI document. A container with any of its devices gets `container_edits` first, then those of the device."""

    cdi_version: str
    kind: str
    annotations: Mapping[str, str] = {}
    devices: tuple[CDIDevice, ...]
    container_edits: ContainerEdits = _NO_EDITS


# msgspec compiles a type when it first decodes one, and crashes if two threads do so at once. So compile them now.
msgspec.json.Decoder(Spec)
