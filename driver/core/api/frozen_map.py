"""An immutable mapping with cheap changed copies, even if it is large.

It is a tree of two levels whose leaves are chosen by the hashes of the keys. A copy shares with its original every leaf
and every branch without a changed key, so two versions are compared by the few leaves that they do not share, however
far apart they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, compress
from typing import Final, Self, TypeVar

P = TypeVar("P")
V = TypeVar("V")

# A change passes over the branches, the leaves of one and the entries of a leaf, of which 10,000 make ten. What it
# passes over is fetched into the processor's cache, an object at a time.
_WIDTH: Final = 32
_LEAVES: Final = _WIDTH * _WIDTH


class FrozenMap(Mapping[str, V]):
    """An immutable mapping from strings; `FrozenMap().changed(entries)` makes one."""

    __slots__ = ("_branches", "_len")

    def __init__(
        self, branches: tuple[tuple[dict[str, V], ...], ...] = (({},) * _WIDTH,) * _WIDTH, size: int = 0
    ) -> None:
        self._branches, self._len = branches, size

    def __getitem__(self, key: str) -> V:
        branch, at = divmod(hash(key) % _LEAVES, _WIDTH)
        return self._branches[branch][at][key]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(chain.from_iterable(self._branches))

    def __len__(self) -> int:
        return self._len

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def changed(self, put: Mapping[str, V], drop: Iterable[str] = ()) -> Self:
        """Return a copy with the entries of `put` set, and then the keys of `drop` removed."""
        leaves: dict[int, dict[str, V]] = {}
        for key, value in put.items():
            self._copied(leaves, key)[key] = value
        for key in drop:
            self._copied(leaves, key).pop(key, None)
        copies: dict[int, list[dict[str, V]]] = {}
        size = self._len
        for place, leaf in leaves.items():
            branch, at = divmod(place, _WIDTH)
            if branch not in copies:
                copies[branch] = list(self._branches[branch])
            size += len(leaf) - len(copies[branch][at])
            copies[branch][at] = leaf
        branches = list(self._branches)
        for branch, copy in copies.items():
            branches[branch] = tuple(copy)
        return type(self)(tuple(branches), size)

    def _copied(self, leaves: dict[int, dict[str, V]], key: str) -> dict[str, V]:
        place = hash(key) % _LEAVES
        if place not in leaves:
            branch, at = divmod(place, _WIDTH)
            leaves[place] = dict(self._branches[branch][at])
        return leaves[place]

    def differing(self, other: FrozenMap[V]) -> frozenset[str]:
        """Return the keys whose values differ, or that only one map has."""
        branches = _apart(self._branches, other._branches)
        leaves = chain.from_iterable(_apart(mine, theirs) for mine, theirs in branches)
        return frozenset(chain.from_iterable(_differing(mine, theirs) for mine, theirs in leaves))


def _apart(mine: tuple[P, ...], theirs: tuple[P, ...]) -> Iterator[tuple[P, P]]:
    """Return the pairs that are not one object."""
    return compress(zip(mine, theirs, strict=True), map(operator.is_not, mine, theirs))


def _differing(mine: dict[str, V], theirs: dict[str, V]) -> Iterator[str]:
    yield from theirs.keys() - mine.keys()
    for key, value in mine.items():
        # Most values are the same object, so identity comes first: comparing two claims takes longer.
        if key not in theirs or (value is not theirs[key] and value != theirs[key]):
            yield key
