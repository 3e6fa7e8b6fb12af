"""Determines the specification version that a document needs (SPEC.md, "Released versions"; the Go library's minimum).

A runtime refuses a version that its library does not know. A writer therefore declares the lowest version that has
everything that its content uses.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from dranode.cdi.errors import shown
from dranode.cdi.names import split_kind
from dranode.cdi.spec import ContainerEdits, IntelRdt, Spec

# Oldest first. The library knows 0.1.0 and 0.2.0 but always refuses them, so they are not listed.
VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
EARLIEST: Final = VERSIONS[0]
TOO_OLD: Final = ("0.1.0", "0.2.0")


# The edits of a spec and of its devices.
_Edits = tuple[ContainerEdits, ...]


def _edits(spec: Spec) -> _Edits:
    return (spec.container_edits, *(device.container_edits for device in spec.devices))


def _rdt(edits: _Edits) -> list[IntelRdt]:
    return [part.intel_rdt for part in edits if part.intel_rdt is not None]


class Feature(msgspec.Struct, frozen=True):
    """A field or value that only newer versions of the specification have.

    Attributes:
        version: the first version that has it.
        name: what messages call it.
        is_used: returns whether a spec, with these edits, uses it.
        last_device_only: the library looks for it only in the edits of the spec and of its last device. (It keeps
            pointers to a Go loop variable, and the Go version of its module has one variable for all iterations.)
    """

    version: str
    name: str
    is_used: Callable[[Spec, _Edits], bool]
    last_device_only: bool = False


# Newest first, so the first feature that a spec uses decides. 0.8.0 and 1.0.0 changed the Go API but no document.
FEATURES: Final = (
    Feature("1.1.0", "netDevices", lambda _, edits: any(part.net_devices for part in edits)),
    Feature("1.1.0", "intelRdt.schemata", lambda _, edits: any(rdt.schemata is not None for rdt in _rdt(edits))),
    Feature("1.1.0", "intelRdt.enableMonitoring", lambda _, edits: any(rdt.enable_monitoring for rdt in _rdt(edits))),
    Feature("0.7.0", "intelRdt", lambda _, edits: bool(_rdt(edits))),
    Feature("0.7.0", "additionalGids", lambda _, edits: any(part.additional_gids for part in edits)),
    Feature(
        "0.6.0", "annotations", lambda spec, _: any((spec.annotations, *(dev.annotations for dev in spec.devices)))
    ),
    Feature("0.6.0", "a dot in the class", lambda spec, _: "." in split_kind(spec.kind)[1]),
    Feature(
        "0.5.0",
        "a device name that starts with a digit",
        lambda spec, _: any("0" <= device.name[:1] <= "9" for device in spec.devices),
    ),
    Feature(
        "0.5.0",
        "hostPath of a device node",
        lambda _, edits: any(node.host_path for part in edits for node in part.device_nodes),
        last_device_only=True,
    ),
    Feature(
        "0.4.0",
        "type of a mount",
        lambda _, edits: any(mount.type for part in edits for mount in part.mounts),
        last_device_only=True,
    ),
)


def minimum_version(spec: Spec) -> str:
    """Return the lowest version that has everything that a spec uses."""
    edits = _edits(spec)
    return next((feature.version for feature in FEATURES if feature.is_used(spec, edits)), EARLIEST)


def with_minimum_version(spec: Spec) -> Spec:
    """Return the spec with the lowest version that its content allows, so that older runtimes load it too."""
    return msgspec.structs.replace(spec, cdi_version=minimum_version(spec))


def _enforced(spec: Spec) -> Feature | None:
    """Return the feature that decides the library's minimum version, or None if the earliest version suffices."""
    edits = _edits(spec)
    last = (*edits[:1], *edits[1:][-1:])
    return next(
        (feature for feature in FEATURES if feature.is_used(spec, last if feature.last_device_only else edits)), None
    )


def version_problem(spec: Spec) -> str | None:
    """Return why the library refuses the declared version, or None if it accepts it."""
    declared = spec.cdi_version.removeprefix("v")
    if declared in TOO_OLD:
        return f"{shown(spec.cdi_version)} is older than {EARLIEST}, the first that is accepted"
    if declared not in VERSIONS:
        return f"{shown(spec.cdi_version)} is not one of {', '.join(VERSIONS)}"
    feature = _enforced(spec)
    if feature and VERSIONS.index(declared) < VERSIONS.index(feature.version):
        return f"{shown(spec.cdi_version)} is too low, because {feature.name} needs {feature.version}"
    return None
