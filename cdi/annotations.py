"""Annotations by which a container asks its runtime for CDI devices.

A device plugin uses them if kubelet's device plugin API does not have the field `cdi_devices` yet. A key is
`cdi.k8s.io/<plugin>_<device id>`, a value a list of qualified device names with commas. Source: pkg/cdi/annotations.go
of the Go library, v1.1.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from dranode.cdi.errors import CDIError, shown
from dranode.cdi.names import parse_qualified_name

PREFIX: Final = "cdi.k8s.io/"
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
# Kubernetes limits the name of an annotation, without its prefix.
_NAME_LIMIT: Final = 63


def annotation(plugin: str, device_id: str, devices: Iterable[str]) -> dict[str, str]:
    """Return the annotation that asks for devices, to be merged into a container's annotations.

    Args:
        plugin: the device plugin, by convention `<vendor>.<device type>`.
        device_id: what makes the key unique among the plugin's allocations, such as the id of the allocated device.
        devices: qualified names, `vendor/class=device`.

    Raises:
        CDIError: the key would not be a valid annotation name, or a device is not a qualified name.
    """
    # A device id may be a path, and a name has no second slash.
    name = f"{plugin}_{device_id.replace('/', '_')}"
    if not plugin or not device_id:
        raise CDIError("an annotation needs a plugin and a device id, and one of them is empty")
    if len(name) > _NAME_LIMIT:
        raise CDIError(f"the annotation name {shown(name)} has {len(name)} characters and may have {_NAME_LIMIT}")
    if not _NAME.fullmatch(name):
        raise CDIError(
            f"the annotation name {shown(name)} must have only letters, digits, _, - and ., and start and end with a "
            "letter or a digit"
        )
    return {f"{PREFIX}{name}": ",".join(str(parse_qualified_name(device)) for device in devices)}


def annotated_devices(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices that a container's annotations ask for, in order, as qualified names.

    Raises:
        CDIError: a CDI annotation contains something else, so that no runtime starts the container.
    """
    values = (value for key, value in annotations.items() if key.startswith(PREFIX))
    return tuple(str(parse_qualified_name(device)) for value in values for device in value.split(","))
