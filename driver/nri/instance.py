"""An instance of a driver at a runtime: alone, or one of two while the driver is being replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol


class Instance(Protocol):
    """An instance's part: this one answers, or the other.

    Both instances are asked everything and both decide, so that either can go on where the other ends; one answers.
    """

    @property
    def active(self) -> bool:
        """Return whether this instance sends updates out of turn."""

    def turn(self, request: str) -> bool:
        """Return whether this instance answers the request with adjustments."""


@dataclass(frozen=True, slots=True)
class _Alone:
    active: bool = True

    def turn(self, request: str) -> bool:
        del request
        return self.active


ALONE: Final[Instance] = _Alone()
"""The only instance: it answers everything."""
