"""NUMA-distributed picks (KEP-2902): the same number of CPUs from every NUMA node that is needed.

The smallest number of nodes is used on which the count can be shared out evenly in steps of a group size; of the
possible node sets, the one that leaves the free CPUs of all nodes most alike. Everything is as in dra-driver-cpu's
`takeByTopologyNUMADistributed` but for three defects of the original: its loop over node sets of four and more can
overwrite the best set found, it never ends on a remainder that no node can take in whole steps, and its search grows
with 4 to the power of the nodes. Here the first best set counts, such remainders are passed over, and where more than
`SEARCH_LIMIT` ways exist (machines beyond eight or so nodes) the nodes with most free CPUs are taken outright, which is
the most even answer but for ties and rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import comb, floor, sqrt
from typing import Final

import msgspec

from dranode.cpu.groups import CPUGroups
from dranode.cpu.pick_packed import numa_order, packed
from dranode.cpu.pick_sums import CoreSizes

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
        """The sum of the squares of what is left when so many CPUs are taken from each; grows with the deviation."""
        return sum([(free - gone) ** 2 for free, gone in zip(self.free, taken, strict=True)])

    def deviation(self, squares: int, count: int) -> int:
        """The standard deviation of what is left, in thousandths, when `count` CPUs are taken."""
        number = len(self.free)
        left = sum(self.free) - count
        mean = _rounded(1000 * left / number)
        return _rounded(sqrt((1000000 * squares - 2000 * mean * left + number * mean**2) / number))


# How many CPUs every node gives.
_Shares = tuple[int, ...]


def distributed(groups: CPUGroups, candidates: int, count: int, step: int, *, whole: bool = False) -> int:
    """The mask of `count` of the candidates, shared out evenly over NUMA nodes in multiples of `step`.

    Packed without regard to L3 caches if `count` is no multiple of `step` or cannot be shared out. With `whole` the
    candidates are whole cores, as for `packed`, and `step` is a multiple of the threads of every core.

    Args:
        groups: the machine's groups, as masks.
        candidates: the CPUs to choose from, as a mask; `count` of them at least.
        count: how many CPUs.
        step: the group size in CPUs, 1 or more.
        whole: whether only whole cores are taken.
    """
    if count > 0 and count % step == 0:
        order = numa_order(groups, candidates)
        nodes = _Nodes(tuple((groups.numa[index] & candidates).bit_count() for index in order), step)
        shares = _shares(nodes, count, _fewest_nodes(groups, count, step))
        if shares is not None:
            taken = _take(groups, candidates, zip(order, shares, strict=True), step, whole=whole)
            if taken.bit_count() == count:
                return taken
    return packed(groups, candidates, count, prefer_l3=False, whole=whole)


def _fewest_nodes(groups: CPUGroups, count: int, step: int) -> int:
    """Return how many nodes the count takes if nodes are of average size."""
    steps = -(-sum(map(int.bit_count, groups.numa)) // step)
    steps_per_node = -(-steps // len(groups.numa))
    return -(-(count // step) // steps_per_node)


def _shares(nodes: _Nodes, count: int, fewest: int) -> _Shares | None:
    """Return what every node gives, on the fewest nodes that can; None if the count cannot be shared out."""
    for size in range(fewest, min(count // nodes.step, len(nodes.free)) + 1):
        even = count // size // nodes.step * nodes.step
        rest = count - even * size
        ways = comb(len(nodes.free), size) * (1 << size if rest else 1)
        shares = (_most_even if ways <= SEARCH_LIMIT else _most_free)(nodes, size, even, rest)
        if shares is not None:
            return shares
    return None


def _most_even(nodes: _Nodes, size: int, even: int, rest: int) -> _Shares | None:
    """Of all sets of `size` nodes the one that leaves the nodes most alike; the first one of equals."""
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
    """Every way to hand out the rest step by step, in turn, to some of the chosen nodes; most nodes first."""
    if not rest:
        yield tuple(shares)
        return
    takers = [node for node in chosen if nodes.free[node] - shares[node] >= nodes.step]
    for number in range(len(takers), 0, -1):
        for some in combinations(takers, number):
            if sum((nodes.free[node] - shares[node]) // nodes.step for node in some) * nodes.step >= rest:
                yield _in_turn(nodes, list(shares), some, rest)


def _in_turn(nodes: _Nodes, shares: list[int], takers: Sequence[int], rest: int) -> _Shares:
    while rest:
        for node in takers:
            if rest and nodes.free[node] - shares[node] >= nodes.step:
                shares[node] += nodes.step
                rest -= nodes.step
    return tuple(shares)


def _most_free(nodes: _Nodes, size: int, even: int, rest: int) -> _Shares | None:
    """The `size` nodes with most free CPUs, the rest step by step from whichever has most left."""
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
    """The mask of these numbers of CPUs of these NUMA nodes; 0 if whole cores cannot make one of them."""
    shares = [(index, share) for index, share in shares if share]
    even = min(share for _, share in shares) // step * step
    taken = 0
    for index, share in shares:
        # Even part first, then one step at a time: a larger part could fall on other cores.
        for part in (even, *[step] * ((share - even) // step)):
            free = groups.numa[index] & candidates & ~taken
            if whole and not CoreSizes.of(groups.cores, free).can_make(part):
                return 0
            taken |= packed(groups, free, part, prefer_l3=False, whole=whole)
    return taken


def _rounded(value: float) -> int:
    return floor(value + 0.5)
