"""An immutable mapping whose versions share one dictionary.

What-if questions create thousands of clusters, each of which differs from another one in a node. A new version stores
only its differences from the version that it was made from. The version that was read last has the dictionary: reading
another version moves the dictionary there, and reverses the differences on the way (H. Baker, "Shallow Binding Makes
Functional Arrays Fast", 1991). So the version in use is as fast as a dictionary, and a switch to another one costs the
differences between the two. Not for use by several threads.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

# Stands for the value of a key that a version lacks.
_GONE: Final[Any] = object()


class VersionedMap(Mapping[K, V]):
    """One version; equal to a dictionary with the same entries.

    Entries are in the order in which their keys first appeared in any version.

    Attributes:
        held: the dictionary, or the differences from a version that is nearer to it.
    """

    __slots__ = ("_length", "held")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        """Create the first version of a new mapping."""
        self.held: dict[K, Any] | _Difference[K, V] = dict(entries)
        self._length = len(self.held)

    def replaced(
        self, changed: Mapping[K, V] | Iterable[tuple[K, V]] = (), without: Iterable[K] = ()
    ) -> VersionedMap[K, V]:
        """Return the next version, with some keys changed or added and others removed."""
        after, entries = dict(changed), self._dictionary()
        gone = [key for key in without if entries.get(key, _GONE) is not _GONE]
        new: VersionedMap[K, V] = VersionedMap()
        new.held = _Difference(self, (*((key, _GONE) for key in gone), *after.items()))
        new._length = self._length - len(gone) + sum(entries.get(key, _GONE) is _GONE for key in after)
        return new

    def differing(self, other: VersionedMap[K, V]) -> frozenset[K] | None:
        """Return keys that may differ between this version and another one; None if they have no common origin."""
        self._dictionary()
        keys: set[K] = set()
        while not isinstance(held := other.held, dict):
            keys.update(key for key, _ in held.changes)
            other = held.towards
        return frozenset(keys) if other is self else None

    def _dictionary(self) -> dict[K, Any]:
        """Move the dictionary to this version, and return it; it is valid until another version is read."""
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
        value: Any = self._dictionary()[key]
        if value is _GONE:
            raise KeyError(key)
        return cast("V", value)

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | T) -> V | T: ...

    def get(self, key: K, /, default: V | T | None = None) -> V | T | None:
        """Return the value of a key, else the default."""
        value: Any = (self.held if isinstance(self.held, dict) else self._dictionary()).get(key, _GONE)
        return default if value is _GONE else value

    def __contains__(self, key: object) -> bool:
        entries: dict[Any, Any] = self._dictionary()
        return entries.get(key, _GONE) is not _GONE

    # A copy, because the caller may read another version during the loop, which moves the dictionary.
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
        entries = self._dictionary()
        if len(entries) == self._length:
            return entries.copy()
        return {key: value for key, value in entries.items() if value is not _GONE}


class _Difference(NamedTuple, Generic[K, V]):
    """How a version differs from another one, which is nearer to the dictionary."""

    towards: VersionedMap[K, V]
    changes: tuple[tuple[K, V], ...]
