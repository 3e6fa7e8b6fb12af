"""A mapping that never changes and of which a changed copy costs little, however large it is.

It is cut into pieces by its keys' hashes. A copy shares with its original every piece that no changed key falls into,
so that two versions, however far apart, are compared by the few pieces that they do not share.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, compress
from typing import Final, Self, TypeVar

V = TypeVar("V")

# With 10,000 entries a change copies one piece of 40 of them, and the row of pieces.
_PIECES: Final = 256


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FrozenMap(Mapping[str, V]):
    """An immutable mapping from strings; `FrozenMap().changed(entries)` makes one."""

    _pieces: tuple[dict[str, V], ...] = ({},) * _PIECES
    _len: int = 0

    def __getitem__(self, key: str) -> V:
        return self._pieces[hash(key) % _PIECES][key]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._pieces)

    def __len__(self) -> int:
        return self._len

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def changed(self, put: Mapping[str, V], drop: Iterable[str] = ()) -> Self:
        """The map with these entries in place of those of the same keys, and then without these keys."""
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
        """The keys under which the two maps do not have the same."""
        pairs = zip(self._pieces, other._pieces, strict=True)
        apart = compress(pairs, map(operator.is_not, self._pieces, other._pieces))
        return frozenset(chain.from_iterable(_differing(mine, theirs) for mine, theirs in apart))


def _differing(mine: dict[str, V], theirs: dict[str, V]) -> Iterator[str]:
    yield from theirs.keys() - mine.keys()
    for key, value in mine.items():
        # Most are the same object, and comparing two claims takes longer.
        if key not in theirs or (value is not theirs[key] and value != theirs[key]):
            yield key
