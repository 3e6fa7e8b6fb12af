"""Packed picks, and spread ones in dra-driver-cpu's order: best fit along the machine's hierarchy.

The algorithm is that of dra-driver-cpu (`pkg/cpumanager`), itself kubelet's static CPU manager policy: whole NUMA nodes
and packages, then L3 caches, then cores, then single CPUs, each from where least is free. It is followed choice by
choice on machines whose core ids are unique, so that both drivers give the same answers; where the original goes wrong,
this one does not:

- A core, a package or a cache is whole if all its own CPUs are free, not if the machine's average number is; so an
  unevenly populated or hybrid machine gets no CPU that is not free.
- A core is a package's core, so equal core ids on two packages are two cores.
- A group that reaches into two places of the hierarchy is taken once, not counted twice.

The averages still decide two preferences, as in the original: how many cores a part of an L3 cache is tried with, and
from which count on whole L3 caches are tried at all. No answer becomes wrong by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from dranode.cpu.topology import CPUGroups, GroupPart

# Finds the counts that whole cores, or whole caches, can make: sums of sizes.  A set of counts is an integer with bit
# n set for the count n.


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
    """Split a number into bundles of 1, 2, 4 ... and a rest; sums of bundles make every number up to it."""
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


def numa_order(groups: CPUGroups, free: int) -> list[int]:
    """Indexes of the NUMA nodes with free CPUs, least free first; package by package where packages are on top."""
    if groups.numa_on_top:
        return _least_free(groups.numa, free)
    return _nested(_least_free(groups.packages, free), groups.numa_of_package, groups.numa, free)


def package_order(groups: CPUGroups, free: int) -> list[int]:
    """Indexes of the packages with free CPUs, least free first; NUMA node by NUMA node where those are on top."""
    if groups.numa_on_top:
        return _nested(_least_free(groups.numa, free), groups.packages_of_numa, groups.packages, free)
    return _least_free(groups.packages, free)


def l3_order(groups: CPUGroups, free: int) -> list[int]:
    """Indexes of the L3 caches with free CPUs: along the NUMA order, least free first."""
    return _nested(numa_order(groups, free), groups.l3_of_numa, groups.l3, free)


def core_order(groups: CPUGroups, free: int) -> Iterator[int]:
    """The free CPUs of every core that has any, as masks: along the level above, least free first.

    An iterator, because a small pick needs only the first few.
    """
    for cores in _core_lists(groups, free):
        yield from sorted(filter(None, [core & free for core in cores]), key=int.bit_count)


def packed(
    groups: CPUGroups, candidates: int, count: int, *, spread: bool = False, prefer_l3: bool = True, whole: bool = False
) -> int:
    """The mask of `count` of the candidates, chosen packed, or spread over cores.

    With `whole` only whole cores are taken. The candidates must then be whole cores, some of which make exactly
    `count`; without it they must be at least `count` CPUs.

    Args:
        groups: the machine's groups, as masks.
        candidates: the CPUs to choose from, as a mask.
        count: how many CPUs.
        spread: whether they are spread over cores rather than packed into them.
        prefer_l3: whether L3 caches are a level of the hierarchy.
        whole: whether only whole cores are taken.
    """
    # Where all cores are of one size no choice can spoil the rest.
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
    """A pick on its way: what is still free, what is taken and how much is missing."""

    __slots__ = ("free", "groups", "need", "sizes", "taken")

    def __init__(self, groups: CPUGroups, candidates: int, count: int, sizes: CoreSizes | None) -> None:
        self.groups = groups
        self.free = candidates
        self.need = max(count, 0)
        self.taken = 0
        self.sizes = sizes

    def take(self, mask: int) -> None:
        """Take these free CPUs, unless whole cores are wanted and the rest of the count could not be made of them."""
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
        """Take the groups that are completely free and not larger than what is missing."""
        for index in order:
            mask = masks[index]
            if mask & self.free == mask and mask.bit_count() <= self.need:
                self.take(mask)

    def take_l3(self, order: Sequence[int]) -> None:
        """Take whole L3 caches, then a part of one if it can give exactly what is missing."""
        if self.need >= self.groups.cpus_per_l3:
            self.take_whole(self.groups.l3, order)
        for index in order:
            if not self.need:
                return
            # Nearly every cache of a full machine has too little: one count spares the walk over its cores.
            if (self.groups.l3[index] & self.free).bit_count() >= self.need:
                part = self._part_of_l3(index)
                if part.bit_count() == self.need:
                    self.take(part)

    def _part_of_l3(self, index: int) -> int:
        """The free CPUs of the first cores of a cache, as many cores as the missing CPUs take on average."""
        threads = self.groups.threads_per_core
        cores, part = -(-self.need // threads), 0
        inside = self.groups.l3[index] & self.free
        for core in self.groups.cores_of_l3[index]:
            if found := core & inside:
                part |= found
                cores -= 1
                if not cores:
                    break
        odd = self.need % 2 and threads > 1
        if odd and self.sizes is None and part.bit_count() > self.need:
            part ^= 1 << part.bit_length() - 1
        return part

    def take_cores(self) -> None:
        """Take cores that are completely free and not larger than what is missing."""
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
        """Take single CPUs, lowest first, from masks in this order until nothing is missing."""
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
    """The groups inside each outer group that have a free CPU there, least free first, each group once."""
    order: dict[int, None] = {}
    for place in outer:
        inside = [index for index, shared in parts[place] if shared & free]
        if len(inside) > 1:
            counts = {index: (masks[index] & free).bit_count() for index in inside}
            inside.sort(key=counts.__getitem__)
        order.update(dict.fromkeys(inside))
    return list(order)


def _core_lists(groups: CPUGroups, free: int) -> list[tuple[int, ...]]:
    """The cores of every group of the level above cores, in that level's order."""
    if groups.numa_on_top:
        return [groups.cores_of_package[index] for index in package_order(groups, free)]
    return [groups.cores_of_numa[index] for index in numa_order(groups, free)]


def _spread_cpus(groups: CPUGroups, free: int) -> Iterator[int]:
    return (groups.packages[index] & free for index in package_order(groups, free))


# Picks that must keep to L3 caches: inside one cache, else whole caches and at most one part of one.
#
# A count that is no larger than a cache must lie inside one. A larger one takes caches with all their CPUs, and what is
# then missing from inside one further cache.


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
        """The caches of the candidates; with `whole`, only whole cores are taken."""
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
