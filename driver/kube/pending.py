"""Items that wait to be sent, by key: the newest one of a key, after an idle moment. Pure but for its own state.

A write competes with kubelet's next call for the interpreter, and often the next call makes it moot. So an item waits
until nothing has come for a while, but no longer than a limit. Times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

_CAPACITY: Final = 1000


class _Entry(msgspec.Struct, Generic[T]):
    item: T
    since: float
    taken: bool = False


class PendingItems(Generic[T]):
    """Items in the order in which their keys came. Of more than a thousand the oldest are dropped. Not thread-safe."""

    def __init__(self, idle: float = 0.0, limit: float = 0.0) -> None:
        """Let an item wait until nothing has come for `idle` seconds, but no longer than `limit`."""
        self._idle = idle
        self._limit = limit
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._latest = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def is_taken(self, key: str) -> bool:
        """Return whether what waits under a key was taken and is not `done`."""
        entry = self._entries.get(key)
        return entry is not None and entry.taken

    def put(self, key: str, item: T, now: float) -> T | None:
        """Add an item in place of the one that waits under its key; the item that was dropped to make room for it."""
        self._latest = now
        entry = self._entries.get(key)
        if entry is not None:
            entry.item = item
            return None
        self._entries[key] = _Entry(item, now)
        return self._entries.popitem(last=False)[1].item if len(self._entries) > _CAPACITY else None

    def take_back(self, key: str, now: float) -> T | None:
        """Remove and return what waits under a key; None if nothing does, or if some of it may have been sent."""
        self._latest = now
        entry = self._entries.get(key)
        if entry is None or entry.taken:
            return None
        del self._entries[key]
        return entry.item

    def wait(self, now: float) -> float | None:
        """Return how many seconds the first item has to wait; None if there is none."""
        entry = next(iter(self._entries.values()), None)
        if entry is None:
            return None
        return max(0.0, min(self._latest + self._idle, entry.since + self._limit) - now)

    def take(self) -> tuple[str, T]:
        """The first item and its key, to be sent; it stays until it is `done`.

        Raises:
            StopIteration: there is none.
        """
        key, entry = next(iter(self._entries.items()))
        entry.taken = True
        return key, entry.item

    def done(self, key: str, item: T) -> None:
        """Remove an item that needs no sending any more, unless a newer one has come under its key."""
        entry = self._entries.get(key)
        if entry is not None and entry.item is item:
            del self._entries[key]
