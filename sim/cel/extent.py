"""Bounds of sizes and costs, as unsigned numbers of 64 bits that end at the greatest (cel-go: checker/cost.go)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """From `least` to `most`: of a size, or of a cost."""

    least: int
    most: int

    def __add__(self, other: Extent) -> Extent:
        """The bounds of a sum."""
        return Extent(min(self.least + other.least, MOST), min(self.most + other.most, MOST))

    def __mul__(self, other: Extent) -> Extent:
        """The bounds of a product."""
        return Extent(min(self.least * other.least, MOST), min(self.most * other.most, MOST))

    def __or__(self, other: Extent) -> Extent:
        """The bounds of either."""
        return Extent(min(self.least, other.least), max(self.most, other.most))

    def scaled(self, factor: float) -> Extent:
        """The bounds of a multiple, rounded up."""
        return Extent(_scaled(self.least, factor), _scaled(self.most, factor))


def _scaled(number: int, factor: float) -> int:
    product = math.ceil(float(number) * factor) if number and factor else 0
    return min(product, MOST)


def exactly(number: int) -> Extent:
    """One number."""
    return Extent(number, number)


UNKNOWN: Final = Extent(0, MOST)
NOTHING: Final = Extent(0, 0)
ONE: Final = Extent(1, 1)
