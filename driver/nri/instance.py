"""An instance of a driver at a runtime: alone, or one of two while the driver is being replaced."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec


class Instance(Protocol):
    """An instance's part: this one answers, or the other.

    Both instances are asked everything and both decide, so that either can go on where the other ends; one answers.
    """

    @property
    def active(self) -> bool:
        """Return whether this instance sends updates out of turn."""

    @property
    def speaks(self) -> bool:
        """Return whether this instance answers with adjustments where no other is shown the same.

        Without being active it does so as long as the active one is not connected to the runtime.
        """

    def turn(self, request: str) -> bool:
        """Return whether this instance answers the request with adjustments."""

    def connected(self) -> None:
        """Take note that a runtime shows requests to this instance from now on."""

    def disconnected(self) -> None:
        """Take note that no runtime shows requests to this instance any more."""


class _Alone(msgspec.Struct, frozen=True):
    active: bool = True
    speaks: bool = True

    def turn(self, request: str) -> bool:
        del request
        return self.speaks

    def connected(self) -> None:
        pass

    def disconnected(self) -> None:
        pass


ALONE: Final[Instance] = _Alone()
"""The only instance: it answers everything."""
