"""An immutable mapping with cheap modified versions: all versions share one dictionary.

What-if questions need thousands of clusters that differ in one node. A new version stores only its differences from the
version it was made from. The version that was accessed last has the dictionary; accessing another one moves it there
and reverses the differences on the way (H. Baker, "Shallow Binding Makes Functional Arrays Fast", 1991). The newest
version is as fast as a dictionary; any other costs its distance once. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

# The value of a key that a version lacks.
_GONE: Final[Any] = object()


class VersionedMap(Mapping[K, V]):
    """One version; equal to a dictionary with the same entries.

    Entries are in the order in which their keys were first added to any version.

    Attributes:
        content: the dictionary, or the difference from a version that is nearer to it.
    """

    __slots__ = ("_length", "content")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        """Make the first version of a new mapping."""
        self.content: dict[K, Any] | _Difference[K, V] = dict(entries)
        self._length = len(self.content)

    def replaced(
        self, changed: Mapping[K, V] | Iterable[tuple[K, V]] = (), without: Iterable[K] = ()
    ) -> VersionedMap[K, V]:
        """Return a version with some keys set to new values and some keys removed."""
        after, entries = dict(changed), self._dictionary()
        gone = [key for key in without if entries.get(key, _GONE) is not _GONE]
        new: VersionedMap[K, V] = VersionedMap()
        new.content = _Difference(self, (*((key, _GONE) for key in gone), *after.items()))
        new._length = self._length - len(gone) + sum(entries.get(key, _GONE) is _GONE for key in after)
        return new

    def differing(self, other: VersionedMap[K, V]) -> frozenset[K] | None:
        """Return keys that may differ between this version and another one; None if they have no common origin."""
        self._dictionary()
        keys: set[K] = set()
        while not isinstance(content := other.content, dict):
            keys.update(key for key, _ in content.changes)
            other = content.base
        return frozenset(keys) if other is self else None

    def _dictionary(self) -> dict[K, Any]:
        """Move the dictionary to this version, where it stays until another version is accessed."""
        path = []
        version: VersionedMap[K, V] = self
        while not isinstance(content := version.content, dict):
            path.append((version, content.changes))
            version = content.base
        for nearer, changes in reversed(path):
            version.content = _Difference(nearer, tuple([(key, content.get(key, _GONE)) for key, _ in changes]))
            content.update(changes)
            nearer.content = content
            version = nearer
        return content

    def __getitem__(self, key: K) -> V:
        value = self._dictionary()[key]
        if value is _GONE:
            raise KeyError(key)
        return cast("V", value)

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | T) -> V | T: ...

    def get(self, key: K, /, default: V | T | None = None) -> V | T | None:
        """Return the value of a key, or the default."""
        value: Any = (self.content if isinstance(self.content, dict) else self._dictionary()).get(key, _GONE)
        return default if value is _GONE else value

    def __contains__(self, key: object) -> bool:
        entries: dict[Any, Any] = self._dictionary()
        return entries.get(key, _GONE) is not _GONE

    # Iteration uses a copy, because an access to another version meanwhile would move and change the dictionary.
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
    """The changed entries of a version since `base`, which is nearer to the dictionary."""

    base: VersionedMap[K, V]
    changes: tuple[tuple[K, V], ...]
