"""NUMA-distributed picks (KEP-2902): the same number of CPUs from every NUMA node that is needed.

They use the smallest number of nodes over which the count can be divided evenly in steps of a group size, and of the
possible node sets, those of one package first, the one that leaves the most similar numbers of free CPUs on all
nodes. The answers are those of dra-driver-cpu's `takeByTopologyNUMADistributed`, except for four defects of the
original: it takes nodes of several packages where one has enough, its loop over sets of four and more nodes can
overwrite the best set, it never ends if no node can take the remainder in whole steps, and its search grows with 4 to
the power of the nodes. Here the first best set wins, such remainders are skipped, and if there are more than
`SEARCH_LIMIT` possibilities (beyond about eight nodes) the nodes with the most free CPUs are taken, which is the most
even answer except for ties and rounding.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import comb, floor, sqrt
from typing import Final

import msgspec

from dranode.cpu.picking.packed import CoreSizes, numa_order, packed
from dranode.cpu.topology import CPUGroups

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
