"""How a check ends if it does not pass."""

from __future__ import annotations


class Breach(Exception):  # noqa: N818 - what a check found is no error of the suite
    """A driver breaks a rule.

    Attributes:
        seen: what was seen, with the values.
        remedy: what the driver's author can do.
    """

    def __init__(self, seen: str, remedy: str) -> None:
        super().__init__(seen)
        self.seen = seen
        self.remedy = remedy


class Unable(Exception):  # noqa: N818 - likewise
    """A check cannot be run here; the text says why and, if possible, how to make it run."""


def expect(holds: object, seen: str, remedy: str) -> None:
    """Raise a breach unless a condition is true.

    Raises:
        Breach: the condition is false.
    """
    if not holds:
        raise Breach(seen, remedy)
