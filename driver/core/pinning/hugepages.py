"""Counts the huge pages that containers may have: limits in bytes by page size in bytes, sorted, each size once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

HugepageLimits: TypeAlias = tuple[tuple[int, int], ...]

NO_LIMITS: Final[HugepageLimits] = ()


def limit_sums(limits: Iterable[HugepageLimits]) -> HugepageLimits:
    """Add up limits of each page size."""
    sums: dict[int, int] = {}
    for size, amount in (pair for each in limits for pair in each):
        sums[size] = sums.get(size, 0) + amount
    return tuple(sorted(sums.items()))


def limits_over(before: HugepageLimits, after: HugepageLimits) -> HugepageLimits:
    """Return the limits before with those after put over them."""
    return tuple(sorted({**dict(before), **dict(after)}.items())) if after else before


def limits_held_to(
    claimed: HugepageLimits, own: HugepageLimits, sizes: Iterable[int], *, exclusive: bool
) -> HugepageLimits:
    """Return the limits that a container should have; sizes that are left out stay as they are.

    Args:
        claimed: what its claims were given.
        own: what it was configured with, by kubelet or before.
        sizes: the page sizes for which containers can be limited.
        exclusive: whether it gets its claims' pages alone. Else a limit is raised to what claims were given and never
            lowered: a server with DRANodeAllocatableResources has kubelet count the claims already.
    """
    given, before = dict(claimed), dict(own)
    if exclusive:
        return tuple((size, given.get(size, 0)) for size in sizes)
    return tuple((size, max(given[size], before.get(size, 0))) for size in sizes if size in given)
