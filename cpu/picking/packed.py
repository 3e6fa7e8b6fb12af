"""Packed picks, and spread picks in dra-driver-cpu's order: best fit along the machine's hierarchy.

The algorithm is dra-driver-cpu's (`pkg/cpumanager`), which is kubelet's static CPU manager policy: whole NUMA nodes and
packages, then L3 caches, then cores, then single CPUs, each from where the fewest are free. On machines whose core ids
are unique both drivers give the same answers, except where the original is wrong:

- A core, package or cache is whole if all its own CPUs are free, not if the average number of the machine is free.
  So on an unevenly populated or hybrid machine no CPU is picked that is not free.
- Equal core ids in two packages are two cores.
- A group that belongs to two places of the hierarchy is taken once, not counted twice.

Averages still decide two preferences, as in the original: how many cores of an L3 cache are tried for a part of it, and
the smallest count for which whole L3 caches are tried. They never make an answer wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

import msgspec

from dranode.cpu.topology import CPUGroups, GroupPart

T = TypeVar("T")

# The counts that whole cores, or whole caches, can make: sums of their sizes. A set of counts is an integer with bit n
# set for the count n.


def sums(sizes: Mapping[int, int]) -> int:
    """Return the counts that some of the items add up to, 0 included; `sizes` has the number of items by size."""
    counts = 1
    for size, number in sizes.items():
        for taken in _bundles(number):
            counts |= counts << size * taken
    return counts


def subset_of(items: Iterable[int], total: int) -> list[int]:
    """Return masks whose sizes add up to `total`: each in order, if the rest can still be made of the others.

    The size of a mask is its number of bits. If `total` is not one of the `sums` of the sizes, the answer is too small.
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
    """Items that add up to a total: how much they are worth together, and how many of each kind there are."""

    worth: int
    numbers: Mapping[tuple[int, int], int]


def most(kinds: Mapping[tuple[int, int], int], limit: int) -> Mapping[int, Sum]:
    """Return, for every total up to a limit, the items that make it and are worth the most.

    Args:
        kinds: the number of items by their size and worth.
        limit: the greatest total that matters.
    """
    best = {0: Sum(0, {})}
    for (size, worth), number in kinds.items():
        for taken in _bundles(number):
            # A copy of the sums without this bundle, so that it is used once.
            for total, items in tuple(best.items()):
                more, value = total + size * taken, items.worth + worth * taken
                if more <= limit and (more not in best or best[more].worth < value):
                    numbers = {**items.numbers, (size, worth): items.numbers.get((size, worth), 0) + taken}
                    best[more] = Sum(value, numbers)
    return best


def _bundles(number: int) -> Iterator[int]:
    """Split a number into bundles of 1, 2, 4 ... and a rest, whose sums make every number up to it."""
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
        """Return the sizes of the cores that are completely in the mask."""
        return cls(Counter([core.bit_count() for core in cores if core & mask == core]))

    def without(self, cores: Sequence[int], mask: int) -> CoreSizes:
        """Return the sizes that are left after the cores in the mask are taken; the mask has whole cores only."""
        gone = Counter((mask.bit_count(),)) if mask in cores else CoreSizes.of(cores, mask).sizes
        return CoreSizes({size: number - gone.get(size, 0) for size, number in self.sizes.items()})

    def can_make(self, count: int) -> bool:
        """Return whether some of the cores have `count` CPUs together."""
        return count >= 0 and bool(sums(self.sizes) >> count & 1)


def numa_order(groups: CPUGroups, free: int) -> list[int]:
    """Return the indexes of NUMA nodes with free CPUs, fewest free first; by package if packages contain nodes."""
    if groups.numa_on_top:
        return _least_free(groups.numa, free)
    return _nested(_least_free(groups.packages, free), groups.numa_of_package, groups.numa, free)


def package_order(groups: CPUGroups, free: int) -> list[int]:
    """Return the indexes of packages with free CPUs, fewest free first; by NUMA node if nodes contain packages."""
    if groups.numa_on_top:
        return _nested(_least_free(groups.numa, free), groups.packages_of_numa, groups.packages, free)
    return _least_free(groups.packages, free)


def l3_order(groups: CPUGroups, free: int) -> list[int]:
    """Return the indexes of L3 caches with free CPUs, in the order of the NUMA nodes, fewest free first."""
    return _nested(numa_order(groups, free), groups.l3_of_numa, groups.l3, free)


def core_order(groups: CPUGroups, free: int) -> Iterator[int]:
    """Yield the free CPUs of each core as masks, in the order of the level above, fewest free first.

    This is an iterator because a small pick needs only the first few.
    """
    for cores in _core_lists(groups, free):
        yield from sorted(filter(None, [core & free for core in cores]), key=int.bit_count)


def fewest(places: list[T], count: int, size: Callable[[T], int]) -> list[T]:
    """Order places so that as few as possible give the count: the largest first, and a small one for the rest."""
    ordered = sorted(places, key=size, reverse=True)
    for index, place in enumerate(ordered):
        if count <= size(place):
            # The smallest place that has enough gives the rest, so that the others stay whole.
            last = min(range(index, len(ordered)), key=lambda at: (size(ordered[at]) < count, size(ordered[at])))
            ordered.insert(index, ordered.pop(last))
            break
        count -= size(place)
    return ordered


def packed(
    groups: CPUGroups, candidates: int, count: int, *, spread: bool = False, prefer_l3: bool = True, whole: bool = False
) -> int:
    """Return the mask of `count` of the candidates, packed, or spread over cores.

    With `whole` only whole cores are taken. The candidates must then be whole cores, and some of them must make exactly
    `count`. Without it they must be at least `count` CPUs.

    Args:
        groups: the machine's groups, as masks.
        candidates: the CPUs to choose from, as a mask.
        count: how many CPUs.
        spread: whether they are spread over cores rather than packed into them.
        prefer_l3: whether L3 caches are a level of the hierarchy.
        whole: whether only whole cores are taken.
    """
    # If all cores have one size, no choice can make the rest impossible.
    sizes = CoreSizes.of(groups.cores, candidates) if whole else None
    taking = _Taking(groups, candidates, count, sizes if sizes and len(sizes.sizes) > 1 else None)
    numa = (groups.numa, numa_order)
    packages = (groups.packages, package_order)
    for masks, order in (numa, packages) if groups.numa_on_top else (packages, numa):
        if taking.need:
            taking.take_whole(masks, order(groups, taking.free))
    if taking.need and prefer_l3:
        taking.take_l3(l3_order(groups, taking.free))
    if taking.need and not spread:
        taking.take_cores()
    elif taking.need and whole:
        taking.take_spread_cores()
    if taking.need:
        taking.take_cpus(_spread_cpus(groups, taking.free) if spread else core_order(groups, taking.free))
    return taking.taken


class _Taking:
    """A pick in progress: what is still free, what is taken and how many CPUs are missing."""

    __slots__ = ("free", "groups", "need", "sizes", "taken")

    def __init__(self, groups: CPUGroups, candidates: int, count: int, sizes: CoreSizes | None) -> None:
        self.groups = groups
        self.free = candidates
        self.need = max(count, 0)
        self.taken = 0
        self.sizes = sizes

    def take(self, mask: int) -> None:
        """Take these free CPUs, unless only whole cores are taken and the others cannot make the rest of the count."""
        size = mask.bit_count()
        if self.sizes is not None:
            rest = self.sizes.without(self.groups.cores, mask)
            if not rest.can_make(self.need - size):
                return
            self.sizes = rest
        self.free ^= mask
        self.taken |= mask
        self.need -= size

    def take_whole(self, masks: Sequence[int], order: Iterable[int]) -> None:
        """Take the groups that are completely free and not larger than the missing count."""
        for index in order:
            mask = masks[index]
            if mask & self.free == mask and mask.bit_count() <= self.need:
                self.take(mask)

    def take_l3(self, order: Sequence[int]) -> None:
        """Take whole L3 caches, then a part of one if it can give exactly the missing count."""
        if self.need >= self.groups.cpus_per_l3:
            self.take_whole(self.groups.l3, order)
        for index in order:
            if not self.need:
                return
            # On a full machine nearly every cache has too few: counting is much cheaper than walking over its cores.
            if (self.groups.l3[index] & self.free).bit_count() >= self.need:
                part = self._part_of_l3(index)
                if part.bit_count() == self.need:
                    self.take(part)

    def _part_of_l3(self, index: int) -> int:
        """Return the free CPUs of the first cores of a cache: as many cores as the missing CPUs need on average."""
        threads = self.groups.threads_per_core
        cores, part = -(-self.need // threads), 0
        inside = self.groups.l3[index] & self.free
        for core in self.groups.cores_of_l3[index]:
            if free := core & inside:
                part |= free
                cores -= 1
                if not cores:
                    break
        odd = self.need % 2 and threads > 1
        if odd and self.sizes is None and part.bit_count() > self.need:
            part ^= 1 << part.bit_length() - 1
        return part

    def take_cores(self) -> None:
        """Take cores that are completely free and not larger than the missing count."""
        for cores in _core_lists(self.groups, self.free):
            if self.need < self.groups.smallest_core:
                return
            free = self.free
            for core in sorted([core for core in cores if core & free == core], key=int.bit_count):
                size = core.bit_count()
                if size > self.need:
                    break
                self.take(core)

    def take_spread_cores(self) -> None:
        """Take whole cores in the order of their first CPUs, package by package."""
        for index in package_order(self.groups, self.free):
            cores = [core for core in self.groups.cores_of_package[index] if core & self.free == core]
            for core in sorted(cores, key=lambda core: core & -core):
                if core.bit_count() <= self.need:
                    self.take(core)

    def take_cpus(self, order: Iterable[int]) -> None:
        """Take single CPUs, lowest first, from the masks in order until none is missing."""
        for mask in order:
            part = lowest(mask & self.free, self.need)
            self.take(part)
            if not self.need:
                return


def lowest(mask: int, count: int) -> int:
    """Return the `count` lowest bits of a mask; the whole mask if it has fewer."""
    if mask.bit_count() <= count:
        return mask
    rest = mask
    for _ in range(count):
        rest &= rest - 1
    return mask ^ rest


def _least_free(masks: Sequence[int], free: int) -> list[int]:
    counts = [(mask & free).bit_count() for mask in masks]
    # The sort is stable: ties stay in the order of ids.
    return sorted([index for index, count in enumerate(counts) if count], key=counts.__getitem__)


def _nested(outer: Iterable[int], parts: Sequence[tuple[GroupPart, ...]], masks: Sequence[int], free: int) -> list[int]:
    """Return the groups with a free CPU in each outer group, fewest free first; each group once."""
    order: dict[int, None] = {}
    for place in outer:
        inside = [index for index, shared in parts[place] if shared & free]
        if len(inside) > 1:
            counts = {index: (masks[index] & free).bit_count() for index in inside}
            inside.sort(key=counts.__getitem__)
        order.update(dict.fromkeys(inside))
    return list(order)


def _core_lists(groups: CPUGroups, free: int) -> list[tuple[int, ...]]:
    """Return the cores of each group of the level above cores, in that level's order."""
    if groups.numa_on_top:
        return [groups.cores_of_package[index] for index in package_order(groups, free)]
    return [groups.cores_of_numa[index] for index in numa_order(groups, free)]


def _spread_cpus(groups: CPUGroups, free: int) -> Iterator[int]:
    return (groups.packages[index] & free for index in package_order(groups, free))


# Picks that must keep to L3 caches. A count that fits into the largest cache must be inside one cache. A larger count
# takes caches with all their CPUs, and the rest from inside one further cache.


class Caches(msgspec.Struct, frozen=True):
    """The L3 caches with candidates.

    Attributes:
        free: the candidates of every cache, in the order in which packed tries them.
        entire: the masks in `free` that have all CPUs of their cache.
        parts: for every cache, the counts that it can give alone (bit n set: n CPUs).
        largest: the number of CPUs of the largest cache, free or not.
        none_known: whether the kernel reports no L3 cache.
    """

    free: tuple[int, ...]
    entire: tuple[int, ...]
    parts: tuple[int, ...]
    largest: int
    none_known: bool

    @classmethod
    def of(cls, groups: CPUGroups, candidates: int, *, whole: bool) -> Caches:
        """Return the caches of the candidates; with `whole`, only whole cores are taken."""
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
        """Return every count that can be picked (bit n set: n CPUs)."""
        inside = 1
        across = self._others(0)
        # Most caches are alike, so only a few combinations have to be tried.
        for part, size in {(part, self._entire_size(mask)) for mask, part in zip(self.free, self.parts, strict=True)}:
            inside |= part
            others = self._others(size)
            for count in _bits(part):
                across |= others << count
        small = (2 << self.largest) - 1
        return inside & small | across & ~small

    def _entire_size(self, mask: int) -> int:
        """Return how many CPUs this cache adds to a pick of whole caches: all, or 0 if it is not entirely free."""
        return mask.bit_count() if mask in self.entire else 0

    def _others(self, size: int) -> int:
        """Return the counts that whole caches make without one cache of that size; 0 leaves out none."""
        remaining = Counter(map(int.bit_count, self.entire))
        if size:
            remaining[size] -= 1
        return sums(remaining)

    def split(self, count: int) -> tuple[Sequence[int], int, int]:
        """Divide a count over the caches: as much as possible in whole caches, the rest in the first cache that has it.

        Returns:
            The masks of the caches to take whole, the mask of the candidates in the cache that gives a part (0: none),
            and the number of CPUs of that part.

        Raises:
            ValueError: `count` is not one of `counts`.
        """
        if count <= self.largest:
            index = next(index for index, part in enumerate(self.parts) if part >> count & 1)
            return (), self.free[index], count
        options = [(0, 0)] if self._others(0) >> count & 1 else []
        for mask, part in zip(self.free, self.parts, strict=True):
            others = self._others(self._entire_size(mask))
            options += [(size, mask) for size in _bits(part) if size <= count and others >> count - size & 1]
        size, cache = min(options, key=itemgetter(0))
        return subset_of((mask for mask in self.entire if mask != cache), count - size), cache, size


def required(groups: CPUGroups, caches: Caches, count: int, *, spread: bool, whole: bool) -> int | None:
    """Return the mask of `count` candidates that keeps to the caches; None if there is none.

    `caches` are those of the candidates, made with the same `whole`; `spread` is that of `packed`, for the part.
    """
    if not caches.counts() >> count & 1:
        return None
    entire, cache, size = caches.split(count)
    part = packed(groups, cache, size, spread=spread, whole=whole) if size else 0
    return sum(entire) | part


def _bits(counts: int) -> list[int]:
    return [count for count in range(counts.bit_length()) if counts >> count & 1]
