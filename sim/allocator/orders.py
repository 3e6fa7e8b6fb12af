"""The orders in which pools and slices may be searched by releases that have none that is fixed.

Go's maps, from which they take pools and slices, are walked in another order each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from math import factorial, prod
from typing import Final, TypeVar

from dranode.sim.allocator.pools import Candidate, Pool

# Of more orders than these, as many are taken, evenly.
MAX_ORDERS: Final = 24

T = TypeVar("T")


def orders(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    """The pools in other orders than the one given: all, or `MAX_ORDERS` of them."""
    slices = [_slices(pool) for pool in pools]
    count = factorial(len(pools)) * prod(factorial(len(each)) for each in slices)
    step = count // MAX_ORDERS | 1 if count > MAX_ORDERS else 1
    for number in range(step, count, step):
        rest, made = number, []
        for pool, each in zip(pools, slices, strict=True):
            rest, inside = divmod(rest, factorial(len(each)))
            made.append(replace(pool, candidates=tuple(chain.from_iterable(_permutation(each, inside)))))
        yield tuple(_permutation(made, rest))


def _permutation(items: Sequence[T], number: int) -> list[T]:
    """The permutation of that number, of as many as there are; number 0 leaves the items as they are."""
    left, made = list(items), []
    for size in range(len(items), 0, -1):
        number, index = divmod(number, size)
        made.append(left.pop(index))
    return made


def _slices(pool: Pool) -> list[tuple[Candidate, ...]]:
    return [tuple(group) for _, group in groupby(pool.candidates, key=lambda candidate: id(candidate.slice))]
