"""The requests of a claim in one form, and the outcomes of an attempt to allocate it.

Each request is a list of alternatives, of which `exactly` has one. What kube-scheduler refuses before it searches is
found here. It ends the attempt for the pod, but in its turn: another request, before it, may end the attempt first with
what only the devices of a node can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from dranode.api.errors import DranodeError
from dranode.api.quantity import Quantity
from dranode.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dranode.sim.allocator.features import Features

Scope: TypeAlias = Literal["node", "fatal"]


class Reason(Enum):
    """The reason why a claim was not allocated, in stable words."""

    DOES_NOT_FIT = "does-not-fit"
    CLASS_NOT_FOUND = "class-not-found"
    CEL_COMPILE = "cel-compile"
    CEL_RUNTIME = "cel-runtime"
    FEATURE_OFF = "feature-off"
    INCOMPLETE_CLAIM = "incomplete-claim"
    TOO_MANY_DEVICES = "too-many-devices"
    POOL_INCOMPLETE = "pool-incomplete"
    POOL_INVALID = "pool-invalid"
    CONSTRAINT_ON_ALL = "constraint-on-all"
    CAPACITY_OVERFLOW = "capacity-overflow"
    SEARCH_TOO_LONG = "search-too-long"
    SCHEDULER_PANICS = "scheduler-panics"


class AllocationError(DranodeError):
    """The attempt ends here, which is more than that the claim does not fit.

    Attributes:
        message: why, in one sentence; of the scope `node`, kube-scheduler's words.
        reason: the same in stable words.
        scope: `node` lets the scheduler try other nodes, `fatal` ends the attempt for the pod.
        detail: what kube-scheduler does not say.
    """

    def __init__(self, message: str, reason: Reason, scope: Scope = "fatal", detail: str = "") -> None:
        super().__init__(f"{message}: {detail}" if detail else message)
        self.message = message
        self.reason = reason
        self.scope: Scope = scope
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Outcome:
    """The allocation of one claim.

    Attributes:
        claim: the claim.
        node: the node on which it was allocated, or was tried.
        allocation: `status.allocation`, if it was allocated.
        error: one sentence, if it was not.
        reason: the same in stable words.
        scope: `node` or `fatal` for errors; None if the claim simply does not fit.
        notes: one sentence each on what is odd about the answer, though kube-scheduler gives it.
    """

    claim: ResourceClaim
    node: str | None = None
    allocation: AllocationResult | None = None
    error: str | None = None
    reason: Reason | None = None
    scope: Scope | None = None
    notes: tuple[str, ...] = ()


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
