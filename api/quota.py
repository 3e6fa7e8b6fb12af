"""Counts a claim against a ResourceQuota: `<class>.deviceclass.resource.k8s.io/devices` (KEP-4381, KEP-4816).

Every alternative of a prioritized list counts, because the scheduler may take any of them; if several alternatives have
one class, the largest counts. A request for all devices counts as many devices as a claim can have.
"""

from __future__ import annotations

from dranode.api.resource import DeviceClaim, DeviceRequest, DeviceSubRequest, ExactDeviceRequest
from dranode.api.validation import MAX_RESULTS


def devices_by_class(devices: DeviceClaim) -> dict[str, int]:
    """Return how many devices of each class the claim counts."""
    total: dict[str, int] = {}
    for request in devices.requests:
        for name, count in _most(request).items():
            total[name] = total.get(name, 0) + count
    return total


def _most(request: DeviceRequest) -> dict[str, int]:
    most: dict[str, int] = {}
    for wanted in request.first_available or filter(None, (request.exactly,)):
        name = wanted.device_class_name
        most[name] = max(most.get(name, 0), _count(wanted))
    return most


def _count(request: ExactDeviceRequest | DeviceSubRequest) -> int:
    return MAX_RESULTS if request.allocation_mode == "All" else request.count or 1
