"""An immutable mapping with cheap changed copies, even if it is large.

It is cut into pieces by the hashes of its keys. A copy shares with its original every piece without a changed key, so
two versions are compared by the few pieces that they do not share, however far apart they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, compress
from typing import Final, Self, TypeVar

V = TypeVar("V")

# With 10,000 entries a change copies one piece of 40 entries, and the tuple of pieces.
_PIECES: Final = 256


class FrozenMap(Mapping[str, V]):
    """An immutable mapping from strings; `FrozenMap().changed(entries)` makes one."""

    __slots__ = ("_len", "_pieces")

    def __init__(self, pieces: tuple[dict[str, V], ...] = ({},) * _PIECES, size: int = 0) -> None:
        self._pieces, self._len = pieces, size

    def __getitem__(self, key: str) -> V:
        return self._pieces[hash(key) % _PIECES][key]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._pieces)

    def __len__(self) -> int:
        return self._len

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def changed(self, put: Mapping[str, V], drop: Iterable[str] = ()) -> Self:
        """Return a copy with the entries of `put` set, and then the keys of `drop` removed."""
        copies: dict[int, dict[str, V]] = {}
        for key, value in put.items():
            self._copied(copies, key)[key] = value
        for key in drop:
            self._copied(copies, key).pop(key, None)
        pieces = list(self._pieces)
        size = self._len
        for place, copy in copies.items():
            size += len(copy) - len(pieces[place])
            pieces[place] = copy
        return type(self)(tuple(pieces), size)

    def _copied(self, copies: dict[int, dict[str, V]], key: str) -> dict[str, V]:
        place = hash(key) % _PIECES
        if place not in copies:
            copies[place] = dict(self._pieces[place])
        return copies[place]

    def differing(self, other: FrozenMap[V]) -> frozenset[str]:
        """Return the keys whose values differ, or that only one map has."""
        pairs = zip(self._pieces, other._pieces, strict=True)
        apart = compress(pairs, map(operator.is_not, self._pieces, other._pieces))
        return frozenset(chain.from_iterable(_differing(mine, theirs) for mine, theirs in apart))


def _differing(mine: dict[str, V], theirs: dict[str, V]) -> Iterator[str]:
    yield from theirs.keys() - mine.keys()
    for key, value in mine.items():
        # Most values are the same object, so identity comes first: comparing two claims takes longer.
        if key not in theirs or (value is not theirs[key] and value != theirs[key]):
            yield key
