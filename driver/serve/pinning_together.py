"""What holds containers to claims starts once all drivers that pin are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dranode.driver.serve.pinning import Pinning


class PinningTogether:
    """The drivers of a process that pin, until they start together.

    A runtime tells of its containers once a connection. What it tells is judged by all of the records, so nothing
    connects before all of them can be looked up.
    """

    def __init__(self, count: int) -> None:
        """Wait for so many drivers."""
        self._count = count
        self._joined: list[Pinning] = []

    def join(self, pinning: Pinning) -> None:
        """Take in one more; with the last one all of them start."""
        self._joined.append(pinning)
        if len(self._joined) == self._count:
            enforcement = pinning.enforcement_of(tuple(each.driver for each in self._joined))
            for each in self._joined:
                each.enforcement = enforcement
            enforcement.start()
