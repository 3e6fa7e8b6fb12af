"""The picks of an attempt to allocate, and what it met on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from dranode.api.quantity import Quantity
from dranode.sim.allocator.pools import Candidate
from dranode.sim.allocator.requests import Alternative


@dataclass(frozen=True, slots=True)
class DevicePick:
    """One device for one request.

    Attributes:
        alternative: the request or the alternative that it is for.
        number: the candidate's number in the attempt.
        candidate: the device.
        share: what a share of it consumes by capacity; None if it is taken as a whole.
    """

    alternative: Alternative
    number: int
    candidate: Candidate
    share: Mapping[str, Quantity] | None


class Oddity(Enum):
    """Behaviour of kube-scheduler that surprises, and what may have decided the answer."""

    ADMIN_BLOCKS = auto()
    ADMIN_NEEDS_CAPACITY = auto()
    NO_FIXED_ORDER = auto()


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution, or that there is none.

    Attributes:
        picks: for each claim what it gets, in the order of its requests; None if nothing fits.
        oddities: what was met on the way.
    """

    picks: tuple[tuple[DevicePick, ...], ...] | None
    oddities: frozenset[Oddity] = frozenset()
