"""One row of the benchmark table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A figure and a floor that was measured in the same run.

    Attributes:
        name: what was measured.
        value: the figure, in `unit`.
        unit: `s`, `ms`, `us`, `MiB` or the like.
        floor: the figure's lower bound (or a peer's figure), in the same unit; None if there is none.
        floor_name: what the floor is.
        target: the target in words.
        ok: whether the target is met; None if there is no target.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str = ""
    target: str = ""
    ok: bool | None = None
