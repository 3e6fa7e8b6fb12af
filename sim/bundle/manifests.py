"""Writes shapes as documents of Kubernetes: ResourceClaimTemplates, and the DeviceClasses that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dranode.api.resource import (
    CapacityRequirements,
    CELSelector,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ObjectMeta,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from dranode.sim.bundle.kinds import DeviceKind, quantity, selector_of
from dranode.sim.bundle.shapes import Shape, Want

_API: str = "resource.k8s.io/v1"


def class_of(kind: DeviceKind, kinds: Iterable[DeviceKind]) -> DeviceClass:
    """Return a class that selects the devices of a kind, and of `kinds` no other."""
    selector = DeviceSelector(cel=CELSelector(expression=selector_of(kind, kinds)))
    return DeviceClass(
        api_version=_API,
        kind="DeviceClass",
        metadata=ObjectMeta(name=kind.name),
        spec=DeviceClassSpec(selectors=(selector,)),
    )


def spec_of(shape: Shape, classes: Mapping[DeviceKind, str]) -> ResourceClaimSpec:
    """Return what a claim of the shape asks for; `classes` has the class of each kind."""
    return ResourceClaimSpec(
        devices=DeviceClaim(
            requests=tuple(_request(want, classes[want.kind]) for want in shape.wants),
            constraints=tuple(
                DeviceConstraint(match_attribute=each.attribute, requests=each.requests) for each in shape.alignments
            ),
        )
    )


def template_of(shape: Shape, classes: Mapping[DeviceKind, str]) -> ResourceClaimTemplate:
    """Return the template of the shape."""
    return ResourceClaimTemplate(
        api_version=_API,
        kind="ResourceClaimTemplate",
        metadata=ObjectMeta(name=shape.name),
        spec=ResourceClaimTemplateSpec(spec=spec_of(shape, classes)),
    )


def _request(want: Want, device_class: str) -> DeviceRequest:
    if want.kind.capacity:
        capacity = CapacityRequirements(requests={want.kind.capacity: quantity(want.amount)})
        exactly = ExactDeviceRequest(device_class_name=device_class, capacity=capacity)
    else:
        exactly = ExactDeviceRequest(device_class_name=device_class, count=want.count)
    return DeviceRequest(name=want.name, exactly=exactly)
