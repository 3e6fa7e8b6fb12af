"""The operands of a call whose cost is estimated, and the estimate (cel-go: checker/cost.go)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dranode.sim.cel.extent import UNKNOWN, Extent
from dranode.sim.cel.types import CELType


@dataclass(frozen=True, slots=True)
class Estimate:
    """The bounds of a cost, and of the size of the result if that is known."""

    cost: Extent
    size: Extent | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument.

    Attributes:
        path: where it is in a device; empty if it is in none.
        literal: its value if it is written out.
        size_of_path: the sizes of what is in a device.
    """

    type: CELType
    size: Extent | None
    path: tuple[str, ...]
    literal: Any
    size_of_path: Callable[[tuple[str, ...]], Extent | None]

    @property
    def known_size(self) -> Extent:
        """Its size, which can be anything if nothing is known."""
        if self.size is not None:
            return self.size
        return (self.size_of_path(self.path) if self.path else None) or UNKNOWN

    @property
    def element(self) -> Operand | None:
        """Return what stands for an element of it."""
        if not self.type.parameters:
            return None
        path = (*self.path, "@items") if self.path else ()
        return Operand(self.type.parameters[0], None, path, None, self.size_of_path)

    def number(self, otherwise: int) -> int:
        """The literal number, of negative ones 0."""
        if type(self.literal) is not int:
            return otherwise
        return max(self.literal, 0)


EstimateRule: TypeAlias = Callable[[Operand | None, Sequence[Operand]], Estimate | None]
