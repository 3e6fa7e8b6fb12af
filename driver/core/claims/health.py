"""The health of devices, and the claims that have less than they were given."""

from __future__ import annotations

from enum import Enum

import msgspec

from dranode.driver.core.claims.held import ClaimRef


class Health(Enum):
    """A device's health, in the words of DRAResourceHealth."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


class DeviceHealth(msgspec.Struct, frozen=True):
    """The health of a device, and its reason in a sentence of at most 1,024 bytes."""

    device: str
    health: Health
    message: str = ""


class Impairment(msgspec.Struct, frozen=True):
    """A claim that has less at the moment than it was given.

    Attributes:
        claim: whose.
        reason: one word in camel case, for a condition or an Event.
        message: what is missing, in a sentence.
    """

    claim: ClaimRef
    reason: str
    message: str
