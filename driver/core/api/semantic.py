"""When two values of the API say the same, as Kubernetes judges it (apimachinery `equality.Semantic`).

Empty and absent lists and maps are equal, quantities are equal by value, and a taint's `timeAdded` matches any time if
the wish leaves it out, else within a second, because the server keeps whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import Device, DeviceTaint

_TOLERANCE: Final = timedelta(seconds=1)


def same(one: Any, other: Any) -> bool:
    """Whether two values of the API say the same."""
    return bool(one == other) or _plain(one) == _plain(other)


def same_devices(wanted: Sequence[Device], found: Sequence[Device]) -> bool:
    """Whether the devices found are those wanted, in the same order."""
    return len(wanted) == len(found) and all(map(_same_device, wanted, found))


def parse_time(text: str) -> datetime:
    """A time as Kubernetes writes it (RFC 3339).

    Raises:
        ValueError: it is no such time.
    """
    return datetime.fromisoformat(text)


def _same_device(wanted: Device, found: Device) -> bool:
    if wanted == found:
        return True
    return same(_timeless(wanted), _timeless(found)) and all(map(_same_time, wanted.taints, found.taints))


def _timeless(device: Device) -> Device:
    taints = tuple(msgspec.structs.replace(taint, time_added=None) for taint in device.taints)
    return msgspec.structs.replace(device, taints=taints)


def _same_time(wanted: DeviceTaint, found: DeviceTaint) -> bool:
    if wanted.time_added is None:
        return True
    if found.time_added is None:
        return False
    return abs(parse_time(wanted.time_added) - parse_time(found.time_added)) <= _TOLERANCE


def _plain(value: Any) -> Any:
    # A structure stays one even where all of it is empty: `requestPolicy: {}` is not the same as no policy.
    if isinstance(value, msgspec.Struct):
        fields = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        return {name: field for name, field in fields.items() if field is not None}
    if isinstance(value, Quantity):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()} or None
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value] or None
    return value
