"""Picks the CPUs for a request: one pure function from a topology and the free CPUs to a pick.

The pick consists of candidates only and depends only on the arguments. The functions for packed picks and for
`l3: require` are in `pick_packed`; those for spread picks and for picks over NUMA nodes are here. The policies combine:

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

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate, chain, combinations, zip_longest
from math import comb, floor, lcm, sqrt
from operator import itemgetter, or_
from typing import Final, TypeVar

import msgspec

from dranode.api.cpuset import NO_CPUS, CPUSet
from dranode.api.errors import ClaimError, UsageError
from dranode.cpu.options import L3, Order, PickPolicy, Threads
from dranode.cpu.pick_packed import (
    Caches,
    CoreSizes,
    Sum,
    l3_order,
    most,
    numa_order,
    packed,
    required,
    subset_of,
    sums,
)
from dranode.cpu.topology import CPUGroups, Topology

T = TypeVar("T")

# NUMA-distributed picks (KEP-2902): the same number of CPUs from every NUMA node that is needed. They use the smallest
# number of nodes over which the count can be divided evenly in steps of a group size, and of the possible node sets,
# those of one package first, the one that leaves the most similar numbers of free CPUs on all nodes. The answers are
# those of dra-driver-cpu's `takeByTopologyNUMADistributed`, except for four defects of the original: it takes nodes of
# several packages where one has enough, its loop over sets of four and more nodes can overwrite the best set, it never
# ends if no node can take the remainder in whole steps, and its search grows with 4 to the power of the nodes. Here the
# first best set wins, such remainders are skipped, and if there are more than `SEARCH_LIMIT` possibilities (beyond
# about eight nodes) the nodes with the most free CPUs are taken, which is the most even answer except for ties and
# rounding.

SEARCH_LIMIT: Final = 1 << 15


class _Nodes(msgspec.Struct, frozen=True):
    """NUMA nodes with free CPUs, in NUMA order.

    Attributes:
        free: free CPUs of every node.
        step: CPUs are handed out in multiples of this.
    """

    free: tuple[int, ...]
    step: int

    def squares(self, taken: Sequence[int]) -> int:
        """Return the sum of the squares of the CPUs left if this many are taken; it grows with the deviation."""
        return sum([(free - count) ** 2 for free, count in zip(self.free, taken, strict=True)])

    def deviation(self, squares: int, count: int) -> int:
        """Return the standard deviation of the CPUs left, in thousandths, if `count` CPUs are taken."""
        number = len(self.free)
        left = sum(self.free) - count
        mean = _rounded(1000 * left / number)
        return _rounded(sqrt((1000000 * squares - 2000 * mean * left + number * mean**2) / number))


# The number of CPUs that each node gives.
_Shares = tuple[int, ...]


def distributed(groups: CPUGroups, candidates: int, count: int, step: int, *, whole: bool = False) -> int:
    """Return the mask of `count` of the candidates, divided evenly over NUMA nodes in multiples of `step`.

    They are packed, regardless of L3 caches, if `count` is not a multiple of `step` or cannot be divided. With `whole`
    the candidates are whole cores, as for `packed`, and `step` is a multiple of the threads of every core.

    Args:
        groups: the machine's groups, as masks.
        candidates: the CPUs to choose from, as a mask; at least `count`.
        count: how many CPUs.
        step: the group size in CPUs, 1 or more.
        whole: whether only whole cores are taken.
    """
    if count > 0 and count % step == 0:
        order = numa_order(groups, candidates)
        nodes = [groups.numa[index] & candidates for index in order]
        packages = () if groups.numa_on_top or len(groups.packages) == 1 else groups.packages
        machine, *inside = (
            _Nodes(tuple((node & place).bit_count() for node in nodes), step) for place in (-1, *packages)
        )
        shares = _shares(machine, inside, count, _fewest_nodes(groups, count, step))
        if shares is not None:
            taken = _take(groups, candidates, zip(order, shares, strict=True), step, whole=whole)
            if taken.bit_count() == count:
                return taken
    return packed(groups, candidates, count, prefer_l3=False, whole=whole)


def _fewest_nodes(groups: CPUGroups, count: int, step: int) -> int:
    """Return how many nodes of average size the count needs."""
    steps = -(-sum(map(int.bit_count, groups.numa)) // step)
    steps_per_node = -(-steps // len(groups.numa))
    return -(-(count // step) // steps_per_node)


def _shares(machine: _Nodes, packages: Iterable[_Nodes], count: int, fewest: int) -> _Shares | None:
    """Return what each node gives, using the fewest nodes, of one package if possible; None if it cannot be divided.

    Args:
        machine: all nodes.
        packages: the same nodes for each package, with 0 CPUs free in those of other packages.
        count: how many CPUs.
        fewest: with how many nodes to begin.
    """
    packages = tuple(packages)
    for size in range(fewest, min(count // machine.step, len(machine.free)) + 1):
        even = count // size // machine.step * machine.step
        rest = count - even * size
        ways = comb(len(machine.free), size) * (1 << size if rest else 1)
        best = _most_even if ways <= SEARCH_LIMIT else _most_free
        # A single node is in one package anyway.
        inside = [best(nodes, size, even, rest) for nodes in packages] if size > 1 else []
        shares = min(filter(None, inside), key=machine.squares, default=None) or best(machine, size, even, rest)
        if shares is not None:
            return shares
    return None


def _most_even(nodes: _Nodes, size: int, even: int, rest: int) -> _Shares | None:
    """Return the shares on those `size` nodes that leave all nodes most alike; the first of equal sets."""
    best: _Shares | None = None
    best_squares = best_deviation = 0
    for chosen in combinations(range(len(nodes.free)), size):
        if best is not None and best_deviation == 0:
            break
        if any(nodes.free[node] < even for node in chosen):
            continue
        shares = [even if node in chosen else 0 for node in range(len(nodes.free))]
        for candidate in _with_rest(nodes, shares, chosen, rest):
            squares = nodes.squares(candidate)
            # The sum of what is left is the same for all, so fewer squares are needed to deviate less.
            if best is None or squares < best_squares:
                deviation = nodes.deviation(squares, even * size + rest)
                if best is None or deviation < best_deviation:
                    best, best_squares, best_deviation = candidate, squares, deviation
    return best


def _with_rest(nodes: _Nodes, shares: Sequence[int], chosen: Sequence[int], rest: int) -> Iterator[_Shares]:
    """Yield every way to divide the rest step by step, in turn, among some of the chosen nodes; most nodes first."""
    if not rest:
        yield tuple(shares)
        return
    takers = [node for node in chosen if nodes.free[node] - shares[node] >= nodes.step]
    for number in range(len(takers), 0, -1):
        for subset in combinations(takers, number):
            if sum((nodes.free[node] - shares[node]) // nodes.step for node in subset) * nodes.step >= rest:
                yield _in_turn(nodes, list(shares), subset, rest)


def _in_turn(nodes: _Nodes, shares: list[int], takers: Sequence[int], rest: int) -> _Shares:
    while rest:
        for node in takers:
            if rest and nodes.free[node] - shares[node] >= nodes.step:
                shares[node] += nodes.step
                rest -= nodes.step
    return tuple(shares)


def _most_free(nodes: _Nodes, size: int, even: int, rest: int) -> _Shares | None:
    """Return the shares on the `size` nodes with the most free CPUs; the rest comes from those with the most left."""
    chosen = sorted(range(len(nodes.free)), key=lambda node: -nodes.free[node])[:size]
    shares = [0] * len(nodes.free)
    for node in chosen:
        shares[node] = even
    for _ in range(rest // nodes.step):
        node = max(chosen, key=lambda node: nodes.free[node] - shares[node])
        shares[node] += nodes.step
    enough = all(share <= free for share, free in zip(shares, nodes.free, strict=True))
    return tuple(shares) if enough else None


def _take(groups: CPUGroups, candidates: int, shares: Iterable[tuple[int, int]], step: int, *, whole: bool) -> int:
    """Return the mask of these numbers of CPUs of these NUMA nodes; 0 if whole cores cannot make one of the numbers."""
    shares = [(index, share) for index, share in shares if share]
    even = min(share for _, share in shares) // step * step
    taken = 0
    for index, share in shares:
        # The even part first, then one step at a time, because a larger part could be packed onto other cores.
        for part in (even, *[step] * ((share - even) // step)):
            free = groups.numa[index] & candidates & ~taken
            if whole and not CoreSizes.of(groups.cores, free).can_make(part):
                return 0
            taken |= packed(groups, free, part, prefer_l3=False, whole=whole)
    return taken


def _rounded(value: float) -> int:
    return floor(value + 0.5)


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
    for ordered in (_fewest(places, count, int.bit_count), sorted(places, key=int.bit_count, reverse=True)):
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


# Spread picks: on as many physical cores as possible, then under as few or as many L3 caches as the request asks for.
#
# A second thread of a core is taken only when every core gives one. Among equally good cores, `l3: prefer` takes those
# under the fewest L3 caches and `l3: ignore` those under the most; `l3: require` keeps to caches (`required`). The CPUs
# that the claim already has count: its next CPUs come from other cores.
#
# dra-driver-cpu's order for this policy, which takes free nodes, packages and caches first, is in `pick_packed`.


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
    rest = _fewest(fresh[known:], count - sum(map(len, fresh[:known])), len)
    return [*chain(*fresh[:known]), *chain(*rest), *chain(*started)]


def _fewest(places: list[T], count: int, size: Callable[[T], int]) -> list[T]:
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
