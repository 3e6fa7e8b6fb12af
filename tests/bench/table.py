"""One row of the benchmark table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A figure beside the floor that was measured in the same run.

    Attributes:
        name: what was measured.
        value: the figure, in `unit`.
        unit: `s`, `ms`, `us`, `MiB` or the like.
        floor: what the figure cannot go below (or a peer), in the same unit; None if there is none.
        floor_name: what the floor is.
        target: the promise, in words.
        ok: whether the promise is kept; None if nothing was promised.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str = ""
    target: str = ""
    ok: bool | None = None
