"""How a driver's ResourceSlices are, for readiness and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """How the slices of one driver are.

    Attributes:
        published: everything that the driver has was published, and stands as far as is known.
        problem: why not, or what is wrong since; None if nothing is.
        dropped: the feature gates whose fields the server drops.
        created: slices created since start.
        updated: slices updated since start.
        deleted: slices deleted since start.
        repairs: how often others' changes were undone since start.
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
        """All writes that succeeded since start."""
        return self.created + self.updated + self.deleted


NOTHING_YET: Final = PublisherStatus(problem="nothing was published yet")
"""Of a driver that has not published since it started."""
