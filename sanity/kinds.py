"""The resources of the API server, and the forms in which their objects are served and stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dranode.api.documents import API_GROUP, basic_device, to_v1

KubeDocument: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class ResourceKind:
    """A resource: `resourceslices` of group `resource.k8s.io`, say."""

    group: str
    resource: str
    kind: str
    namespaced: bool


KINDS: Final = (
    ResourceKind(API_GROUP, "resourceslices", "ResourceSlice", namespaced=False),
    ResourceKind(API_GROUP, "resourceclaims", "ResourceClaim", namespaced=True),
    ResourceKind(API_GROUP, "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True),
    ResourceKind(API_GROUP, "deviceclasses", "DeviceClass", namespaced=False),
    ResourceKind(API_GROUP, "devicetaintrules", "DeviceTaintRule", namespaced=False),
    ResourceKind("events.k8s.io", "events", "Event", namespaced=True),
    # The objects of events.k8s.io in the form of the core group.
    ResourceKind("", "events", "Event", namespaced=True),
    ResourceKind("", "nodes", "Node", namespaced=False),
    ResourceKind("", "pods", "Pod", namespaced=True),
    ResourceKind("", "namespaces", "Namespace", namespaced=False),
    ResourceKind("apps", "daemonsets", "DaemonSet", namespaced=True),
)


def kind_of(resource: str) -> ResourceKind:
    """Return the kind of a resource."""
    return next(kind for kind in KINDS if kind.resource == resource)


def kind_at(group: str, resource: str, *, namespaced: bool) -> ResourceKind:
    """Return the kind at a path of the API; an unknown kind gets its resource's name."""
    known = next((kind for kind in KINDS if (kind.group, kind.resource) == (group, resource)), None)
    return known or ResourceKind(group, resource, resource.removesuffix("s").capitalize(), namespaced=namespaced)


def served(kind: ResourceKind, document: KubeDocument, version: str) -> KubeDocument:
    """Return an object in a version of its group's API; v1beta1 of slices and claims has a form of its own."""
    group_version = f"{kind.group}/{version}" if kind.group else version
    if kind.resource == "events" and not kind.group:
        document = _core_event(document)
    shown = {**document, "apiVersion": group_version, "kind": kind.kind}
    spec = document.get("spec")
    if kind.group != API_GROUP or version != "v1beta1" or not isinstance(spec, dict):
        return shown
    if kind.resource == "resourceslices" and spec.get("devices"):
        shown["spec"] = {**spec, "devices": [basic_device(device) for device in spec["devices"]]}
    if kind.resource == "resourceclaims" and spec.get("devices", {}).get("requests"):
        devices = spec["devices"]
        shown["spec"] = {**spec, "devices": {**devices, "requests": [_flat(entry) for entry in devices["requests"]]}}
    return shown


def _core_event(event: KubeDocument) -> KubeDocument:
    """Return an Event of events.k8s.io as core/v1 has it; an Event that was written as core/v1 is unchanged."""
    if "regarding" not in event:
        return event
    names = {"note": "message", "regarding": "involvedObject", "reportingController": "reportingComponent"}
    return {names.get(key, key): value for key, value in event.items()} | {"lastTimestamp": None, "source": {}}


def stored(document: KubeDocument) -> KubeDocument:
    """Return an object of any version in the form in which it is stored."""
    return to_v1(document)


def _flat(request: Mapping[str, Any]) -> KubeDocument:
    return {**{key: value for key, value in request.items() if key != "exactly"}, **request.get("exactly", {})}
