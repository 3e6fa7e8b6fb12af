"""Finds the counts that whole cores, or whole caches, can make: sums of sizes.

A set of counts is an integer with bit n set for the count n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec


def sums(sizes: Mapping[int, int]) -> int:
    """The set of counts that some of the things add up to, 0 among them; `sizes` has the number of things by size."""
    counts = 1
    for size, number in sizes.items():
        for taken in _bundles(number):
            counts |= counts << size * taken
    return counts


def subset_of(items: Iterable[int], total: int) -> list[int]:
    """The masks, in this order and each taken if the rest can still be made, whose sizes add up to `total` exactly.

    A mask's size is its number of bits, and `total` one of the `sums` of the sizes; for another the answer falls short.
    """
    items = list(items)
    remaining = Counter(item.bit_count() for item in items)
    chosen: list[int] = []
    for item in items:
        size = item.bit_count()
        remaining[size] -= 1
        if size <= total and sums(remaining) >> total - size & 1:
            chosen.append(item)
            total -= size
    return chosen


class Sum(msgspec.Struct, frozen=True):
    """Things that add up to a total: how much they are worth together, and how many of each kind there are."""

    worth: int
    numbers: Mapping[tuple[int, int], int]


def most(kinds: Mapping[tuple[int, int], int], limit: int) -> Mapping[int, Sum]:
    """Return for every total up to a limit the things that make it and are worth the most.

    Args:
        kinds: the number of things by their size and worth.
        limit: the greatest total that matters.
    """
    best = {0: Sum(0, {})}
    for (size, worth), number in kinds.items():
        for taken in _bundles(number):
            # The sums before this bundle: it is taken once.
            for total, found in tuple(best.items()):
                more, value = total + size * taken, found.worth + worth * taken
                if more <= limit and (more not in best or best[more].worth < value):
                    numbers = {**found.numbers, (size, worth): found.numbers.get((size, worth), 0) + taken}
                    best[more] = Sum(value, numbers)
    return best


def _bundles(number: int) -> Iterator[int]:
    """Split a number into bundles of 1, 2, 4 ... and a rest, some of which make every number up to it."""
    bundle = 1
    while number:
        yield min(bundle, number)
        number -= min(bundle, number)
        bundle *= 2


class CoreSizes(msgspec.Struct, frozen=True):
    """The cores of each size that can be taken whole: `sizes` has the number of cores by CPUs of a core."""

    sizes: Mapping[int, int]

    @classmethod
    def of(cls, cores: Iterable[int], mask: int) -> CoreSizes:
        """Those of the cores that lie in the mask with all their CPUs."""
        return cls(Counter([core.bit_count() for core in cores if core & mask == core]))

    def without(self, cores: Sequence[int], mask: int) -> CoreSizes:
        """Return what is left after the cores in the mask, which must be whole, are taken."""
        gone = Counter((mask.bit_count(),)) if mask in cores else CoreSizes.of(cores, mask).sizes
        return CoreSizes({size: number - gone.get(size, 0) for size, number in self.sizes.items()})

    def can_make(self, count: int) -> bool:
        """Return whether some of the cores have `count` CPUs together."""
        return count >= 0 and bool(sums(self.sizes) >> count & 1)
