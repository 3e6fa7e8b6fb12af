"""Finds out what a driver can do by asking it."""

from __future__ import annotations

from typing import Any

from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable
from dranode.sanity.kubelet import DRA_SERVICES, HEALTH_SERVICES, DriverCallError


def capabilities(bench: Bench) -> dict[str, Any]:
    """Return what the driver says and publishes, as a plain document."""
    info = bench.info if bench.places.registration is not None else None
    versions = info.versions if info else (bench.version,)
    return {
        "services": [version for version in versions if version in DRA_SERVICES],
        "health": [version for version in versions if version in HEALTH_SERVICES],
        **_published(bench),
        "startedBySuite": bench.process is not None,
        "rollingUpdate": bench.process is not None and bench.process.rolling,
        "configurations": len(bench.configurations),
    }


def _published(bench: Bench) -> dict[str, Any]:
    try:
        devices = bench.offers()
    except (Unable, Breach, DriverCallError):
        devices = []
    return {
        "pools": sorted({device.pool for device in devices}),
        "devices": len(devices),
        "shareableDevices": sum(device.shareable for device in devices),
        "taints": any(device.document.get("taints") for device in devices),
        "counters": any(device.document.get("consumesCounters") for device in devices),
    }
