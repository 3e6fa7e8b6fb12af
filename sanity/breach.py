"""How a check ends if it does not pass."""

from collections.abc import Iterable

import msgspec


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


def listed(values: Iterable[str | tuple[str, ...]]) -> str:
    """Return sorted names for a sentence, and pools and devices as `<pool>/<device>`; `nothing` if there are none."""
    return ", ".join(sorted(value if isinstance(value, str) else "/".join(value) for value in values)) or "nothing"


def shown(value: object) -> str:
    """Return a value for a sentence as JSON, because a driver may be written in any language."""
    return msgspec.json.encode(value).decode()


def expect(holds: object, seen: str, remedy: str) -> None:
    """Raise a breach unless a condition is true.

    Raises:
        Breach: the condition is false.
    """
    if not holds:
        raise Breach(seen, remedy)
