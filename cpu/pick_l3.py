"""Picks that must keep to L3 caches: inside one cache, else whole caches and at most one part of one.

A count that is no larger than a cache must lie inside one. A larger one takes caches with all their CPUs, and what is
then missing from inside one further cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from dranode.cpu.pick_packed import CoreSizes, l3_order, packed, subset_of, sums
from dranode.cpu.topology import CPUGroups


class Caches(msgspec.Struct, frozen=True):
    """The L3 caches with candidates.

    Attributes:
        free: the candidates of every cache, in the order in which packed tries them.
        entire: those of them that have all CPUs of their cache.
        parts: for every cache, the counts that it can give alone (bit n set: n CPUs).
        largest: CPUs of the largest of them, used or not.
        none_known: whether the kernel reports no L3 cache at all.
    """

    free: tuple[int, ...]
    entire: tuple[int, ...]
    parts: tuple[int, ...]
    largest: int
    none_known: bool

    @classmethod
    def of(cls, groups: CPUGroups, candidates: int, *, whole: bool) -> Caches:
        """The caches of the candidates; with `whole`, of which only whole cores are taken."""
        candidates &= ~groups.without_l3
        order = l3_order(groups, candidates)
        caches = [groups.l3[index] for index in order]
        free = tuple(cache & candidates for cache in caches)
        parts = [(2 << mask.bit_count()) - 1 for mask in free]
        if whole:
            parts = [sums(CoreSizes.of(groups.cores_of_l3[index], candidates).sizes) for index in order]
        return cls(
            free=free,
            entire=tuple(mask for mask, cache in zip(free, caches, strict=True) if mask == cache),
            parts=tuple(parts),
            largest=max(map(int.bit_count, caches), default=0),
            none_known=not groups.cpus_per_l3,
        )

    def accept(self, picked: int) -> bool:
        """Return whether a pick of the candidates keeps to the caches."""
        touched = [mask for mask in self.free if mask & picked]
        if sum((mask & picked).bit_count() for mask in touched) != picked.bit_count():
            return False
        if picked.bit_count() <= self.largest:
            return len(touched) <= 1
        return sum(mask & picked != mask or mask not in self.entire for mask in touched) <= 1

    def counts(self) -> int:
        """Every count that can be picked (bit n set: n CPUs)."""
        inside = 1
        across = self._others(0)
        # Caches are alike in a few ways only.
        for part, size in {(part, self._entire_size(mask)) for mask, part in zip(self.free, self.parts, strict=True)}:
            inside |= part
            others = self._others(size)
            for count in _bits(part):
                across |= others << count
        small = (2 << self.largest) - 1
        return inside & small | across & ~small

    def _entire_size(self, mask: int) -> int:
        """Return how much these free CPUs of a cache add if whole caches are taken: all or nothing."""
        return mask.bit_count() if mask in self.entire else 0

    def _others(self, size: int) -> int:
        """The counts that whole caches make without one of that size; of all of them for 0."""
        remaining = Counter(map(int.bit_count, self.entire))
        if size:
            remaining[size] -= 1
        return sums(remaining)

    def split(self, count: int) -> tuple[Sequence[int], int, int]:
        """The caches to take whole, and the cache that gives a part and how much of it.

        As much as possible is in whole caches, the part in the first cache in order.

        Returns:
            The masks of the caches to take whole, the mask of the candidates in the cache that gives a part (0: none),
            and the number of CPUs of that part.

        Raises:
            ValueError: `count` is not one of `counts`.
        """
        if count <= self.largest:
            index = next(index for index, part in enumerate(self.parts) if part >> count & 1)
            return (), self.free[index], count
        best: tuple[int, int] | None = None
        if self._others(0) >> count & 1:
            best = 0, 0
        for mask, part in zip(self.free, self.parts, strict=True):
            others = self._others(self._entire_size(mask))
            for size in _bits(part):
                if size <= count and others >> count - size & 1 and (best is None or size < best[0]):
                    best = size, mask
        if best is None:
            raise ValueError(f"{count} CPUs cannot be split over the caches")
        size, cache = best
        return subset_of((mask for mask in self.entire if mask != cache), count - size), cache, size


def required(groups: CPUGroups, caches: Caches, count: int, *, spread: bool, whole: bool) -> int | None:
    """The mask of `count` candidates that keeps to the caches; None if there is none.

    `caches` are those of the candidates, made with the same `whole`; `spread` is that of `packed`, for the part.
    """
    if not caches.counts() >> count & 1:
        return None
    entire, cache, size = caches.split(count)
    part = packed(groups, cache, size, spread=spread, whole=whole) if size else 0
    return sum(entire) | part


def _bits(counts: int) -> list[int]:
    return [count for count in range(counts.bit_length()) if counts >> count & 1]
