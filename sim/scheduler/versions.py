"""A mapping of which every version stays as it is, though all versions share one dictionary.

What-if asks for thousands of clusters that differ from each other in a node. A version that was made from another one
holds no copy, but its differences from it; the one that is looked at has the dictionary, and those on the way to it
turn their differences round (H. Baker, "Shallow Binding Makes Functional Arrays Fast", 1991). The newest version is as
fast as a dictionary, another one costs its distance once. Not for several threads.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

# In the place of the value of a key that a version lacks.
_GONE: Final[Any] = object()


class VersionedMap(Mapping[K, V]):
    """One version; equal to a dictionary with the same entries.

    Entries come in the order in which their keys first came into any version.

    Attributes:
        held: the dictionary, or how this version differs from one that is nearer to it.
    """

    __slots__ = ("_length", "held")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        """Make the first version of a mapping of its own."""
        self.held: dict[K, Any] | _Difference[K, V] = dict(entries)
        self._length = len(self.held)

    def replaced(
        self, changed: Mapping[K, V] | Iterable[tuple[K, V]] = (), without: Iterable[K] = ()
    ) -> VersionedMap[K, V]:
        """Return the next version: with other values for some keys, new ones among them, and without some keys."""
        after, entries = dict(changed), self._at_hand()
        gone = [key for key in without if entries.get(key, _GONE) is not _GONE]
        new: VersionedMap[K, V] = VersionedMap()
        new.held = _Difference(self, (*((key, _GONE) for key in gone), *after.items()))
        new._length = self._length - len(gone) + sum(entries.get(key, _GONE) is _GONE for key in after)
        return new

    def differing(self, other: VersionedMap[K, V]) -> frozenset[K] | None:
        """Return keys that may differ between this version and another one; None if they have no common origin."""
        self._at_hand()
        keys: set[K] = set()
        while not isinstance(held := other.held, dict):
            keys.update(key for key, _ in held.changes)
            other = held.towards
        return frozenset(keys) if other is self else None

    def _at_hand(self) -> dict[K, Any]:
        """Return the dictionary, which is this version's until another one is looked at."""
        path = []
        version: VersionedMap[K, V] = self
        while not isinstance(held := version.held, dict):
            path.append((version, held.changes))
            version = held.towards
        for nearer, changes in reversed(path):
            version.held = _Difference(nearer, tuple([(key, held.get(key, _GONE)) for key, _ in changes]))
            held.update(changes)
            nearer.held = held
            version = nearer
        return held

    def __getitem__(self, key: K) -> V:
        value: V = self._at_hand()[key]
        if self._is_gone(value):
            raise KeyError(key)
        return value

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | T) -> V | T: ...

    def get(self, key: K, /, default: V | T | None = None) -> V | T | None:
        """Return the value of a key, else the default."""
        value: Any = (self.held if isinstance(self.held, dict) else self._at_hand()).get(key, _GONE)
        return default if value is _GONE else value

    def __contains__(self, key: object) -> bool:
        entries: dict[Any, Any] = self._at_hand()
        return entries.get(key, _GONE) is not _GONE

    # Whoever goes through one version may look at another one meanwhile, which takes the dictionary along.
    def __iter__(self) -> Iterator[K]:
        return iter(self._copied())

    def __len__(self) -> int:
        return self._length

    def items(self) -> ItemsView[K, V]:
        """Return the entries of this version."""
        return self._copied().items()

    def values(self) -> ValuesView[V]:
        """Return the values of this version."""
        return self._copied().values()

    def _copied(self) -> dict[K, V]:
        entries = self._at_hand()
        if len(entries) == self._length:
            return entries.copy()
        return {key: value for key, value in entries.items() if value is not _GONE}

    @staticmethod
    def _is_gone(value: object) -> bool:
        return value is _GONE


class _Difference(NamedTuple, Generic[K, V]):
    """A version is another one, which is nearer to the dictionary, but for these values."""

    towards: VersionedMap[K, V]
    changes: tuple[tuple[K, V], ...]
