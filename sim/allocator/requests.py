"""The requests of a claim in one form: each is a list of alternatives, of which `exactly` has one.

What kube-scheduler refuses before it searches is found here. It ends the attempt for the pod, but in its turn: another
request, before it, may end the attempt first with what only the devices of a node can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from dranode.api.quantity import Quantity
from dranode.api.resource import (
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.outcome import AllocationError, Reason


@dataclass(frozen=True, slots=True)
class Alternative:
    """A demand: an exact request, or one entry of a prioritized list.

    Attributes:
        name: `<request>` or `<request>/<subrequest>`.
        device_class: the class.
        selectors: those of the request, beyond the class's.
        count: how many devices; None for all that match.
        admin: whether devices in use may be taken, without holding them.
        tolerations: with the operator that the API server fills in.
        capacity: how much of each capacity is wanted.
        derived: the expressions of attributes that constraints see in place of the device's, by name.
    """

    name: str
    device_class: DeviceClass
    selectors: tuple[DeviceSelector, ...]
    count: int | None
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, Quantity]
    derived: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """One request: its alternatives in order of preference.

    Attributes:
        name: the request.
        alternatives: at least one, if nothing is refused.
        listed: whether they stand in `firstAvailable`.
        refusal: why the request cannot be allocated anywhere, beyond the alternatives before the one at fault.
    """

    name: str
    alternatives: tuple[Alternative, ...]
    listed: bool
    refusal: AllocationError | None = None


def claim_name(claim: ResourceClaim) -> str:
    """Namespace and name, for messages."""
    namespace = claim.metadata.namespace
    return f"{namespace}/{claim.metadata.name}" if namespace else claim.metadata.name


def allocation_requests(
    claim: ResourceClaim, classes: Mapping[str, DeviceClass], features: Features
) -> tuple[AllocationRequest, ...]:
    """The requests of the claim; refused where a class is missing, a needed gate is off, or something is unknown."""
    return tuple(_request(request, claim, classes, features) for request in claim.spec.devices.requests)


def _request(
    request: DeviceRequest, claim: ResourceClaim, classes: Mapping[str, DeviceClass], features: Features
) -> AllocationRequest:
    where = f"claim {claim_name(claim)}, request {request.name}"
    listed = bool(request.first_available)
    alternatives: list[Alternative] = []
    try:
        _check_gates(request, where, features)
        for sub in request.first_available:
            name = f"{request.name}/{sub.name}"
            alternatives.append(_alternative(name, sub, f"{where}/{sub.name}", classes, features))
        if request.exactly is not None and not listed:
            alternatives.append(_alternative(request.name, request.exactly, where, classes, features))
    except AllocationError as error:
        return AllocationRequest(request.name, tuple(alternatives), listed, error)
    return AllocationRequest(request.name, tuple(alternatives), listed)


def _check_gates(request: DeviceRequest, where: str, features: Features) -> None:
    """Refuse what kube-scheduler refuses of a request before it looks at any alternative."""
    if request.first_available and not features.prioritized_list:
        raise AllocationError(
            f"{where} has subrequests, but the DRAPrioritizedList feature is disabled", Reason.FEATURE_OFF
        )
    if not request.first_available and request.exactly is None:
        raise AllocationError(f"{where} has neither exactly nor firstAvailable", Reason.INCOMPLETE_CLAIM)
    if features.consumable_capacity or not features.beyond_stable:
        return
    for spec in (request.exactly, *request.first_available):
        if spec is not None and spec.capacity is not None:
            raise AllocationError(
                f"{where} has capacity requests, but the DRAConsumableCapacity feature is disabled", Reason.FEATURE_OFF
            )


def _alternative(
    name: str,
    spec: ExactDeviceRequest | DeviceSubRequest,
    where: str,
    classes: Mapping[str, DeviceClass],
    features: Features,
) -> Alternative:
    derived = {one.name: one.expression for one in spec.derived_attributes}
    if derived and not features.derived_attributes and features.release.gate("DRADerivedAttributes") is not None:
        raise AllocationError(
            f"{where} has derived attributes, but the DRADerivedAttributes feature is disabled", Reason.FEATURE_OFF
        )
    for index, selector in enumerate(spec.selectors):
        if selector.cel is None:
            raise AllocationError(f"{where}: selector #{index} has no CEL expression", Reason.INCOMPLETE_CLAIM)
    admin = spec.admin_access if isinstance(spec, ExactDeviceRequest) else None
    if admin is not None and not features.admin_access:
        raise AllocationError(f"{where} wants admin access, but the feature is disabled", Reason.FEATURE_OFF)
    if not spec.device_class_name:
        raise AllocationError(f"{where} names no device class", Reason.INCOMPLETE_CLAIM)
    device_class = classes.get(spec.device_class_name)
    if device_class is None:
        raise AllocationError(
            f'{where}: the device class "{spec.device_class_name}" does not exist', Reason.CLASS_NOT_FOUND
        )
    return Alternative(
        name,
        device_class,
        spec.selectors,
        _count(spec, where),
        bool(admin),
        tuple(msgspec.structs.replace(each, operator=each.operator or "Equal") for each in spec.tolerations),
        spec.capacity.requests if spec.capacity is not None else MappingProxyType({}),
        derived if features.derived_attributes else {},
    )


def _count(spec: ExactDeviceRequest | DeviceSubRequest, where: str) -> int | None:
    match spec.allocation_mode:
        case "" | "ExactCount":
            if spec.count is not None and spec.count < 0:
                raise AllocationError(f"{where}: a count of {spec.count} is below 1", Reason.INCOMPLETE_CLAIM)
            return spec.count or 1  # as the API server fills it in
        case "All":
            return None
        case mode:
            raise AllocationError(f'{where}: unsupported allocation mode "{mode}"', Reason.INCOMPLETE_CLAIM)
