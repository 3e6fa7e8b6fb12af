"""Counts one pod of a pod set against quota.

Containers as kube-scheduler adds them up, and DRA devices by DeviceClass under the names that `deviceClassMappings`
give (Kueue's KEP-2941): from ResourceClaimTemplates, and from extended resources that a DeviceClass stands behind. Of a
prioritized list each alternative counts, because no one knows yet which it will be, and of several in one class the
largest, as in the API server's own quota. Devices with admin access are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import (
    ContainerResources,
    DeviceClass,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from dranode.sim.queues.amounts import amount
from dranode.sim.queues.workload_document import QueuedPodSpec

_ALWAYS: Final = "Always"

RequestCounts = dict[str, int]


class UncountableError(Exception):
    """No quota can be counted for a pod: its text says why."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The rules that turn devices into quota.

    Attributes:
        mapped: by DeviceClass, the resource name that quota counts it under.
        templates: by `<namespace>/<name>`, what the claims of a template ask for.
        classes: the DeviceClasses that there are.
    """

    mapped: Mapping[str, str]
    templates: Mapping[str, ResourceClaimSpec]
    classes: tuple[DeviceClass, ...] = ()

    def behind(self, extended: str) -> str | None:
        """The DeviceClass that serves an extended resource: of several the newest, then the first by name."""
        serving = [item for item in self.classes if item.spec.extended_resource_name == extended]
        if not serving:
            return None
        newest = max(item.metadata.creation_timestamp or "" for item in serving)
        return min(item.metadata.name for item in serving if (item.metadata.creation_timestamp or "") == newest)


def pod_counts(spec: QueuedPodSpec, namespace: str, devices: Devices) -> RequestCounts:
    """Return what one pod counts, by resource name.

    Raises:
        UncountableError: a template is missing, a class is mapped to no name, or a request takes all devices.
    """
    counts: RequestCounts = {}
    for resource, number in _containers(spec).items():
        device_class = devices.behind(resource)
        name = resource if device_class is None else devices.mapped.get(device_class, resource)
        counts[name] = counts.get(name, 0) + number
    for claim in spec.resource_claims:
        if claim.resource_claim_template_name is None:
            continue  # a claim that pods share is not a workload's own; Kueue counts none of it
        template = devices.templates.get(f"{namespace}/{claim.resource_claim_template_name}")
        if template is None:
            raise UncountableError(f'there is no ResourceClaimTemplate "{claim.resource_claim_template_name}"')
        counts = _sum(counts, _claim(template, devices))
    return counts


def _claim(spec: ResourceClaimSpec, devices: Devices) -> RequestCounts:
    counts: RequestCounts = {}
    for request in spec.devices.requests:
        for device_class, number in _by_class(request).items():
            name = devices.mapped.get(device_class)
            if name is None:
                raise UncountableError(f'no deviceClassMappings entry names DeviceClass "{device_class}"')
            counts[name] = counts.get(name, 0) + number
    return counts


def _by_class(request: DeviceRequest) -> RequestCounts:
    if request.exactly is not None:
        return {} if request.exactly.admin_access else {request.exactly.device_class_name: _devices(request.exactly)}
    counts: RequestCounts = {}
    for alternative in request.first_available:
        counts = _most(counts, {alternative.device_class_name: _devices(alternative)})
    return counts


def _devices(request: ExactDeviceRequest | DeviceSubRequest) -> int:
    if request.allocation_mode == "All":
        raise UncountableError("a request for all devices of a class cannot be counted before it is allocated")
    return 1 if request.count is None else request.count


def _containers(spec: QueuedPodSpec) -> RequestCounts:
    """Containers run together, init containers one after another, those that restart always beside all that follow."""
    beside: RequestCounts = {}
    most: RequestCounts = {}
    for container in spec.init_containers:
        asked = _requests(container.resources)
        if container.restart_policy == _ALWAYS:
            beside = _sum(beside, asked)
            asked = {}
        most = _most(most, _sum(beside, asked))
    for container in spec.containers:
        beside = _sum(beside, _requests(container.resources))
    whole = {**_most(most, beside), **_requests(spec.resources)}
    return _sum(whole, {name: amount(name, quantity) for name, quantity in spec.overhead.items()})


def _requests(resources: ContainerResources) -> RequestCounts:
    written: Mapping[str, Quantity] = {**resources.limits, **resources.requests}
    return {name: amount(name, quantity) for name, quantity in written.items()}


def _sum(first: RequestCounts, second: RequestCounts) -> RequestCounts:
    return {name: first.get(name, 0) + second.get(name, 0) for name in _names(first, second)}


def _most(first: RequestCounts, second: RequestCounts) -> RequestCounts:
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in _names(first, second)}


def _names(first: RequestCounts, second: RequestCounts) -> Iterable[str]:
    return dict.fromkeys((*first, *second))
