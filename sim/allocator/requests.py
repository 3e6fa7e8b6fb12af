"""The requests of a claim in a uniform form, and the outcomes of an attempt to allocate it.

A request is a list of alternatives; `exactly` is a list of one. Requests that kube-scheduler refuses before the search
are detected here, but the error is raised later, in the order of the requests: an earlier request may end the attempt
with another error that depends on the devices of the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from dranode.api.documents import encode_json
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
    """The reason why a claim was not allocated, in words that do not change."""

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
    """An error that ends the attempt, unlike a claim that simply does not fit.

    Attributes:
        message: the cause in one sentence; with the scope `node`, kube-scheduler's words.
        reason: the cause in words that do not change.
        scope: with `node`, the scheduler tries other nodes; `fatal` ends the attempt for the pod.
        detail: details that kube-scheduler does not report.
    """

    def __init__(self, message: str, reason: Reason, scope: Scope = "fatal", detail: str = "") -> None:
        super().__init__(f"{message}: {detail}" if detail else message)
        self.message = message
        self.reason = reason
        self.scope: Scope = scope
        self.detail = detail


@dataclass(frozen=True)
class DeviceDemand:
    """Claims to allocate together.

    Attributes:
        claims: the claims.
        requests: the requests of each claim.
    """

    claims: tuple[ResourceClaim, ...]
    requests: tuple[tuple[AllocationRequest, ...], ...]

    @property
    def pairs(self) -> Iterator[tuple[ResourceClaim, tuple[AllocationRequest, ...]]]:
        """Return each claim with its requests."""
        return zip(self.claims, self.requests, strict=True)

    @cached_property
    def key(self) -> bytes:
        """Return a value that is equal for claims with equal specs."""
        return b"\n".join(encode_json(claim.spec) for claim in self.claims)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of allocating one claim.

    Attributes:
        claim: the claim.
        node: the node where it was allocated or tried.
        allocation: `status.allocation`, if it was allocated.
        error: one sentence, if it was not.
        reason: the same in words that do not change.
        scope: `node` or `fatal` for errors; None if the claim simply does not fit.
        notes: one sentence for each surprising behavior of kube-scheduler in this answer.
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
    """An exact request, or one entry of a prioritized list.

    Attributes:
        name: `<request>` or `<request>/<subrequest>`.
        device_class: the class.
        selectors: the selectors of the request, in addition to those of the class.
        count: the number of devices; None for all that match.
        admin: whether the request has admin access, which ignores whether devices are in use.
        tolerations: with the API server's default operator.
        capacity: the requested amount of each capacity.
        derived: expressions by attribute name, whose values replace the device's attributes in constraints.
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
    """A request with its alternatives in order of preference.

    Attributes:
        name: the request.
        alternatives: the alternatives before the first refused one; at least one if none is refused.
        listed: whether they come from `firstAvailable`.
        refusal: the error of the first refused alternative, which ends the attempt; None without one.
    """

    name: str
    alternatives: tuple[Alternative, ...]
    listed: bool
    refusal: AllocationError | None = None


def claim_name(claim: ResourceClaim) -> str:
    """Return namespace and name, for messages."""
    namespace = claim.metadata.namespace
    return f"{namespace}/{claim.metadata.name}" if namespace else claim.metadata.name


def allocation_requests(
    claim: ResourceClaim, classes: Mapping[str, DeviceClass], features: Features
) -> tuple[AllocationRequest, ...]:
    """Return the requests of the claim; one with a missing class, a disabled feature or an unknown mode is refused."""
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
    """Raise the errors that kube-scheduler raises before it checks any alternative."""
    if request.first_available and not features.prioritized_list:
        raise AllocationError(
            f"{where} has subrequests, but the DRAPrioritizedList feature is disabled", Reason.FEATURE_OFF
        )
    if not request.first_available and request.exactly is None:
        raise AllocationError(f"{where} has neither exactly nor firstAvailable", Reason.INCOMPLETE_CLAIM)
    if features.consumable_capacity or not features.beyond_stable:
        return
    if any(option.capacity is not None for option in request.options.values()):
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
    derived = {attribute.name: attribute.expression for attribute in spec.derived_attributes}
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
        tuple(
            msgspec.structs.replace(toleration, operator=toleration.operator or "Equal")
            for toleration in spec.tolerations
        ),
        spec.capacity.requests if spec.capacity is not None else MappingProxyType({}),
        derived if features.derived_attributes else {},
    )


def _count(spec: ExactDeviceRequest | DeviceSubRequest, where: str) -> int | None:
    match spec.allocation_mode:
        case "" | "ExactCount":
            if spec.count is not None and spec.count < 0:
                raise AllocationError(f"{where}: a count of {spec.count} is below 1", Reason.INCOMPLETE_CLAIM)
            return spec.count or 1  # the API server's default
        case "All":
            return None
        case mode:
            raise AllocationError(f'{where}: unsupported allocation mode "{mode}"', Reason.INCOMPLETE_CLAIM)
