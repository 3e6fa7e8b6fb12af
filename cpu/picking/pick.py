"""Picks the CPUs for a request: one pure function from a topology and the free CPUs to a pick.

The pick consists of candidates only and depends only on the arguments. The functions for packed picks and for
`l3: require` are in `packed`, those for the other policies in `spread` and `distributed`. The policies
combine:

- `order: untouched-first`, the default, takes threads of cores that other claims use only if the other cores have too
  few. It completes a core that the same claim uses before it takes another one, and a packed pick is in as few
  packages, NUMA nodes and caches as possible. `order: reference` is dra-driver-cpu's order, which first fills the cores
  that are partly taken and the places with the fewest free CPUs. If the reference's answer avoids such cores and uses
  one place, both orders give the same, except for `spread`: the reference takes free nodes, packages and caches whole
  first, which leaves nothing to spread.
- If the untouched cores are not enough for balance over NUMA nodes or for required L3 caches, these come before the
  order.
- `threads`: with whole cores (`full-core`, `one-per-core`) only cores whose threads are all candidates are used.
- `l3: require` takes the policy's own answer if it keeps to the caches, and searches for another one only if it does
  not.
- `spread` comes before `l3: prefer`, except in the reference's order.
- `numa-distributed` ignores caches unless they are required.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import accumulate
from math import lcm
from operator import or_

import msgspec

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.api.errors import ClaimError, UsageError
from dranode.cpu.options import L3, Order, PickPolicy, Threads
from dranode.cpu.picking.distributed import distributed
from dranode.cpu.picking.packed import Caches, CoreSizes, fewest, packed, required, subset_of, sums
from dranode.cpu.picking.spread import spread, spread_within_caches
from dranode.cpu.topology import CPUGroups, Topology


class Pick(msgspec.Struct, frozen=True):
    """The CPUs that a request gets.

    Attributes:
        cpus: the CPUs that its containers run on.
        held: the CPUs that no other claim gets; more than `cpus` only for `one-per-core`.
    """

    cpus: CPUSet
    held: CPUSet


class PickError(ClaimError):
    """The candidates cannot give this count.

    Attributes:
        fits: the nearest lower and higher counts that are possible; empty if there are none.
    """

    def __init__(self, message: str, fits: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.fits = fits


def pick(
    topology: Topology,
    candidates: CPUSet,
    count: int,
    *,
    policy: PickPolicy = PickPolicy.PACKED,
    group: int | None = None,
    threads: Threads = Threads.ANY,
    l3: L3 = L3.PREFER,
    order: Order = Order.UNTOUCHED_FIRST,
    own: CPUSet = NO_CPUS,
) -> Pick:
    """Pick `count` of the candidates that are online.

    Args:
        topology: the machine.
        candidates: the free CPUs to choose from.
        count: how many CPUs are held, at least 0; `one-per-core` runs on one thread of each of their cores.
        policy: where they are taken from.
        group: for `numa-distributed`, the step in which NUMA nodes give CPUs; by default 1. With whole cores it is
            rounded up to a multiple of a core.
        threads: which threads of a physical core may be taken.
        l3: how much L3 caches matter.
        order: which cores single threads come from.
        own: CPUs that the same claim already has. A core whose other threads are free counts as untouched.

    Raises:
        PickError: the candidates cannot give that count in this way.
        UsageError: a group without `numa-distributed`, or below 1.
    """
    if group is not None and policy is not PickPolicy.NUMA_DISTRIBUTED:
        raise UsageError(f"a group of {group} CPUs is only for the policy numa-distributed, not for {policy}")
    if group is not None and group < 1:
        raise UsageError(f"a group of {group} CPUs is impossible; a group has at least 1")
    free = candidates & topology.online
    together = order is Order.UNTOUCHED_FIRST and policy is PickPolicy.PACKED
    wishes = _Wishes(policy, group or 1, threads, l3, together=together)
    if order is Order.UNTOUCHED_FIRST and policy is PickPolicy.SPREAD:
        return _spread(topology, free, count, wishes, own)
    if order is Order.UNTOUCHED_FIRST and threads is Threads.ANY:
        return _untouched_first(topology, free, count, wishes, own)
    return _in_reference_order(topology, free, count, wishes)


class _Wishes(msgspec.Struct, frozen=True):
    """The arguments of `pick`; `together` is whether one cache, NUMA node or package comes before the order."""

    policy: PickPolicy
    group: int
    threads: Threads
    l3: L3
    together: bool

    @property
    def whole(self) -> bool:
        """Return whether only whole physical cores are taken."""
        return self.threads is not Threads.ANY

    @property
    def balanced(self) -> bool:
        """Return whether all CPUs must be picked together, because the policy balances them or keeps them to caches."""
        return self.policy is PickPolicy.NUMA_DISTRIBUTED or self.l3 is L3.REQUIRE


def _untouched_first(topology: Topology, free: CPUSet, count: int, wishes: _Wishes, own: CPUSet) -> Pick:
    """Return the reference's pick, unless another one uses fewer cores of other claims, or fewer new cores."""
    picked = _in_reference_order(topology, free, count, wishes)
    untouched = _untouched(topology.groups, free, own)
    if len(picked.cpus - untouched) > max(0, count - len(untouched)):
        picked = _fewest_touched(topology, free, untouched, count, wishes) or picked
    opened = topology.whole_cores(own) & untouched
    if not opened or count > len(untouched) or wishes.balanced:
        return picked
    finished = _in_reference_order(topology, opened, min(count, len(opened)), wishes).cpus
    cpus = finished | _in_reference_order(topology, untouched - opened, count - len(finished), wishes).cpus
    fewer = len(topology.whole_cores(cpus - opened)) < len(topology.whole_cores(picked.cpus - opened))
    return Pick(cpus, cpus) if fewer else picked


def _spread(topology: Topology, free: CPUSet, count: int, wishes: _Wishes, own: CPUSet) -> Pick:
    """Pick from as many cores as possible; cores that other claims use give only what the untouched ones lack."""
    groups, whole = topology.groups, wishes.whole
    candidates = _candidates(groups, free, whole=whole)
    untouched = _untouched(groups, CPUSet.of_mask(candidates), own).mask
    caches = _caches(groups, candidates, wishes)
    if caches is not None:
        held = None
        for mask in (untouched, candidates):
            near = Caches.of(groups, mask, whole=whole)
            held = spread_within_caches(groups, near, count, own=own.mask, whole=whole)
            if held is not None and caches.accept(held):
                break
        return _answer(groups, candidates, count, held, wishes)
    enough = count <= untouched.bit_count()
    first, mask = (0, untouched) if enough else (untouched, candidates & ~untouched)
    few = wishes.l3 is L3.PREFER
    rest = spread(groups, mask, count - first.bit_count(), own=own.mask | first, few_caches=few, whole=whole)
    return _answer(groups, candidates, count, None if rest is None else first | rest, wishes)


def _untouched(groups: CPUGroups, free: CPUSet, own: CPUSet) -> CPUSet:
    """Return the free threads of cores that no other claim uses; on masks, because every pick checks all cores."""
    available, whole = free.mask | own.mask, 0
    for core in groups.cores:
        if core & available == core:
            whole |= core
    return CPUSet.of_mask(whole & free.mask)


def _fewest_touched(topology: Topology, free: CPUSet, untouched: CPUSet, count: int, wishes: _Wishes) -> Pick | None:
    """Pick all that the untouched cores can give, and the rest from others; None if the wishes forbid that."""
    try:
        if count <= len(untouched):
            return _in_reference_order(topology, untouched, count, wishes)
    except PickError:
        return None
    if wishes.balanced:
        return None
    cpus = untouched | _in_reference_order(topology, free - untouched, count - len(untouched), wishes).cpus
    return Pick(cpus, cpus)


def _in_reference_order(topology: Topology, candidates: CPUSet, count: int, wishes: _Wishes) -> Pick:
    """Pick in dra-driver-cpu's order, and in one place if possible and wished."""
    groups = topology.groups
    free = _candidates(groups, candidates, whole=wishes.whole)
    held = _held(groups, free, count, wishes)
    if held is not None and wishes.together:
        held = _together(groups, free, held, wishes)
    return _answer(groups, free, count, held, wishes)


def _held(groups: CPUGroups, free: int, count: int, wishes: _Wishes) -> int | None:
    held = _by_policy(groups, free, count, wishes)
    caches = _caches(groups, free, wishes)
    if caches is not None and (held is None or not caches.accept(held)):
        held = required(groups, caches, count, spread=wishes.policy is PickPolicy.SPREAD, whole=wishes.whole)
    return held


def _together(groups: CPUGroups, free: int, held: int, wishes: _Wishes) -> int:
    """Return a pick from as few packages, then NUMA nodes, then L3 caches as possible; the given one if it is equal.

    The reference uses up the places with the fewest free CPUs, so it takes CPUs from several although one has enough.
    """
    larger = (groups.numa, groups.packages) if groups.numa_on_top else (groups.packages, groups.numa)
    kinds = (*larger, groups.l3) if wishes.l3 is L3.PREFER else larger
    count, inside = held.bit_count(), free
    # Any one place with enough may have them in fewer of the smaller ones.
    alone = [mask & free for masks in larger for mask in masks if (mask & free).bit_count() >= count]
    for masks in kinds:
        bases = (free, inside, *alone)
        for near in (near for base in bases for near in _in_fewest(groups, masks, base, count, wishes)):
            if _places((masks,), near) < _places((masks,), held):
                nearer = _held(groups, near, count, wishes)
                if nearer and nearer.bit_count() == count and _places(kinds, nearer) < _places(kinds, held):
                    held = nearer
        inside = reduce(or_, [mask & free for mask in masks if mask & held], 0)
    return held


def _in_fewest(groups: CPUGroups, masks: Sequence[int], free: int, count: int, wishes: _Wishes) -> Iterator[int]:
    """Yield the candidates in the fewest places with enough: with a small one for the rest, and in the largest ones."""
    places = [_candidates(groups, CPUSet.of_mask(mask & free), whole=wishes.whole) for mask in masks]
    for ordered in (fewest(places, count, int.bit_count), sorted(places, key=int.bit_count, reverse=True)):
        yield next((near for near in accumulate(ordered, or_) if near.bit_count() >= count), 0)


def _places(kinds: Iterable[Sequence[int]], picked: int) -> tuple[int, ...]:
    """Return how many groups of each kind the CPUs are in."""
    return tuple(sum([1 for mask in masks if mask & picked]) for masks in kinds)


def _candidates(groups: CPUGroups, free: CPUSet, *, whole: bool) -> int:
    return sum([core for core in groups.cores if core & free.mask == core]) if whole else free.mask


def _caches(groups: CPUGroups, free: int, wishes: _Wishes) -> Caches | None:
    """Return the L3 caches to which a pick must keep, or None."""
    return Caches.of(groups, free, whole=wishes.whole) if wishes.l3 is L3.REQUIRE else None


def _answer(groups: CPUGroups, free: int, count: int, held: int | None, wishes: _Wishes) -> Pick:
    """Return the pick of the CPUs in `held`, or raise the error that says why the free CPUs give none."""
    whole = wishes.whole
    split = whole and held is not None and any(core & held not in (0, core) for core in groups.cores)
    if held is None or split or held.bit_count() != count:
        caches = _caches(groups, free, wishes)
        held = _whole_anyway(groups, free, count, caches) if whole and held is not None else None
        if held is None:
            raise _refusal(groups, CPUSet.of_mask(free), count, caches, whole=whole)
    cpus = held
    if wishes.threads is Threads.ONE_PER_CORE:
        cpus = sum(core & -core for core in groups.cores if core & held)
    return Pick(CPUSet.of_mask(cpus), CPUSet.of_mask(held))


def _by_policy(groups: CPUGroups, free: int, count: int, wishes: _Wishes) -> int | None:
    """Return the CPUs that the policy takes, or None if they are too few."""
    whole = wishes.whole
    sizes = CoreSizes.of(groups.cores, free) if whole else CoreSizes({1: free.bit_count()})
    if not sizes.can_make(count):
        return None
    if wishes.policy is PickPolicy.NUMA_DISTRIBUTED:
        return distributed(groups, free, count, lcm(wishes.group, *sizes.sizes), whole=whole)
    prefer_l3 = wishes.l3 is not L3.IGNORE
    return packed(groups, free, count, spread=wishes.policy is PickPolicy.SPREAD, prefer_l3=prefer_l3, whole=whole)


def _whole_anyway(groups: CPUGroups, free: int, count: int, caches: Caches | None) -> int | None:
    """Pick whole cores on a machine where the kernel puts one core into several nodes, packages or caches.

    The location of a core means nothing there, so only its size counts.
    """
    cores = [core for core in groups.cores if core & free == core]
    if not CoreSizes.of(cores, free).can_make(count):
        return None
    held = sum(subset_of(cores, count))
    return held if caches is None or caches.accept(held) else None


def _refusal(groups: CPUGroups, free: CPUSet, count: int, caches: Caches | None, *, whole: bool) -> PickError:
    """Return the error that says why the free CPUs cannot give a count, and which counts near it they can give."""
    cpus = "1 CPU" if count == 1 else f"{count} CPUs"
    if caches is not None and caches.none_known:
        return PickError(f"cannot keep {cpus} to L3 caches: this machine reports none; leave out l3: require")
    if caches is not None:
        counts = caches.counts()
    else:
        counts = sums(CoreSizes.of(groups.cores, free.mask).sizes) if whole else (2 << len(free)) - 1
    # The count comes from a claim and may be huge. A mask with that many bits would use all memory.
    below = (counts & (1 << min(count, counts.bit_length())) - 1).bit_length() - 1
    above = counts >> count
    fits = (below,) if below else ()
    if above:
        fits = (*fits, count + (above & -above).bit_length() - 1)
    where = " in whole physical cores" if whole else ""
    keep = " that keep to L3 caches (inside one, or whole ones and a part of one)" if caches is not None else ""
    have = f"{len(free)} {'are' if len(free) > 1 else 'is'} free{where}" if free else f"none is free{where}"
    advice = f"ask for {' or '.join(map(str, fits))}" if fits else "wait for CPUs to become free"
    # The list of CPUs comes last, because Events cut long messages.
    listed = f" (free: {free})" if free else ""
    return PickError(f"cannot give {cpus}{where}{keep}: {have}; {advice}{listed}", fits)
