"""Equality of API values as Kubernetes judges it (apimachinery `equality.Semantic`).

Empty and absent lists and maps are equal, quantities are equal by value. A desired taint without
`timeAdded` matches any time; otherwise the times match within a second, because the server keeps whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceTaint

_TOLERANCE: Final = timedelta(seconds=1)


def same(first: Any, second: Any) -> bool:
    """Return whether two API values are equal."""
    return bool(first == second) or _plain(first) == _plain(second)


def same_devices(desired: Sequence[Device], published: Sequence[Device]) -> bool:
    """Return whether the published devices are the desired ones, in the same order."""
    return len(desired) == len(published) and all(map(_same_device, desired, published))


def parse_time(text: str) -> datetime:
    """Parse a time of Kubernetes (RFC 3339).

    Raises:
        ValueError: the text is not such a time.
    """
    return datetime.fromisoformat(text)


def _same_device(desired: Device, published: Device) -> bool:
    if desired == published:
        return True
    return same(_timeless(desired), _timeless(published)) and all(map(_same_time, desired.taints, published.taints))


def _timeless(device: Device) -> Device:
    taints = tuple(msgspec.structs.replace(taint, time_added=None) for taint in device.taints)
    return msgspec.structs.replace(device, taints=taints)


def _same_time(desired: DeviceTaint, published: DeviceTaint) -> bool:
    if desired.time_added is None:
        return True
    if published.time_added is None:
        return False
    return abs(parse_time(desired.time_added) - parse_time(published.time_added)) <= _TOLERANCE


def _plain(value: Any) -> Any:
    # An empty structure is not the same as none: `requestPolicy: {}` is a policy.
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
