"""The versions of `resource.k8s.io` that a server may offer, and our documents in each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dranode.driver.core.api.documents import API_GROUP

# Newest first. v1beta1 ends with Kubernetes 1.38, v1beta2 with 1.39.
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")


def best_version(offered: Iterable[str]) -> str | None:
    """The newest version that both sides know; None if there is none."""
    served = frozenset(offered)
    return next((version for version in VERSIONS if version in served), None)


def from_v1(document: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A ResourceSlice, or the status of a ResourceClaim, in the form of `version`.

    Only v1beta1 is another form: it keeps a device's fields under `basic`.
    """
    converted = {**document, "apiVersion": f"{API_GROUP}/{version}"}
    spec = document.get("spec")
    if version == "v1beta1" and document.get("kind") == "ResourceSlice" and isinstance(spec, Mapping):
        converted["spec"] = {**spec, "devices": [_basic(device) for device in spec.get("devices", ())]}
    return converted


def _basic(device: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
