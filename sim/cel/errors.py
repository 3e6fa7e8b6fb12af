"""The errors of expressions, and the bounds on what an expression may build here.

A list that is added to itself again and again, or a text in which every character is replaced, grows faster than its
cost. Kubernetes' API server would take gigabytes; this program stops.
"""

from __future__ import annotations

from typing import Final

from dranode.api.errors import DranodeError


class CELCompileError(DranodeError):
    """An expression that Kubernetes would not accept."""


class CELRuntimeError(DranodeError):
    """An expression that fails on a device; kube-scheduler gives the pod up."""


class CELCancelledError(CELRuntimeError):
    """An evaluation that costs more than Kubernetes or this program pays; no operator absorbs it."""


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
