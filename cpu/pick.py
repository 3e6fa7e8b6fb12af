"""The choice of CPUs for a request: one pure function from a topology and the free CPUs to a pick.

The pick has only candidates, and depends on nothing but the arguments. `pick_packed`, `pick_spread`,
`pick_distributed` (over NUMA nodes) and `pick_l3` (`l3: require`) say where CPUs come from. The policies combine:

- `order: untouched-first`, the default, takes threads of cores that other claims use only if all other cores have too
  few. It completes a core that the same claim uses before it takes another one. `order: reference` is dra-driver-cpu's
  order, which first fills the cores that are partly taken. Without such cores both orders give the same answer, but for
  `spread`: the reference takes free nodes, packages and caches whole first, which leaves nothing to spread.
- Balance over NUMA nodes and required L3 caches come before that order if the untouched cores cannot satisfy them.
- `threads`: with whole cores (`full-core`, `one-per-core`) only cores whose threads are all candidates are used.
- `l3: require` takes the policy's own answer if it keeps to the caches, and looks for another one only if it does not.
- `spread` comes before `l3: prefer`, except in the reference's order.
- `numa-distributed` considers caches only if required to.
"""

from __future__ import annotations

from math import lcm
from typing import Final

import msgspec

from dranode.cpu.groups import CPUGroups
from dranode.cpu.pick_distributed import distributed
from dranode.cpu.pick_l3 import Caches, required
from dranode.cpu.pick_packed import packed
from dranode.cpu.pick_spread import spread, spread_within_caches
from dranode.cpu.pick_sums import CoreSizes, subset_of, sums
from dranode.cpu.policies import L3, Order, PickPolicy, Threads
from dranode.cpu.topology import Topology
from dranode.driver.core.api.cpuset import CPUSet
from dranode.driver.core.api.errors import ClaimError, UsageError

_NONE: Final = CPUSet()


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
        count: CPUs asked for.
        fits: the nearest counts below and above that would fit; empty if none does.
    """

    def __init__(self, message: str, count: int, fits: tuple[int, ...]) -> None:
        super().__init__(message)
        self.count = count
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
    own: CPUSet = _NONE,
) -> Pick:
    """Pick `count` of the candidates; CPUs that are not online are no candidates.

    Args:
        topology: the machine.
        candidates: the free CPUs to choose from.
        count: how many CPUs are held, at least 0; `one-per-core` runs on one thread of each of their cores.
        policy: where they are taken from.
        group: for `numa-distributed`, the step in which NUMA nodes give CPUs; by default 1. With whole cores it is
            rounded up to a multiple of a core.
        threads: what of a physical core may be taken.
        l3: what L3 caches matter.
        order: which cores single threads come from.
        own: CPUs that the same claim has already; a core of which only they are taken is untouched by others.

    Raises:
        PickError: the candidates cannot give that count in this way.
        UsageError: a group without `numa-distributed`, or below 1.
    """
    if group is not None and policy is not PickPolicy.NUMA_DISTRIBUTED:
        raise UsageError(f"a group of {group} CPUs is of use to the policy numa-distributed only, not to {policy}")
    if group is not None and group < 1:
        raise UsageError(f"a group of {group} CPUs cannot be handed out; it takes at least 1")
    free = candidates & topology.online
    wishes = _Wishes(policy, group or 1, threads, l3)
    if order is Order.UNTOUCHED_FIRST and policy is PickPolicy.SPREAD:
        return _spread(topology, free, count, wishes, own)
    if order is Order.UNTOUCHED_FIRST and threads is Threads.ANY:
        return _untouched_first(topology, free, count, wishes, own)
    return _in_reference_order(topology, free, count, wishes)


class _Wishes(msgspec.Struct, frozen=True):
    """The arguments of `pick` but for the order."""

    policy: PickPolicy
    group: int
    threads: Threads
    l3: L3

    @property
    def whole(self) -> bool:
        """Return whether only whole physical cores are taken."""
        return self.threads is not Threads.ANY

    @property
    def balanced(self) -> bool:
        """Return whether the CPUs have to be picked at one time, because how many are where matters."""
        return self.policy is PickPolicy.NUMA_DISTRIBUTED or self.l3 is L3.REQUIRE


def _untouched_first(topology: Topology, free: CPUSet, count: int, wishes: _Wishes, own: CPUSet) -> Pick:
    """The reference's pick, unless another takes fewer threads of cores that others have part of, or opens fewer."""
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
    """Pick from as many cores as can be; of cores that others have part of only what the untouched ones lack."""
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
    """The free threads of cores that no other claim has part of; of masks, since every pick asks all cores."""
    mine, whole = free.mask | own.mask, 0
    for core in groups.cores:
        if core & mine == core:
            whole |= core
    return CPUSet.of_mask(whole & free.mask)


def _fewest_touched(topology: Topology, free: CPUSet, untouched: CPUSet, count: int, wishes: _Wishes) -> Pick | None:
    """All that the untouched cores can give, and the rest of others; None if that is not what was asked for."""
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
    """The pick as dra-driver-cpu orders it."""
    groups, policy, l3, whole = topology.groups, wishes.policy, wishes.l3, wishes.whole
    free = _candidates(groups, candidates, whole=whole)
    held = _by_policy(groups, free, count, policy, wishes.group, prefer_l3=l3 is not L3.IGNORE, whole=whole)
    caches = _caches(groups, free, wishes)
    if caches is not None and (held is None or not caches.accept(held)):
        held = required(groups, caches, count, spread=policy is PickPolicy.SPREAD, whole=whole)
    return _answer(groups, free, count, held, wishes)


def _candidates(groups: CPUGroups, free: CPUSet, *, whole: bool) -> int:
    return sum([core for core in groups.cores if core & free.mask == core]) if whole else free.mask


def _caches(groups: CPUGroups, free: int, wishes: _Wishes) -> Caches | None:
    """Return the L3 caches that a pick has to keep to, if it has to."""
    return Caches.of(groups, free, whole=wishes.whole) if wishes.l3 is L3.REQUIRE else None


def _answer(groups: CPUGroups, free: int, count: int, held: int | None, wishes: _Wishes) -> Pick:
    """Return the pick of these CPUs, or raise the error that says why the free ones give none."""
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


def _by_policy(
    groups: CPUGroups, free: int, count: int, policy: PickPolicy, group: int, *, prefer_l3: bool, whole: bool
) -> int | None:
    """Return the CPUs that the policy takes (only whole cores with `whole`), or None if they are too few."""
    sizes = CoreSizes.of(groups.cores, free) if whole else CoreSizes({1: free.bit_count()})
    if not sizes.can_make(count):
        return None
    if policy is PickPolicy.NUMA_DISTRIBUTED:
        return distributed(groups, free, count, lcm(group, *sizes.sizes), whole=whole)
    return packed(groups, free, count, spread=policy is PickPolicy.SPREAD, prefer_l3=prefer_l3, whole=whole)


def _whole_anyway(groups: CPUGroups, free: int, count: int, caches: Caches | None) -> int | None:
    """Pick whole cores on a machine where the kernel puts one core into several nodes, packages or caches.

    Their place means nothing then, so only the size of the cores counts.
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
        return PickError(f"cannot keep {cpus} to L3 caches: this machine tells of none; do without", count, ())
    if caches is not None:
        counts = caches.counts()
    else:
        counts = sums(CoreSizes.of(groups.cores, free.mask).sizes) if whole else (2 << len(free)) - 1
    # A count may be any number that somebody wrote into a claim; a mask of as many bits would take all memory.
    below = (counts & (1 << min(count, counts.bit_length())) - 1).bit_length() - 1
    above = counts >> count
    fits = (below,) if below else ()
    if above:
        fits = (*fits, count + (above & -above).bit_length() - 1)
    where = " in whole physical cores" if whole else ""
    keep = " that keep to L3 caches (inside one, or whole ones and a part of one)" if caches is not None else ""
    have = f"{len(free)} {'are' if len(free) > 1 else 'is'} free{where}" if free else f"none is free{where}"
    advice = f"ask for {' or '.join(map(str, fits))}" if fits else "wait for CPUs to become free"
    # The list of CPUs comes last: an event cuts long messages.
    listed = f" (free: {free})" if free else ""
    return PickError(f"cannot give {cpus}{where}{keep}: {have}; {advice}{listed}", count, fits)
