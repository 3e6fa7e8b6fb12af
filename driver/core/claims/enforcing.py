"""Why containers are not held to the claims of a driver that pins, and which claims that concerns."""

from __future__ import annotations

from typing import Final

import msgspec

from dranode.driver.core.claims.record import Record

NOT_ENFORCED: Final = "NotEnforced"
"""The reason of a condition or an Event."""


class NotEnforced(msgspec.Struct, frozen=True):
    """Why containers are not held to claims.

    Attributes:
        message: the reason, in one sentence.
        chosen: whether the driver's options want it so; else no claim is prepared meanwhile.
    """

    message: str
    chosen: bool = False


BY_OPTION: Final = NotEnforced(
    "its containers are not held to it, because the driver runs with --nri-socket none: they run on all CPUs and take "
    "memory from anywhere, unless somebody else pins them",
    chosen=True,
)


def no_runtime(socket: str, seconds: float) -> NotEnforced:
    """Return that no container runtime has been connected at a socket for so long."""
    return NotEnforced(
        f"claims are not enforced: no container runtime has been connected over NRI at {socket} for {seconds:.0f} s, "
        "so containers would run on CPUs of other claims; switch NRI on in the runtime (dranode doctor on the node "
        "says how), or run the driver with --nri-socket none to do without"
    )


def needs_enforcing(record: Record) -> bool:
    """Return whether containers with a claim on record are to be held to something: not with admin access alone."""
    return bool(record.held) or any(not grant.admin for grant in record.grants)
