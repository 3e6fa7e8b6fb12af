"""Starts what holds containers to claims once all drivers that pin are there."""

from __future__ import annotations

from typing import Protocol

from dranode.driver.serve.enforcement import Enforcement, PinningDriver


class PinningPart(Protocol):
    """One driver's part in it: `dranode.driver.serve.pinning.Pinning`."""

    driver: PinningDriver
    enforcement: Enforcement | None

    def enforcement_of(self, drivers: tuple[PinningDriver, ...]) -> Enforcement:
        """Return what enforces the records of these drivers."""


class PinningTogether:
    """The drivers of a process that pin, until they start together.

    A runtime tells of its containers once a connection. What it tells is judged by all of the records, so nothing
    connects before all of them can be looked up.
    """

    def __init__(self, count: int) -> None:
        """Wait for so many drivers."""
        self._count = count
        self._joined: list[PinningPart] = []

    def join(self, pinning: PinningPart) -> None:
        """Take in one more; with the last one all of them start."""
        self._joined.append(pinning)
        if len(self._joined) == self._count:
            enforcement = pinning.enforcement_of(tuple(each.driver for each in self._joined))
            for each in self._joined:
                each.enforcement = enforcement
            enforcement.start()
