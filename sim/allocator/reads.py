"""Finds what no claim looks at in devices, such as serial numbers, which therefore does not tell them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from dranode.api.resource import (
    Device,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
)
from dranode.sim.cel.expression import split_name
from dranode.sim.cel.known import KnownToCEL
from dranode.sim.cel.reads import AttributeName, attributes_read


@dataclass(frozen=True, slots=True)
class AttributesRead:
    """The attributes that selectors and constraints look at.

    Attributes:
        names: domain and identifier of each; None if it may be any.
    """

    names: frozenset[AttributeName] | None

    @classmethod
    def of(cls, claims: Iterable[DeviceClaim], classes: Iterable[DeviceClass], declared: KnownToCEL) -> AttributesRead:
        """Look at claims and classes, whose expressions may use what is declared."""
        names: set[AttributeName] = set()
        for device_class in classes:
            if not _enter(names, device_class.spec.selectors, declared):
                return cls(None)
        for claim in claims:
            if not _enter_claim(names, claim, declared):
                return cls(None)
        return cls(frozenset(names))

    def covers(self, claim: DeviceClaim, declared: KnownToCEL) -> bool:
        """Return whether the claim looks at nothing else."""
        if self.names is None:
            return True
        names: set[AttributeName] = set()
        return _enter_claim(names, claim, declared) and names <= self.names

    def distinguishing(self, device: Device, driver: str) -> Device:
        """Return the device without its name, and without attributes that nobody looks at.

        Those remain whose mere presence may end an evaluation: lists, versions, and what has no value.
        """
        if self.names is None:
            return msgspec.structs.replace(device, name="")
        names = self.names
        attributes = {
            name: attribute
            for name, attribute in device.attributes.items()
            if not _is_plain(attribute) or split_name(name, driver) in names or ("", name.rpartition("/")[2]) in names
        }
        return msgspec.structs.replace(device, name="", attributes=attributes)


def _enter_claim(names: set[AttributeName], claim: DeviceClaim, declared: KnownToCEL) -> bool:
    """Add what a claim looks at; False if it may be any attribute."""
    for constraint in claim.constraints:
        for name in (constraint.match_attribute, constraint.distinct_attribute):
            if name is not None:
                domain, _, identifier = name.rpartition("/")
                names.add((domain, identifier))
    return all(
        not request.derived_attributes and _enter(names, request.selectors, declared)
        for request in _exact_requests(claim)
    )


def _exact_requests(claim: DeviceClaim) -> Iterator[ExactDeviceRequest | DeviceSubRequest]:
    for request in claim.requests:
        if request.exactly is not None:
            yield request.exactly
        yield from request.first_available


def _enter(names: set[AttributeName], selectors: Iterable[DeviceSelector], declared: KnownToCEL) -> bool:
    for selector in selectors:
        read = attributes_read(selector.cel.expression, declared) if selector.cel is not None else frozenset()
        if read is None:
            return False
        names |= read
    return True


def _is_plain(attribute: DeviceAttribute) -> bool:
    return any(value is not None for value in (attribute.int_, attribute.bool_, attribute.string)) and not any(
        value is not None
        for value in (attribute.version, attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    )
