"""Bounds on what an expression builds, beyond what Kubernetes' cost limit stops.

A list that is added to itself again and again, or a text in which every character is replaced, grows faster than what
it costs. Kubernetes' API server would take gigabytes; this program stops.
"""

from __future__ import annotations

from typing import Final

from dranode.sim.cel.errors import CELCancelledError

_MAX_LENGTH: Final = 20_000_000
_MAX_ELEMENTS: Final = 2_000_000


def check_length(length: int) -> None:
    """Refuse a text that is too long.

    Raises:
        CELCancelledError: it has more characters or bytes than are built here.
    """
    if length > _MAX_LENGTH:
        raise CELCancelledError(f"operation cancelled: a text of {length:,} characters, more than {_MAX_LENGTH:,}")


def check_elements(count: int) -> None:
    """Refuse a list that is too long.

    Raises:
        CELCancelledError: it has more elements than are built here.
    """
    if count > _MAX_ELEMENTS:
        raise CELCancelledError(f"operation cancelled: a list of {count:,} elements, more than {_MAX_ELEMENTS:,}")
