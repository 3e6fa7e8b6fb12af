"""Spread picks: on as many physical cores as possible, then under as few or as many L3 caches as the request asks for.

A second thread of a core is taken only when every core gives one. Among equally good cores, `l3: prefer` takes those
under the fewest L3 caches and `l3: ignore` those under the most; `l3: require` keeps to caches (`required`). The CPUs
that the claim already has count: its next CPUs come from other cores.

dra-driver-cpu's order for this policy, which takes free nodes, packages and caches first, is in `packed`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from operator import itemgetter

from dranode.cpu.picking.packed import Caches, CoreSizes, Sum, fewest, l3_order, most
from dranode.cpu.topology import CPUGroups


def spread(
    groups: CPUGroups, candidates: int, count: int, *, own: int, few_caches: bool, whole: bool = False
) -> int | None:
    """Return the mask of `count` of the candidates on as many cores as possible; None if they cannot give that count.

    Args:
        groups: the machine's groups, as masks.
        candidates: the CPUs to choose from, as a mask; with `whole` they are whole cores.
        count: how many CPUs.
        own: the CPUs that count as picked already.
        few_caches: whether to use as few L3 caches as possible, rather than as many.
        whole: whether only whole cores are taken.
    """
    if whole:
        return _spread_whole(groups, candidates, count, own, few_caches=few_caches)
    if count > candidates.bit_count():
        return None
    taken = 0
    while missing := count - taken.bit_count():
        # One thread of every core that has one left, before any gives another.
        cores = _spread_in_turn(groups, candidates & ~taken, missing, own | taken, few_caches=few_caches)
        for core in cores[:missing]:
            taken |= core & -core
    return taken


def spread_within_caches(groups: CPUGroups, caches: Caches, count: int, *, own: int, whole: bool) -> int | None:
    """Return the mask of `count` candidates that keeps to L3 caches, on as many cores as possible; None if impossible.

    `caches` are those of the candidates, made with the same `whole`.
    """
    if not caches.counts() >> count & 1:
        return None
    if count <= caches.largest:
        given = [_cores_given(groups, mask, whole=whole).get(count, -1) for mask in caches.free]
        entire: Sequence[int] = ()
        cache, size = caches.free[given.index(max(given))], count
    else:
        split = _split(groups, caches, count, whole=whole)
        if split is None:
            return None
        entire, cache, size = split
    part = spread(groups, cache, size, own=own, few_caches=True, whole=whole) if size else 0
    return None if part is None else sum(entire) | part


def _split(groups: CPUGroups, caches: Caches, count: int, *, whole: bool) -> tuple[Sequence[int], int, int] | None:
    """Return the caches to take whole, the candidates of the one that gives a part, and that part's size.

    The result has the most cores, and among equal ones the smallest part. It is None if the kernel puts one core under
    several caches and no cache has all of it.
    """
    kinds = {mask: (mask.bit_count(), _number_of_cores(groups, mask)) for mask in caches.entire}
    everything = Counter(kinds.values())
    options: list[tuple[tuple[int, int], Sum, int]] = []
    # Caches are alike in a few ways only.
    sums_without = {kind: most(everything - Counter((kind,)), count) for kind in {*everything, (0, 0)}}
    for cache in (0, *caches.free):
        others = sums_without[kinds.get(cache, (0, 0))]
        for size, cores in _cores_given(groups, cache, whole=whole).items():
            if count - size in others:
                options.append(((others[count - size].worth + cores, -size), others[count - size], cache))
    if not options:
        return None
    (_, size), chosen, cache = max(options, key=itemgetter(0))
    numbers = Counter(chosen.numbers)
    entire = []
    for mask, kind in kinds.items():
        if mask != cache and numbers[kind]:
            numbers[kind] -= 1
            entire.append(mask)
    return entire, cache, -size


def _cores_given(groups: CPUGroups, cache: int, *, whole: bool) -> Mapping[int, int]:
    """Return on how many cores the candidates of a cache can give each count."""
    if whole:
        sizes = CoreSizes.of(groups.cores, cache).sizes
        totals = most({(size, 1): number for size, number in sizes.items()}, cache.bit_count())
        return {total: chosen.worth for total, chosen in totals.items()}
    cores = _number_of_cores(groups, cache)
    return {size: min(size, cores) for size in range(cache.bit_count() + 1)}


def _number_of_cores(groups: CPUGroups, mask: int) -> int:
    return sum([1 for core in groups.cores if core & mask])


def _spread_whole(groups: CPUGroups, candidates: int, count: int, own: int, *, few_caches: bool) -> int | None:
    sizes = CoreSizes.of(groups.cores, candidates).sizes
    chosen = most({(size, 1): number for size, number in sizes.items()}, count).get(count)
    if chosen is None:
        return None
    numbers = {size: number for (size, _), number in chosen.numbers.items()}
    usable = sum([core for core in groups.cores if core & candidates == core and numbers.get(core.bit_count())])
    taken = 0
    for core in _spread_in_turn(groups, usable, chosen.worth, own, few_caches=few_caches):
        if numbers[core.bit_count()]:
            numbers[core.bit_count()] -= 1
            taken |= core
    return taken


def _spread_in_turn(groups: CPUGroups, free: int, count: int, own: int, *, few_caches: bool) -> list[int]:
    """Return the free CPUs of each core, cores without CPUs of `own` first: cache by cache, or from each in turn."""
    fresh: list[list[int]] = []
    started: list[list[int]] = []
    seen: set[int] = set()
    # A core that the kernel puts under two caches counts for the first one.
    order = l3_order(groups, free)
    order.sort(key=lambda index: bool(groups.l3[index] & own), reverse=few_caches)
    for index in order:
        cores = [core for core in groups.cores_of_l3[index] if core & free and core not in seen]
        seen.update(cores)
        fresh.append([core & free for core in cores if not core & own])
        started.append([core & free for core in cores if core & own])
    if not few_caches:
        return [core for turn in (*zip_longest(*fresh), *zip_longest(*started)) for core in turn if core]
    known = sum(1 for index in order if groups.l3[index] & own)
    rest = fewest(fresh[known:], count - sum(map(len, fresh[:known])), len)
    return [*chain(*fresh[:known]), *chain(*rest), *chain(*started)]
