"""The state of a driver's ResourceSlices, for readiness and metrics."""

from __future__ import annotations

from typing import Final

import msgspec


class PublisherStatus(msgspec.Struct, frozen=True):
    """The state of the slices of one driver.

    Attributes:
        published: all devices of the driver are published, as far as is known.
        problem: why they are not, or what has gone wrong since; None if nothing has.
        dropped: the feature gates whose fields the server drops.
        created: slices created since start.
        updated: slices updated since start.
        deleted: slices deleted since start.
        repairs: how often the driver undid changes of others since start.
    """

    published: bool = False
    problem: str | None = None
    dropped: frozenset[str] = frozenset()
    created: int = 0
    updated: int = 0
    deleted: int = 0
    repairs: int = 0

    @property
    def writes(self) -> int:
        """Return the number of successful writes since start."""
        return self.created + self.updated + self.deleted


NOTHING_YET: Final = PublisherStatus(problem="nothing was published yet")
"""The status of a driver that has not published since it started."""
