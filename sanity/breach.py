"""The ways in which a check ends that does not pass."""

from __future__ import annotations


class Breach(Exception):  # noqa: N818 - what a check found is no error of the suite
    """A rule that a driver does not keep.

    Attributes:
        seen: what was seen, with the values.
        remedy: what the driver's author can do.
    """

    def __init__(self, seen: str, remedy: str) -> None:
        super().__init__(seen)
        self.seen = seen
        self.remedy = remedy


class Unable(Exception):  # noqa: N818 - likewise
    """A check cannot be run here; the text says why and, where there is a way, what would let it run."""


def expect(holds: object, seen: str, remedy: str) -> None:
    """Report a breach unless something holds.

    Raises:
        Breach: it does not hold.
    """
    if not holds:
        raise Breach(seen, remedy)
